"""The audit on an attacker that can be followed by hand: it reads the known text whose vector is nearest."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from tests.app.sessions import Session
from tests.inference.runs import DIM as RUN_DIM
from tests.inference.runs import write_run

from mm_ldlm.core import EvaluationError, parse
from mm_ldlm.data.latents.recognition import cosines_of, unit
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.extras.audit import audit as room
from mm_ldlm.extras.audit.audit import audit, strongest, sufficient_noise
from mm_ldlm.extras.audit.command import audit as command
from mm_ldlm.extras.audit.config import AuditConfig
from mm_ldlm.extras.audit.defences import adaptive, forms, nearest, pairs, recall_and_ndcg
from mm_ldlm.extras.audit.page import report
from mm_ldlm.extras.audit.pipeline import create_pipeline
from mm_ldlm.extras.audit.readable import Vocabulary, by_kind, by_length, compare, masked, most_readable, shares

DIM, ROWS, SEED = 24, 600, 4
BOOTSTRAP = Bootstrap(100)
NAMES = ("Anna", "Boris", "Chloe", "Dmitri", "Elena")


def sentence(number: int) -> str:
    return f"On day {number} the driver met {NAMES[number % 5]} near the lake."


def embedded(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors of a fixed encoder: of the number in the text."""
    numbers = [int("".join(filter(str.isdigit, text)) or 0) for text in texts]
    scale = 1 / np.arange(1, DIM + 1)  # unequal variances, as those of an encoder
    rows = np.stack([np.random.default_rng([1, number]).normal(size=DIM) for number in numbers]) * scale
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class Oracle:
    """A model that reads the text of the nearest of all vectors, in lower case for every third row."""

    dim, max_length, no_encoder, normaliser = DIM, 10, None, SimpleNamespace(unit_norm=True)
    parts = SimpleNamespace(step=7, fingerprints={"encoder": "abc"})
    model = SimpleNamespace(model=SimpleNamespace(parameters=lambda: iter(())))
    tokenizer = SimpleNamespace(encode=lambda texts: [text.split() for text in texts])

    def __init__(self) -> None:
        self.texts = [sentence(number) for number in range(ROWS)]
        self.vectors = embedded(self.texts)

    def recognise(self, vectors: np.ndarray) -> str:
        return "random vectors"

    def reembedded(self, texts: Sequence[str], vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return cosines_of(embedded(texts), vectors), embedded(texts)

    def invert(self, targets: np.ndarray, **options: Any) -> Any:
        np.testing.assert_allclose([*np.linalg.norm(targets, axis=1), options["seed"]], [1] * len(targets) + [SEED])
        near = (targets @ self.vectors.T).argmax(axis=1)
        texts = [self.texts[n].lower() if n % 3 == 0 else self.texts[n] for n in near]
        return SimpleNamespace(texts=tuple(texts), model_calls=np.full(len(texts), len(texts)))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, oracle = tmp_path_factory.mktemp("collection"), Oracle()
    np.save(folder / "a.npy", oracle.vectors)
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in oracle.texts))
    return {"vectors": str(folder / "a.npy"), "texts": str(folder / "a.txt")}


SMALL = {
    "rows": 200, "collection_rows": 400, "compared_rows": 100, "queries": 50, "code_dims": [8], "known_pairs": [10, 400],
    "noise": [0.2, 3.0], "shown": 5, "bootstrap": {"replicates": 50},
}  # fmt: skip
FEW = {"rows": 40, "collection_rows": 80, "compared_rows": 20, "noise": [0.2, 9.0], "known_pairs": [50]}
LITTLE = {**FEW, "noise": [0.2], "code_dims": []}


def config(collection: dict[str, str], **given: Any) -> AuditConfig:
    return parse(AuditConfig, {**SMALL, **collection, **given}, at="audit")


@pytest.fixture(scope="module")
def results(collection: dict[str, str]) -> dict[str, Any]:
    return audit(config(collection), Oracle(), seed=SEED)  # type: ignore[arg-type]


# --- readable texts ---------------------------------------------------------------------------------------------------


