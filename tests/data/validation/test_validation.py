"""Validation: planted faults are found in their rows and nowhere else, and every row is valid or in quarantine."""

import contextlib
import dataclasses
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import word_tokenizer
from tests.data.encoders.tiny import folder_of, plain_modules
from tests.data.latents import toy

from mm_ldlm.core import Registry, ValidationError
from mm_ldlm.data.corpus.record import comparison_form
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.corpus.tokens import tokenize_records
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.data.latents.store import Latents, LatentStore, TokenVectors
from mm_ldlm.data.latents.store import schema as latent_schema
from mm_ldlm.data.store import Shard, ShardStore, write_store
from mm_ldlm.data.validation import checks
from mm_ldlm.data.validation.checks import DATA_CHECKS, DataCheck, Subject
from mm_ldlm.data.validation.findings import Finding, ValidationConfig, enforce, failing_rows, plain

WORDS = ("the", "cat", "dog", "sat", "on", "mat", "ran", "red", "blue", "green", "house", "one")
ROWS, DIM, SHARD = 48, 32, 20
_ORDER = np.random.default_rng(0).permutation(ROWS).tolist()  # the mean of every shard is near the others'
TEXTS = [f"{WORDS[row // len(WORDS)]} {WORDS[row % len(WORDS)]} the" for row in _ORDER]
TOKENIZER = word_tokenizer(*WORDS, max_length=5)
REUSED = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
Columns = dict[str, list[Any]]
LIMITS = functools.partial(ValidationConfig, max_quarantine_fraction=1.0)
NONE = dataclasses.replace(DATA_CHECKS, group="none")
Fault = tuple[str, str, Callable[[Columns, int], None]]


class Outcome(NamedTuple):
    report: dict[str, Any]
    failing: dict[str, Any]
    figures: dict[str, Any]


@dataclasses.dataclass
class Stores:
    """A folder with the stores `records`, `tokens` and `latents`, the encoder of the latents, and the limits of all checks.

    Only an extra is tested with the checks of the registry.
    """

    root: Path
    encoder: LocalEncoderConfig
    limits: Callable[..., ValidationConfig] = LIMITS
    registered: Registry = NONE
    seed: int = 0

    def opened(self, name: str) -> ShardStore:
        return (LatentStore if name == "latents" else ShardStore).open(self.root / name, name)

    @contextlib.contextmanager
    def changing(self, name: str, schema: Any = None, **meta: Any) -> Iterator[Columns]:
        """Yield the columns of a store, and replace it by what they are afterwards, with the same fingerprints."""
        old = self.opened(name)
        columns = old.table(slice(None)).to_pydict()
        yield columns
        write_store(
            self.root / name, [columns], kind=name, schema=schema or old.schema, shard_rows=SHARD,
            fingerprints=old.manifest.fingerprints, meta={**old.manifest.meta, **meta},
        )  # fmt: skip

    def inputs(self, *, latents: bool = True) -> Inputs:
        made = {"latents": self.opened("latents")} if latents else {}
        return Inputs(self.opened("records"), self.opened("tokens"), TOKENIZER, made)

    def validate(self, inputs: Inputs | None = None, plan: Any = None, **limits: Any) -> Outcome:
        inputs = inputs or self.inputs()
        sections = {"encoder": self.encoder, "validation": self.limits(**limits), "seed": self.seed}
        plan = plan or {name: Latents(NormaliserConfig()) for name in inputs.features}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "DATA_CHECKS", self.registered)
            patch.setattr(checks, "_ROWS", 7)
            return Outcome(*checks.validate(plan, inputs, sections=sections, evaluation_sets={}))


def write_records(folder: Path, rows: list[tuple[str, str, str | None]]) -> ShardStore:
    """Write records of (text, split, digest of what it describes)."""
    metas = [about and json.dumps({"describes": {"digest": about}}) for *_, about in rows]
    texts, splits = [text for text, *_ in rows], [split for _, split, _ in rows]
    return toy.records(folder, texts, metas, splits=splits, shard_rows=SHARD)


