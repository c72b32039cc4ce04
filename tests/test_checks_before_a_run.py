"""The check of all parameters before a run, with sections in whose place stands only what it reads of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mm_ldlm.app.parameters
from mm_ldlm.app.parameters import (
    _named_files,
    _nearest_file,
    _texts_to_embed,
    _vector_checks,
    check_files,
    check_parameters,
)
from mm_ldlm.core.config import PositiveInt, config
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.encoders import parse_encoder

# -- the sections ------------------------------------------------------------------------------------------------------


@config
class Room:
    size: PositiveInt = 1


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"one": "here:Room", "two": "here:Room"})
    monkeypatch.setattr(mm_ldlm.app.parameters, "_load", lambda path: Room)


GOOD: dict[str, Any] = {"seed": 3, "one": {"size": 2}, "two": {}}
KNOWN = "Known here: one, two, seed, data, results, run."


@pytest.mark.usefixtures("rooms")
@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"seed": -1}, ["parameter 'seed': expected a number of at least 0 and below 2**63, found -1."]),
        ({"seed": 2**63}, [f"parameter 'seed': expected a number of at least 0 and below 2**63, found {2**63}."]),
        ({"seed": 1.0}, ["parameter 'seed': expected int, found 1.0."]),
        ({"seed": False}, ["parameter 'seed': expected int, found False."]),
        ({"data": True}, ["parameter 'data': expected str, found True."]),
        ({"results": 3}, ["parameter 'results': expected str, found 3."]),
        ({"run": ["a"]}, ["parameter 'run': expected str, found ['a']."]),
        ({"on": 1}, [f"parameter 'on' is not known. Did you mean 'one'? {KNOWN}"]),
        ({"zzz": {}}, [f"parameter 'zzz' is not known. {KNOWN}"]),
        ({"one": {"size": 0}, "two": 3, "data": 4},
         ["parameter 'data': expected str, found 4.",
          "parameter 'one.size': Input should be greater than 0 (found 0).",
          "parameter 'two': expected a mapping of Room, found 3."]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_parameters_is_listed_in_order(change: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        check_parameters({**GOOD, **change})
    assert str(error.value).splitlines() == lines


@pytest.mark.usefixtures("rooms")
def test_sections_are_returned_by_name_without_the_plain_values() -> None:
    for seed in (0, 2**63 - 1):
        assert check_parameters({**GOOD, "seed": seed, "data": "d", "results": "r"}) == {
            "one": Room(size=2), "two": Room()
        }  # fmt: skip
    with pytest.raises(ConfigurationError) as error:
        check_parameters({"one": {}})
    assert str(error.value).splitlines() == [
        "parameter 'seed' is missing and has no default.",
        "parameter 'two' is missing: no file under conf/base/parameters sets it.",
    ]


# -- vectors and encoders ----------------------------------------------------------------------------------------------

LOCAL = parse_encoder({"kind": "local", "name": "minilm"})
GIVEN = parse_encoder({"kind": "precomputed", "name": "mine", "dim": 384, "normalised": True})
BOTH = parse_encoder(
    {"kind": "precomputed", "name": "mine", "dim": 384, "normalised": True, "for_new_texts": {"kind": "local"}}
)
NONE = (
    "the vectors of the encoder 'mine' come from the sources, and no encoder is named that can embed other texts. Set "
    "encoder.for_new_texts (for example {kind: local, name: minilm}) if there is one."
)


def sources(*with_vectors: bool) -> Any:
    made = [SimpleNamespace(label=f"source {i}", has_vectors=has) for i, has in enumerate(with_vectors)]
    return SimpleNamespace(sources=made)


def needing(*stores: str, of_model: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "objective": SimpleNamespace(fields=stores, stores=()), "model": SimpleNamespace(stores=of_model)
    }  # fmt: skip


def test_sources_and_the_encoder_agree_on_who_makes_the_vectors() -> None:
    for encoder, has in ((LOCAL, False), (GIVEN, True), (BOTH, True)):
        assert _vector_checks({"encoder": encoder, "ingestion": sources(has, has), **needing("latents")}) == []
    assert _vector_checks({"encoder": LOCAL, "ingestion": sources(False, True, True), **needing()}) == [
        f"parameter 'ingestion.sources.{place}': the source 'source {place}' contains vectors, but encoder.kind is "
        "'local', which would compute others. Set encoder to {kind: precomputed, name: …, dim: …, normalised: …}, or "
        "remove the source's vectors."
        for place in (1, 2)
    ]
    for encoder in (GIVEN, BOTH):
        assert _vector_checks({"encoder": encoder, "ingestion": sources(True, False), **needing()}) == [
            "parameter 'ingestion.sources.1': expected a source with vectors, because encoder.kind is 'precomputed', "
            "found none in 'source 1'. Set its vector_column (a column of a table) or vectors (the .npy file of a text "
            "file), or choose an encoder that embeds texts."
        ]


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (needing("latents"), None),
        (needing("token_states"), "token_states"),
        (needing("latents", of_model=("token_vectors",)), "token_vectors"),
        (needing("token_states", of_model=("token_vectors",)), "token_states, token_vectors"),
        (needing("token_clusters"), "token_vectors"),
    ],
)
def test_what_only_an_encoder_computes_needs_one(typed: dict[str, Any], read: str | None) -> None:
    expected = [] if read is None else [
        f"parameter 'encoder.for_new_texts': the model or the objective reads {read}, which an encoder computes, but "
        f"{NONE} Otherwise set model.token_vectors to random, or choose another objective."
    ]  # fmt: skip
    assert _vector_checks({"encoder": GIVEN, "ingestion": sources(True), **typed}) == expected
    assert _vector_checks({"encoder": BOTH, "ingestion": sources(True), **typed}) == []
    assert _vector_checks({"encoder": LOCAL, "ingestion": sources(False), **typed}) == []


TEXTS = {"l2t": "l2t.texts", "infill": "infill.latents_of", "edit": "edit.sources", "interpolate": "interpolate.starts"}


@pytest.mark.parametrize("task", [*TEXTS, "t2l", "unconditional"])
def test_texts_that_a_task_embeds_are_named_by_their_own_key(task: str) -> None:
    asked: list[str] = []

    def sampling(filled: str | None, *, requested: bool = True) -> Any:
        def section(*names: str, of: str) -> Any:
            return SimpleNamespace(**{name: ("a",) if f"{of}.{name}" == filled else () for name in names})

        return SimpleNamespace(
            requests=lambda name: asked.append(name) or requested, l2t=section("texts", "files", of="l2t"),
            infill=section("latents_of", "texts", of="infill"), edit=section("sources", "targets", of="edit"),
            interpolate=section("starts", "ends", of="interpolate"),
        )  # fmt: skip

    for key in TEXTS.values():
        own = key == TEXTS.get(task)
        expected = f"parameter 'sampling.{key}': the encoder embeds these texts, but {NONE}" if own else None
        assert _texts_to_embed({"encoder": GIVEN, "sampling": sampling(key)}, task) == expected
        for encoder in (LOCAL, BOTH):
            assert _texts_to_embed({"encoder": encoder, "sampling": sampling(key)}, task) is None
        assert _texts_to_embed({"encoder": GIVEN, "sampling": sampling(key, requested=False)}, task) is None
        assert _texts_to_embed({"sampling": sampling(key)}, task) is None
    assert set(asked) <= {task}


# -- files -------------------------------------------------------------------------------------------------------------


def source(path: str | None, *paths: str, vectors: str | None = None) -> Any:
    return SimpleNamespace(path=path, paths=paths, vectors=vectors)


def ingestion(path: str | None, *made: Any) -> Any:
    return SimpleNamespace(path=path, with_path_in_source=lambda: SimpleNamespace(sources=made), sources=())


SECTIONS: dict[str, Any] = {
    "ingestion": ingestion(
        None, source("a", "a", "b"), source(None, vectors="v.npy"), source("c", "c", vectors="beside")
    ),
    "tokenizer": SimpleNamespace(path="t.json"),
    "evaluation": SimpleNamespace(
        sts=SimpleNamespace(
            sets=[SimpleNamespace(path=path, format=kind) for path, kind in (
                (None, "starter"), ("hub/x", "hub"), ("s.tsv", "stsb"), ("z.tsv", "csv"))],
            files={"one": "1.tsv", "two": "2.tsv"},
        ),
        likelihood=SimpleNamespace(other_texts=[SimpleNamespace(path="o.txt"), SimpleNamespace(path="p.txt")]),
    ),
    "sampling": SimpleNamespace(l2t=SimpleNamespace(files=("l.npy", "m.npy")), t2l=SimpleNamespace(files=("t.txt",))),
}  # fmt: skip
NAMED = {
    "ingestion": [("ingestion.sources.0.path", "a"), ("ingestion.sources.0.path", "b"),
                  ("ingestion.sources.1.vectors", "v.npy"), ("ingestion.sources.2.path", "c"),
                  ("tokenizer.path", "t.json")],
    "evaluation": [("evaluation.sts.sets.2.path", "s.tsv"), ("evaluation.sts.sets.3.path", "z.tsv"),
                   ("evaluation.sts.files.one", "1.tsv"), ("evaluation.sts.files.two", "2.tsv"),
                   ("evaluation.likelihood.other_texts.0.path", "o.txt"),
                   ("evaluation.likelihood.other_texts.1.path", "p.txt")],
    "sampling": [("sampling.l2t.files.0", "l.npy"), ("sampling.l2t.files.1", "m.npy"),
                 ("sampling.t2l.files.0", "t.txt")],
}  # fmt: skip


@pytest.mark.parametrize(
    "read",
    [(), ("ingestion",), ("evaluation",), ("sampling",), ("tokenizer",), ("ingestion", "evaluation", "sampling")],
)
def test_every_file_of_the_sections_that_are_read_is_named(read: tuple[str, ...]) -> None:
    assert list(_named_files(SECTIONS, set(read))) == [pair for name in read for pair in NAMED.get(name, [])]


def test_a_path_that_replaces_that_of_a_source_is_named_by_its_own_key() -> None:
    replaced = ingestion("x", source("a", "x"), source(None), source("b", "x", vectors="v"))
    assert list(_named_files({"ingestion": replaced}, {"ingestion"})) == [
        ("ingestion.path", "x"), ("ingestion.path", "x"), ("ingestion.sources.2.vectors", "v")
    ]  # fmt: skip
    own = {"ingestion": ingestion(None), "tokenizer": SimpleNamespace(path=None)}
    assert list(_named_files(own, {"ingestion"})) == []


def test_a_missing_file_is_named_with_the_place_it_was_looked_for_and_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latents.npy").touch()
    files = SimpleNamespace(files=("latent.npy", "latents.npy", "none/x", "a\0b", "lat*.npy", "zzz*.npy"))
    sampling = SimpleNamespace(l2t=files, t2l=SimpleNamespace(files=()))
    with pytest.raises(ConfigurationError) as error:
        check_files({"sampling": sampling}, read={"sampling"})
    lines = str(error.value).splitlines()
    assert lines[:2] == [
        f"parameter 'sampling.l2t.files.0': 'latent.npy' does not exist (looked from {tmp_path}). Did you mean "
        "'latents.npy'? Correct it or put the file there.",
        f"parameter 'sampling.l2t.files.2': 'none/x' does not exist (looked from {tmp_path}). Correct it or put the "
        "file there.",
    ]
    assert lines[2] == "and 2 more: parameter 'sampling.l2t.files.3'; parameter 'sampling.l2t.files.5'"
    assert _nearest_file(str(tmp_path / "latentz.npy")) == " Did you mean 'latents.npy'?"
    assert _nearest_file(str(tmp_path / "none" / "latentz.npy")) == _nearest_file("a\0/b") == ""


@pytest.mark.parametrize(
    ("made", "another"),
    [((source("none.gz", "none.gz"), source(None)), ", or give another one by `--params ingestion.path=FILE`"),
     ((source("none.gz", "none.gz"), source("b", ".")), "")],
)  # fmt: skip
def test_a_missing_file_of_the_only_source_can_be_replaced(
    made: tuple[Any, ...], another: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new user of `tatoeba` has no such file."""
    monkeypatch.chdir(tmp_path)
    typed: Any = {"ingestion": ingestion(None, *made)}
    typed["ingestion"].engine = SimpleNamespace(missing=lambda: None)
    with pytest.raises(ConfigurationError) as error:
        check_files(typed, read={"ingestion"})
    assert str(error.value) == (
        f"parameter 'ingestion.sources.0.path': 'none.gz' does not exist (looked from {tmp_path}). Correct it or put "
        f"the file there{another}."
    )


def test_engines_and_encoders_are_asked_where_their_own_section_is_read() -> None:
    def engine(name: str) -> Any:
        return SimpleNamespace(engine=SimpleNamespace(missing=lambda: f"no {name}."))

    encoder = SimpleNamespace(missing=lambda: "parameter 'encoder': nothing there.")
    typed = {"ingestion": engine("ray"), "embedding": engine("slurm"), "encoder": encoder, **needing("latents")}
    typed["ingestion"].with_path_in_source = lambda: SimpleNamespace(sources=())
    expected = {
        "ingestion": "parameter 'ingestion.engine.kind': no ray.",
        "embedding": "parameter 'encoder': nothing there.\nparameter 'embedding.engine.kind': no slurm.",
    }
    for section, message in expected.items():
        with pytest.raises(ConfigurationError) as error:
            check_files(typed, read={section})
        assert str(error.value) == message
    with pytest.raises(ConfigurationError) as error:
        check_files({**typed, **needing("images")}, read={"embedding"})
    assert str(error.value) == "parameter 'embedding.engine.kind': no slurm."
    check_files(typed, read={"encoder", "training"})