def test_the_fractions_of_five_texts_are_those_counted_by_hand() -> None:
    texts = ["call +49 30 1234567 now", "Meet Anna at 12:30.", "we met Anna in Rome", "one two", "a a b c d e"]
    outputs = ["Call +49 30 1234567 now", "Meet Anna at 12:30.", "We met Ann in Rome", "three", "a a b c d x"]
    rows = compare(texts, outputs, Vocabulary(texts))
    assert rows["as_written"].tolist() == [False, True, False, False, False]
    assert rows["exact"].tolist() == [True, True, False, False, False]
    assert rows["nearly"].tolist() == [True, True, True, False, True]  # F1 of 4/5, twice
    assert most_readable(rows, 3) == [1, 0, 2], "those with more items first"
    found = shares(rows, BOOTSTRAP)
    assert found["exact"]["value"] == 2 / 5
    assert found["words"]["value"] == (5 + 5 + 4 + 0 + 5) / (5 + 5 + 5 + 2 + 6)
    kinds = {
        line["kind"]: (line["count"], line["rows"], line["recovered"]["value"]) for line in by_kind(rows, BOOTSTRAP)
    }
    assert kinds["numbers"] == kinds["addresses"] == (1, 1, 1.0)
    assert kinds["names"] == (3, 2, 2 / 3)  # Anna twice, and Rome


@pytest.mark.parametrize(
    ("text", "kind", "items"),
    [
        ("write to a.smith@example.org today", "addresses", ["a smith example org"]),
        ("she lives at 12 Old Mill Road now", "addresses", ["12 old mill road"]),
        ("see https://example.org/x?y=1 first", "addresses", ["https example org x y 1"]),
        ("it costs 1,200.50 or 3 euros", "numbers", ["1 200 50", "3"]),
        ("The house of Miller burned", "names", ["miller"]),
        ("Yesterday the house burned. Nobody came", "names", []),
        ("He may go in May but may not", "names", []),
        ("The house of Miller burned", "rare", ["house", "burned"]),
        ("write to a.smith@example.org today", "rare", ["write", "today"]),
        ("one zebra saw a zebra and a zebra", "rare", ["zebra"] * 3),
        ("it costs \uff15\uff10 euros", "numbers", ["50"]),
    ],
)
def test_words_that_matter_are_found(text: str, kind: str, items: list[str]) -> None:
    assert [" ".join(words) for words in Vocabulary([text]).items(text)[kind]] == items


@given(st.text(max_size=60))
@example("नमस्ते 🎉")
def test_a_masked_text_keeps_only_its_punctuation(text: str) -> None:
    found = masked(text)
    assert len(found) == len(text)
    assert not [c for c in found if not (c in "xX9" or c.isspace() or unicodedata.category(c).startswith("P"))]


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=8))
def test_any_texts_are_compared_and_the_classes_of_length_contain_each_once(pairs: list[tuple[str, str]]) -> None:
    texts, outputs = zip(*pairs, strict=True)
    rows = compare(texts, outputs, Vocabulary(texts))
    assert (rows["hits"] <= rows["words"]).all()
    assert not (rows["as_written"] & ~rows["exact"]).any()
    assert not (rows["exact"] & ~rows["nearly"]).any()
    assert sum(line["rows"] for line in by_length(rows, Bootstrap(2))) == len(rows)
    assert sorted(most_readable(rows, len(rows))) == list(range(len(rows)))
    assert compare(texts, texts, Vocabulary(texts))["as_written"].all()