def write_tokens(records: ShardStore, folder: Path) -> None:
    limits = TokenizerConfig(max_length=TOKENIZER.max_length)
    tokenize_records(records, TOKENIZER, limits, folder).write(folder)


@pytest.fixture(scope="module", params=[("Pooling", "Normalize"), ("Pooling",)], ids=["normalised", "other norms"])
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Intact stores, for an encoder that normalises and for another one; do not write into them."""
    root = tmp_path_factory.mktemp("pristine")
    shutil.copytree(folder_of("minilm"), root / "encoder")
    plain_modules(root / "encoder", *request.param)
    encoder = LocalEncoderConfig(name="tiny/words", path=str(root / "encoder"), device="cpu")
    splits = ("train", "train", "validation", "test")
    records = write_records(root / "records", [(text, splits[row % 4], None) for row, text in enumerate(TEXTS)])
    write_tokens(records, root / "tokens")
    located = encoder.locate()
    columns = {"id": records.gather("id", slice(None)), "latent": list(encoder.load(located).encode(TEXTS))}
    write_store(
        root / "latents", [columns], kind="latents", schema=latent_schema(DIM, "float32"), shard_rows=SHARD,
        fingerprints={"records": records.manifest.fingerprint, "encoder": located.fingerprint},
        meta={"dim": DIM, "encoder": located.describe()},
    )  # fmt: skip
    return Stores(root, encoder)


@pytest.fixture
def stores(pristine: Stores, tmp_path: Path) -> Stores:
    """A copy to break."""
    for name in ("records", "tokens", "latents"):
        shutil.copytree(pristine.root / name, tmp_path / name)
    return dataclasses.replace(pristine, root=tmp_path)


def of_texts(records: ShardStore, sets: dict[str, Any], **limits: Any) -> dict[str, Finding]:
    """Return what the checks of the texts find, by the name of the check."""
    inputs, config = Inputs(records, records, TOKENIZER, {}), ValidationConfig(**limits)
    subject = Subject({}, inputs, {}, None, config, {}, sets)
    return {finding.check: finding for finding in checks.check_texts(subject)}


def named(outcome: Outcome, check: str) -> list[dict[str, Any]]:
    return [finding for finding in outcome.report["findings"] if finding["check"] == check]


def errors(outcome: Outcome) -> set[str]:
    return {finding["check"] for finding in outcome.report["findings"] if finding["severity"] == "error"}


# -- all rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latents", [True, False])
def test_intact_stores_pass_with_counts(pristine: Stores, latents: bool) -> None:
    outcome = pristine.validate(pristine.inputs(latents=latents))
    assert outcome.failing == {}
    assert {finding["severity"] for finding in outcome.report["findings"]} == {"info"}
    assert (outcome.report["passed"], outcome.report["valid"], outcome.report["quarantined"]) == (True, ROWS, 0)
    json.dumps(outcome.report, allow_nan=False)
    enforce(outcome.report)


FAULTS: dict[str, Fault] = {
    "outside": ("tokens", "token ids", lambda c, i: c["input_ids"][i].__setitem__(0, TOKENIZER.vocab_size)),
    "negative": ("tokens", "token ids", lambda c, i: c["input_ids"][i].__setitem__(0, -1)),
    "pad": ("tokens", "special tokens", lambda c, i: c["input_ids"][i].__setitem__(1, TOKENIZER.pad_id)),
    "mask": ("tokens", "special tokens", lambda c, i: c["input_ids"][i].__setitem__(1, TOKENIZER.mask_id)),
    "length": ("tokens", "token lengths", lambda c, i: c["length"].__setitem__(i, 2)),
    "empty": ("tokens", "empty", lambda c, i: (c["input_ids"][i].clear(), c["length"].__setitem__(i, 0))[0]),
    "long": ("tokens", "length", lambda c, i: (c["input_ids"][i].extend([1] * 5), c["length"].__setitem__(i, 8))[0]),
    "text": ("records", "ids", lambda c, i: c["text"].__setitem__(i, f"another text {i}")),
}
"""Store, check that finds it, and the change of a row"""


@REUSED
@given(
    st.dictionaries(st.integers(0, ROWS - 1), st.sampled_from(sorted(FAULTS)), max_size=8), st.sampled_from([7, 65_536])
)
def test_exactly_the_damaged_rows_are_quarantined_with_their_reasons(
    pristine: Stores, tmp_path: Path, planted: dict[int, str], window: int
) -> None:
    """The stores are read in windows; a row has the same number in each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_ROWS", window)
        outcome = quarantined(pristine, tmp_path, {row: FAULTS[fault] for row, fault in planted.items()})
    unusable = {"token ids", "special tokens", "token lengths", "length", "ids"}
    assert errors(outcome) - {"records"} == unusable & outcome.failing.keys()


