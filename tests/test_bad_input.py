"""Bad input of users: errors are reported before any work, or instead of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mm_ldlm.core.errors import ConfigurationError, MMLDLMError, SourceError, purposeful


@pytest.fixture
def refused(workshop: Path, tmp_path: Path) -> Callable[..., str]:
    """Run a pipeline of the test environment with overrides; the message of the error that it must end in."""

    def run(kind: type[MMLDLMError], pipeline: str = "ingestion", env: str = "test", **overrides: Any) -> str:
        bootstrap_project(workshop)
        runtime = {"data": str(tmp_path / "data"), "tracking": {"enabled": False}, **overrides}
        with (
            pytest.raises(Exception) as caught,
            KedroSession.create(workshop, env=env, runtime_params=runtime) as session,
        ):
            session.run(pipeline_names=[pipeline])
        error = purposeful(caught.value)
        assert isinstance(error, kind), repr(caught.value)
        if kind is ConfigurationError:
            assert not (tmp_path / "data").exists(), "something ran before the parameters were refused"
        return str(error)

    return run


def text_source(path: Path | str) -> dict[str, Any]:
    return {"sources": [{"kind": "text", "path": str(path)}]}


def test_a_misspelt_parameter(refused: Callable[..., str]) -> None:
    message = refused(ConfigurationError, training={"optimizer": {"learning_rate": 1e-3}})
    assert "parameter 'training.optimizer.learning_rate' is not known" in message
    message = refused(ConfigurationError, trainig={"max_steps": 3})
    assert "parameter 'trainig' is not known. Did you mean 'training'?" in message


def test_a_wrong_value(refused: Callable[..., str]) -> None:
    message = refused(ConfigurationError, "reporting", training={"max_steps": 0})
    assert message.startswith("parameter 'training.max_steps'")
    assert "found 0" in message


def test_a_misspelt_environment(refused: Callable[..., str]) -> None:
    message = refused(ConfigurationError, env="tset")
    assert "environment 'tset' is not known. Did you mean 'test'?" in message


@pytest.mark.parametrize("key", ["latent_dim", "max_length", "vocab_size"])
def test_the_shape_of_the_data_is_no_parameter_of_the_model(refused: Callable[..., str], key: str) -> None:
    message = refused(ConfigurationError, "training", model={key: 32})
    assert f"parameter 'model.{key}' is not known" in message


def test_a_model_that_the_objective_cannot_train(refused: Callable[..., str]) -> None:
    message = refused(ConfigurationError, "reporting", model={"kind": "dit"})
    assert "parameter 'objective.kind' is 'multimodal'" in message
    assert "found 'model.kind' 'dit'" in message


def test_a_misspelt_kind(refused: Callable[..., str]) -> None:
    message = refused(ConfigurationError, sampling={"text": {"kind": "confidance"}})
    assert "parameter 'sampling.text.kind'" in message
    assert "Did you mean 'confidence'?" in message


def test_a_missing_file(refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused(ConfigurationError, ingestion=text_source(tmp_path / "no" / "corpus.txt"))
    assert message.startswith("parameter 'ingestion.sources.0.path': ")
    assert "corpus.txt' does not exist" in message


def test_a_missing_file_of_a_later_pipeline(refused: Callable[..., str]) -> None:
    message = refused(ConfigurationError, "validation", evaluation={"sts": {"files": {"dev": "no/dev.tsv"}}})
    assert "parameter 'evaluation.sts.files.dev': 'no/dev.tsv' does not exist" in message
    message = refused(ConfigurationError, "sampling", sampling={"t2l": {"files": ["no/texts.txt"]}})
    assert "parameter 'sampling.t2l.files.0': 'no/texts.txt' does not exist" in message


def test_a_data_folder_that_is_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refused(ConfigurationError, data=str(tmp_path / "file"))
    assert "the data folder cannot be written to" in message
    assert "--params data=FOLDER" in message


def test_a_layout_that_is_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a\n")
    source = {"kind": "layout", "path": str(tmp_path / "corpus.txt")}
    assert "neither a folder nor a .zip" in refused(SourceError, ingestion={"sources": [source]})


def test_an_empty_corpus(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    assert "empty" in refused(SourceError, ingestion=text_source(tmp_path / "empty.txt")).lower()


def test_a_corpus_whose_lines_are_all_too_long(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"{i} " + "word " * 200 + "\n" for i in range(50)))
    message = refused(SourceError, ingestion=text_source(tmp_path / "long.txt"))
    assert "tokenizer.max_length" in message or "long" in message


def test_a_file_that_is_not_utf8(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("".join(f"größe Nummer {i}\n" for i in range(200)).encode("latin-1"))
    message = refused(SourceError, ingestion=text_source(tmp_path / "latin.txt"))
    assert "UTF-8" in message or "utf-8" in message