# --- forms and attackers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    """Per form: the cosine of the stored numbers, and of what the attacker makes of them, to the original vectors."""
    vectors = Oracle().vectors.astype(np.float64)
    given = parse(AuditConfig, {**SMALL, "code_dims": [4, 8], "known_pairs": [10, 400]}, at="audit")
    truth, rows = nearest(vectors, vectors[:100]), []
    for form in forms(given, vectors, seed=0):
        stored = form.store(vectors)
        name, back = adaptive(*pairs(form, stored[200:], vectors[200:]))
        recall, ndcg = recall_and_ndcg(truth, nearest(stored, form.query(vectors[:100])))
        naive, undone = (float(cosines_of(each, vectors[:200]).mean()) for each in (stored[:200], back(stored[:200])))
        rows.append(
            {"name": form.name, "bytes": form.bytes_per_vector, "map": name, "naive": naive, "adaptive": undone,
             "recall": recall.mean(), "ndcg": ndcg.mean()}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("name")


def test_what_keeps_all_distances_keeps_the_retrieval(measured: pd.DataFrame) -> None:
    same = measured[measured.index.str.startswith(("as it is", "secret rotation, "))]
    assert len(same) == 3
    np.testing.assert_allclose(same[["recall", "ndcg"]], 1)


def test_the_adaptive_attacker_is_nearer_to_the_vectors_wherever_it_knows_enough(measured: pd.DataFrame) -> None:
    enough = measured[~measured.index.str.contains(" 10 known")]
    assert (enough["adaptive"] > enough["naive"] - 1e-3).all()
    assert measured.loc["secret rotation, 400 known pairs", "adaptive"] == pytest.approx(1)
    assert measured.loc["secret rotation, 400 known pairs", "map"] == "rotation"
    assert abs(measured.loc["secret rotation, 400 known pairs", "naive"]) < 0.2
    for less in ("secret rotation, 10 known pairs", "secret rotation and noise 3, 400 known pairs"):
        assert measured.loc[less, "adaptive"] < 0.95
    assert measured.loc["noise 3", "adaptive"] > measured.loc["noise 3", "naive"] + 0.1
    assert measured.loc["binary", "adaptive"] > measured.loc["binary", "naive"]


def test_an_attacker_with_few_pairs_leaves_slightly_noised_vectors_although_a_dimension_is_constant() -> None:
    rng = np.random.default_rng(0)
    vectors = unit(rng.normal(size=(50, 64)) * (np.arange(64) > 0))
    assert adaptive(vectors + 0.05 / 8 * rng.normal(size=vectors.shape), vectors)[0] == "none"


def test_noise_and_steps_are_relative_to_the_vectors() -> None:
    vectors = 3 * Oracle().vectors.astype(np.float64)
    given = parse(AuditConfig, SMALL, at="audit")
    made = forms(given, vectors, seed=0)
    apart = {form.name: form.store(vectors) - vectors for form in made}
    for level in (0.2, 3):
        assert np.square(apart[f"noise {level}"]).sum(axis=1).mean() == pytest.approx((3 * level) ** 2, rel=0.05)
    again = next(form for form in forms(given, vectors, seed=0) if form.level == 3)
    assert (again.store(vectors) != again.store(vectors)).all(), "the noise is drawn for each vector that is stored"
    assert (abs(apart["int8"]) <= np.ptp(vectors, axis=0) / 510 + 1e-12).all()


def test_the_map_is_fitted_on_all_pairs_after_it_was_chosen() -> None:
    rng = np.random.default_rng(0)
    vectors, turn = rng.normal(size=(26, 24)), np.linalg.qr(rng.normal(size=(24, 24)))[0]
    name, back = adaptive(vectors @ turn, vectors)
    np.testing.assert_allclose(back(vectors @ turn), vectors, atol=0.01, err_msg=name)


def test_the_nearest_rows_are_those_of_all_cosines() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    cosines = unit(vectors) @ unit(vectors).T - 3 * np.eye(30)
    np.testing.assert_array_equal(nearest(vectors, vectors[:7]), np.argsort(-cosines, axis=1)[:7, :10])


def test_fewer_bytes_keep_less_of_the_vectors(measured: pd.DataFrame) -> None:
    fine, coarse = (f"product quantisation, {dims} dimensions a byte" for dims in (4, 8))
    order = ["as it is", "float16", "int8", fine, coarse]
    assert measured.loc[order, "naive"].is_monotonic_decreasing
    assert measured.loc[order, "bytes"].is_monotonic_decreasing


def test_retrieval_counts_neighbours_and_their_order() -> None:
    truth = np.array([[1, 2, 3]])
    assert [float(each[0]) for each in recall_and_ndcg(truth, truth)] == [1, 1]
    assert [float(each[0]) for each in recall_and_ndcg(truth, np.array([[4, 5, 6]]))] == [0, 0]
    recall, ndcg = recall_and_ndcg(truth, np.array([[3, 9, 1]]))
    assert recall[0] == pytest.approx(2 / 3)
    assert ndcg[0] == pytest.approx((1 + 3 / 2) / (3 + 2 / np.log2(3) + 1 / 2))


# --- the audit --------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_a_check_by_hand(results: dict[str, Any], collection: dict[str, str]) -> None:
    drawn = room.sample(config(collection), dim=DIM, seed=SEED).texts[:200]
    lower = sum(int(text.split()[2]) % 3 == 0 for text in drawn) / 200
    assert results["readable"]["exact"]["value"] == 1
    assert results["readable"]["as_written"]["value"] == pytest.approx(1 - lower)
    assert {line["kind"]: line["recovered"]["value"] for line in results["by_kind"]} == {"numbers": 1, "names": 1}
    assert results["chance"]["exact"]["value"] == 0
    assert 0.5 < results["chance"]["words"]["value"] < 1  # all texts share eight words of eleven
    found = results["collection"]
    assert found["read"] == found["audited"] + found["known"] + found["passed_over"] + sum(found["refused"].values())
    assert (found["too_long"], 100 < results["calls"] < 200) == (0, True), "of all readings"


def test_a_defence_is_judged_by_the_attacker_that_knows_it(results: dict[str, Any], collection: dict[str, str]) -> None:
    lines = {line["name"]: line for line in results["forms"]}
    turned = lines["secret rotation, 400 known pairs"]
    assert turned["naive"]["exact"]["value"] < 0.1
    assert turned["adaptive"]["exact"]["value"] == turned["recall"]["value"] == 1
    assert lines["noise 3"]["adaptive"]["exact"]["value"] < 0.5
    assert lines["noise 3"]["recall"]["value"] < lines["noise 0.2"]["recall"]["value"] < 1
    given, count = config(collection), results["queries"]
    vectors = room.sample(given, dim=DIM, seed=SEED).vectors_nd.astype(np.float64)
    truth = nearest(vectors, vectors[:count])
    for form in forms(given, vectors, seed=SEED):
        recall, _ = recall_and_ndcg(truth, nearest(form.store(vectors), form.query(vectors[:count])))
        assert lines[form.name]["recall"]["value"] == pytest.approx(recall.mean()), form.name


def test_the_results_and_the_page_contain_texts_only_on_request(collection: dict[str, str]) -> None:
    given = [config(collection, **LITTLE, show_texts=show) for show in (False, True)]
    hidden, shown = (audit(each, Oracle(), seed=SEED) for each in given)  # type: ignore[arg-type]
    for found, visible in ((hidden, False), (shown, True)):
        page, figures = report(found)
        *groups, naive = (len(trace.x) for trace in figures["plot_frontier"].data)
        assert (sum(groups), groups[1]) == (len(found["forms"]), 1)
        assert naive < len(found["forms"]), "only those that the adaptive attacker reads otherwise"
        for written in (json.dumps(found), page, *(figure.to_json() for figure in figures.values())):
            assert ("the driver met" in written) <= visible
        assert ("the driver met" in page) is visible
        assert "need the protection of the texts" in page
        assert "need the protection" not in report(found | {"readable": found["chance"]})[0]
    assert {key: value for key, value in hidden.items() if key not in ("rows", "texts_shown")} == {
        key: value for key, value in shown.items() if key not in ("rows", "texts_shown")
    }


def test_a_trained_attacker_reads_its_form_and_is_the_strongest_if_it_reads_most(
    collection: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker that is trained on the written rows knows their texts only, and here reads what it is told."""
    small = config(collection, **FEW, attacker_data=str(tmp_path / "data"))
    plain = audit(small, Oracle(), seed=SEED)  # type: ignore[arg-type]
    drawn = room.sample(small, dim=DIM, seed=SEED)
    written = {path.stem: pq.read_table(path).to_pydict() for path in (tmp_path / "data").iterdir()}
    assert len(written) == len(plain["forms"])
    assert tuple(written["noise-9"]["text"]) == drawn.texts[40:]
    assert tuple(written["secret-rotation-50-known-pairs"]["text"]) == drawn.texts[40:90]
    np.testing.assert_allclose(written["as-it-is"]["embedding"], drawn.vectors_nd[40:], atol=1e-6)
    assert (cosines_of(np.array(written["noise-9"]["embedding"]), drawn.vectors_nd[40:]) < 0.9).all()

    class Trained(Oracle):
        def invert(self, targets: np.ndarray, **options: Any) -> Any:
            cosines.append(float(cosines_of(targets, drawn.vectors_nd[:20]).mean()))
            return SimpleNamespace(texts=drawn.texts[:20], model_calls=np.ones(20))

    cosines = list[float]()
    monkeypatch.setattr(room, "model_of", lambda name: Trained())
    found = audit(config(collection, **FEW, attackers={"noise 9": "a"}), Oracle(), seed=SEED)  # type: ignore[arg-type]
    assert "noise 9: a" in report(found)[0]
    lines = {line["name"]: line for line in found["forms"]}
    assert cosines == [pytest.approx(lines["noise 9"]["cosine"])], "it reads what its map recovers"
    assert strongest(lines["noise 9"])["value"] == lines["noise 9"].pop("trained")["exact"]["value"] == 1
    assert strongest(lines["noise 9"])["value"] < 0.5
    assert found["forms"] == plain["forms"]
    assert plain["sufficient_noise"] is not None
    assert found["sufficient_noise"] is None
    with pytest.raises(EvaluationError, match=r"noise 8.*noise 9"):
        audit(config(collection, **FEW, attackers={"noise 8": "a"}), Oracle(), seed=SEED)  # type: ignore[arg-type]


def test_vectors_that_are_stored_at_another_length_are_read_at_that_of_the_encoder(
    collection: dict[str, str], tmp_path: Path
) -> None:
    np.save(tmp_path / "long.npy", 50 * np.load(collection["vectors"]))
    long = {"vectors": str(tmp_path / "long.npy"), "attacker_data": str(tmp_path / "data")}
    given = [config({**collection, **more}, **LITTLE) for more in ({}, long)]
    one, other = (audit(each, Oracle(), seed=SEED) for each in given)  # type: ignore[arg-type]
    assert other["readable"] == one["readable"]
    written = pq.read_table(tmp_path / "data/as-it-is.parquet")["embedding"].to_pylist()
    np.testing.assert_allclose(np.linalg.norm(written, axis=1), 1, rtol=1e-6)


def test_vectors_of_another_encoder_are_refused(collection: dict[str, str], tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.random.default_rng(0).normal(size=(ROWS, DIM)))
    with pytest.raises(EvaluationError, match="median cosine"):
        audit(config(collection, vectors=str(tmp_path / "other.npy")), Oracle(), seed=SEED)  # type: ignore[arg-type]


@pytest.mark.parametrize(("reached", "cosine"), [(0.7, 0.64), (1.0, 0.91)])
def test_vectors_through_an_adapter_are_compared_with_what_it_reaches(reached: float, cosine: float) -> None:
    found: Any = SimpleNamespace(name="a", texts=["t"] * 3, vectors_nd=np.ones((3, 2)))
    model: Any = SimpleNamespace(
        no_encoder="an adapter", parts=SimpleNamespace(load_own=len), recognise=str,
        normaliser=SimpleNamespace(adapter=SimpleNamespace(about=SimpleNamespace(cosine=reached))),
        reembedded=lambda texts, vectors: (np.full(3, cosine), None),
    )  # fmt: skip
    assert room.encoder_cosine(found, model) == cosine
    cosine -= 0.02
    with pytest.raises(EvaluationError, match="median cosine"):
        room.encoder_cosine(found, model)


def test_the_noise_that_suffices_is_between_two_levels() -> None:
    def line(name: str, level: float | None, exact: float, recall: float) -> dict[str, Any]:
        read = {"exact": {"value": exact}}
        return {
            "name": name,
            "level": level,
            "naive": read,
            "adaptive": read,
            "recall": {"value": recall},
            "ndcg": {"value": recall},
        }

    lines = [line("as it is", None, 0.8, 1), line("b", 0.4, 0, 0.5), line("a", 0.1, 0.4, 0.9), line("c", 0.8, 0, 0.1)]
    found = sufficient_noise(lines)
    assert found is not None
    assert found["level"] == pytest.approx(0.1**0.125 * 0.4**0.875)
    assert found["recall"] == pytest.approx(0.9 - 0.4 * (0.35 / 0.4))
    for too_few in (lines[::2], [line("as it is", None, 0.01, 1), lines[1]]):
        assert sufficient_noise(too_few) is None


def test_the_command_writes_the_page_and_its_numbers_and_replaces_nothing(
    collection: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "model_of", lambda name: Oracle())
    params = "rows=40,compared_rows=20,queries=20,collection_rows=100,noise=[0.2],known_pairs=[50],code_dims=[]"
    options = [
        *collection.values(),
        "--rows",
        "50",
        "--params",
        params,
        "--seed",
        str(SEED),
        "-o",
        str(tmp_path / "page.html"),
    ]
    made = CliRunner().invoke(command, options)
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "page.json").read_text())["collection"]["audited"] == 50
    (tmp_path / "page.html").unlink()
    again = CliRunner().invoke(command, options)
    assert (again.exit_code, "page.json" in again.output, (tmp_path / "page.html").exists()) == (1, True, False)


def test_the_pipeline_audits_a_table_with_a_trained_run(tmp_path: Path) -> None:
    run, rng = write_run(tmp_path / "run-1"), np.random.default_rng(0)
    rows = [{"text": f"w{n % 7} w{n % 5}", "vector": rng.normal(size=RUN_DIM).tolist()} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "no vector"}]))
    given = {**SMALL, "vectors": str(tmp_path / "rows.jsonl"), "model": str(run), "code_dims": [], "noise": [0.5]}
    catalog = Session(tmp_path / "data", audit=given).run(create_pipeline())
    found = catalog.load("audit_results")["collection"]
    assert found["read"] == 61
    assert found["refused"] == {"no_vector": 1}
    assert (found["encoder_cosine"], found["audited"], found["known"]) == (None, 30, 30)
    assert "<html" in catalog.load("audit_report")[:100].lower()
    assert [*catalog.load("audit_figures")] == ["plot_frontier"]