def quarantined(pristine: Stores, folder: Path, planted: dict[int, Fault], **limits: Any) -> Outcome:
    """Damage rows of a copy of the stores; exactly these are quarantined."""
    shutil.rmtree(folder, ignore_errors=True)
    broken = dataclasses.replace(pristine, root=folder)
    expected: dict[str, list[int]] = {}
    for name in ("records", "tokens", "latents"):
        shutil.copytree(pristine.root / name, folder / name)
        with broken.changing(name) as columns:
            for row, (store, check, damage) in sorted(planted.items()):
                if store == name:
                    damage(columns, row)
                    expected.setdefault(check, []).append(row)
    outcome = broken.validate(**limits)
    found = {check: rows.tolist() for check, rows in outcome.failing.items()}
    assert found == {check: sorted(rows) for check, rows in expected.items()}
    assert outcome.report["quarantined"] == len(planted)
    assert outcome.report["valid"] + outcome.report["quarantined"] == outcome.report["rows"] == ROWS
    for check, rows in found.items():
        assert [finding["count"] for finding in named(outcome, check)] == [len(rows)]
    return outcome


class FirstRows(DataCheck):
    """A check of another package, which refuses the first rows."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        rows = np.arange(subject.sections["seed"])
        self.statistics = {"rows": len(rows)}
        yield Finding("warning", "first", "These are zero vectors.", failing=rows)


class Refusing(Latents):
    def check(self, store: ShardStore, records: ShardStore) -> Iterator[Finding]:
        yield Finding("warning", "refused", "These texts have no sound.", failing=np.arange(ROWS - 20, ROWS))


@pytest.mark.parametrize("count", [4, 5, 30])
def test_a_run_stops_if_too_many_rows_fail(
    pristine: Stores, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a feature refuses does not count; a feature of words has other rows; an encoder may recognise itself."""
    registry = dataclasses.replace(pristine.registered, core={"first": f"{__name__}:FirstRows"})
    located, inputs = pristine.encoder.locate(), pristine.inputs()
    encoder: Any = SimpleNamespace(locate=lambda expected=None: dataclasses.replace(located, fingerprint=expected))
    inputs.features["token_vectors"] = toy.records(tmp_path, ["a word"])  # type: ignore[index]
    plan = {"latents": Refusing(NormaliserConfig()), "token_vectors": TokenVectors(encoder)}
    broken = dataclasses.replace(pristine, registered=registry, seed=count, encoder=encoder)
    monkeypatch.setattr(Shard, "is_intact", lambda *_: pytest.fail("reads every byte"))
    outcome = broken.validate(inputs, plan, max_quarantine_fraction=4 / ROWS, verify_checksums=False)
    assert (outcome.report["passed"], outcome.report["statistics"]) == (count == 4, {"rows": count})
    assert {check: len(rows) for check, rows in outcome.failing.items()} == {"first": count, "refused": 20}
    assert outcome.report["valid"] == ROWS - len({*range(count), *range(ROWS - 20, ROWS)}), "a row with two reasons"
    assert errors(outcome) == ({"quarantine"} if count > 4 else set())
    for stopped in named(outcome, "quarantine"):
        assert "zero vectors" in stopped["message"], "the cause is in the message"
        assert ("validation.max_quarantine_fraction=" in stopped["remedy"]) == (2 * count < ROWS)


def test_every_failed_contract_is_reported_with_its_remedy(refuses: Any) -> None:
    found = [
        Finding("info", "seen", "this was seen"),
        Finding("error", "first", "1 row is wrong.", "Do this.", examples=range(9), failing=np.arange(9)),
        Finding("warning", "noted", "this should be read"),
        Finding("error", "second", "2 rows are wrong.", "Do that.", count=2),
    ]
    report = {"findings": plain(found)}
    assert [(each["check"], each["count"]) for each in report["findings"]] == [
        ("first", 9), ("second", 2), ("noted", 0), ("seen", 0),
    ]  # fmt: skip
    with refuses(ValidationError, "1 row is wrong", "Do this", "2 rows are wrong", "Do that", "0, 1, 2, 3, 4"):
        enforce(report)
    enforce({"findings": [each for each in report["findings"] if each["severity"] != "error"]})
    again = Finding("error", "first", "Another row is wrong.", failing=np.array([3, 11]))
    assert failing_rows([*found, again])["first"].tolist() == [*range(9), 11]


# -- what belongs together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source"),
    [("tokens", "records"), ("tokens", "tokenizer"), ("latents", "records"), ("latents", "encoder")],
)
def test_pitfall_25_a_store_of_other_inputs_fails_its_contract(stores: Stores, name: str, source: str) -> None:
    manifest = stores.opened(name).manifest
    changed = dataclasses.replace(manifest, fingerprints={**manifest.fingerprints, source: "0" * 32})
    changed.write(stores.root / name)
    outcome = stores.validate()
    assert errors(outcome) == {source}
    assert "0" * 32 in named(outcome, source)[0]["message"]


@pytest.mark.parametrize("name", ["tokens", "latents"])
@pytest.mark.parametrize("change", ["swapped", "shifted", "foreign", "fewer", "more"])
def test_rows_of_other_records_are_found(stores: Stores, name: str, change: str) -> None:
    wrong = {"swapped": [10, 30], "foreign": [10, 30], "shifted": list(range(ROWS))}.get(change, [])
    with stores.changing(name) as columns:
        ids = columns["id"]
        if change in ("swapped", "foreign"):
            ids[10], ids[30] = (ids[30], ids[10]) if change == "swapped" else ("0" * 32, "1" * 32)
        elif change == "shifted":
            columns["id"] = [*ids[1:], ids[0]]
        else:
            size = ROWS - 1 if change == "fewer" else ROWS + 1
            columns.update({key: [*values, values[0]][:size] for key, values in columns.items()})
    outcome = stores.validate()
    assert errors(outcome) == {"alignment"}
    assert outcome.failing.get("alignment", np.empty(0)).tolist() == wrong


@pytest.mark.parametrize("name", ["records", "tokens", "latents"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "columns"])
def test_a_damaged_shard_fails_its_contract(stores: Stores, name: str, damage: str) -> None:
    """The damage occurs after the stores were opened, which would refuse the others."""
    inputs = stores.inputs()
    file = sorted((stores.root / name).glob("part-*.arrow"))[-1]
    raw = file.read_bytes()
    changed = {"flipped": raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:], "cut": raw[:-100], "columns": bytes(len(raw))}
    file.unlink() if damage == "missing" else file.write_bytes(changed[damage])
    outcome = stores.validate(inputs)
    assert errors(outcome) & {"shards", "checksum"}
    assert not outcome.report["passed"]
    assert any(file.name in str(finding) for finding in outcome.report["findings"])


# -- disjoint splits ---------------------------------------------------------------------------------------------------

FORMS = st.sampled_from(["a cat", " A  CAT", "a Cat", "a dog", "a DOG", "a bird", "\uff21 cat"])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(FORMS, st.sampled_from(SPLITS), st.sampled_from([None, "a" * 32, "b" * 32])), min_size=1, max_size=9
    ),
    st.lists(FORMS, max_size=2),
)
def test_pitfall_14_texts_in_two_splits_and_in_evaluation_sets_are_found(
    rows: list[tuple[str, str, str | None]], evaluation: list[str]
) -> None:
    """What a text describes is compared in its place: a caption may occur with two images in two splits."""
    key = [about or comparison_form(text) for text, _, about in rows]
    splits = {each: {split for other, (_, split, _) in zip(key, rows, strict=True) if other == each} for each in key}
    across = sum(len(found) - 1 for found in splits.values())
    leaked = [row for row, (_, split, about) in enumerate(rows)
              if split == "train" and about is None and key[row] in {comparison_form(text) for text in evaluation}]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        records = write_records(Path(folder), rows)
        for on_leakage in ("remove", "report"):
            found = of_texts(records, {"set": evaluation}, on_leakage=on_leakage)
            assert ("held-out rows" in found) == all(split != "test" for _, split, _ in rows)
            assert found["split leakage"].count == across if across else "split leakage" not in found
            repeats = len(rows) - sum(map(len, splits.values()))
            assert found["duplicate texts"].count == repeats if repeats else "duplicate texts" not in found
            failing = found["evaluation leakage"].failing.tolist() if leaked else []
            assert failing == (leaked if on_leakage == "remove" else [])
            assert ("evaluation leakage" in found) == bool(leaked)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, "c", "d"]), st.sampled_from(SPLITS)),
        min_size=1, max_size=9,
    )
)  # fmt: skip
def test_pitfall_35_groups_and_documents_in_two_splits_are_counted(
    rows: list[tuple[str | None, str | None, str]],
) -> None:
    splits: dict[str, set[str]] = {}
    for group, document, split in rows:
        if key := group or document:
            splits.setdefault(key, set()).add(split)
    crossing = sum(len(found) > 1 for found in splits.values())
    with tempfile.TemporaryDirectory() as folder:
        texts = [f"text {number}" for number in range(len(rows))]
        metas = [json.dumps({"split_group": group, "piece_of": document}) for group, document, _ in rows]
        records = toy.records(Path(folder), texts, metas, splits=[split for *_, split in rows])
        found = of_texts(records, {})
    assert found["split leakage"].count == crossing if crossing else "split leakage" not in found


@pytest.mark.parametrize("wrong", ["dev", "", "Train"])
def test_a_record_without_a_split_and_a_forged_id_fail_their_contracts(stores: Stores, wrong: str) -> None:
    with stores.changing("records") as columns:
        columns["split"][5] = wrong
        columns["meta"][7] = json.dumps({"pair": "a second text"})  # which the id does not contain
    outcome = stores.validate()
    assert {"splits", "ids"} <= errors(outcome)
    assert outcome.failing["ids"].tolist() == [7]


@pytest.mark.parametrize(("unknown", "severity"), [(0, "info"), (1, "info"), (3, "warning")])
def test_held_out_texts_with_unknown_words_are_counted_and_many_are_a_warning(
    stores: Stores, unknown: int, severity: str
) -> None:
    test = {"rows": 150, "rows_with_unknown": unknown}
    counts = {"train": {"rows": 100, "rows_with_unknown": 0}, "test": test, "validation": {"rows": 50}}
    with stores.changing("tokens", splits=counts):
        pass
    (finding,) = named(stores.validate(), "unknown words")
    assert (finding["severity"], finding["count"]) == (severity, unknown)
    assert f"{unknown} of 200 held-out texts" in finding["message"]
