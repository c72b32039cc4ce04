"""The nearest known name, in every message about an unknown one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mm_ldlm.extras.gpu_check.registry import chosen
from mm_ldlm.inference.inputs import check_choice

from mm_ldlm.app.parameters import check_files, check_parameters
from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.core.messages import LONGEST, about, duration, nearest, shorten, show
from mm_ldlm.evaluation.config import InversionConfig
from mm_ldlm.extras.comparison.config import ComparisonConfig, MemberConfig
from mm_ldlm.inference.loading import load_run
from mm_ldlm.models.registry import MODELS
from mm_ldlm.sampling.config import SamplingConfig, SearchConfig

SAMPLING = {
    "text": {"kind": "confidence"}, "latent": {"kind": "ddim"},
    "unconditional": {"text": {"kind": "confidence"}, "latent": {"kind": "ddim"}},
}  # fmt: skip


def test_the_nearest_name_is_suggested_where_one_is_near() -> None:
    assert nearest("trainnig", ["training", "sampling"]) == " Did you mean 'training'?"
    assert nearest("x", ["training"]) == nearest("training", []) == nearest(None, ["a"]) == ""
    assert nearest("a" * 10**6, ["b" * 10**6]) == ""


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: check_parameters({"trainnig": {}}), "training"),
        (lambda: parse(SearchConfig, {"candidats": 2}, at="search"), "candidates"),
        (lambda: parse(SamplingConfig, {**SAMPLING, "tasks": ["unconditonal"]}, at="sampling"), "unconditional"),
        (lambda: parse(SamplingConfig, {**SAMPLING, "split": "tests"}, at="sampling"), "test"),
        (lambda: parse_kind(MODELS, {"kind": "mmdti"}, at="model"), "mmdit"),
        (lambda: parse(InversionConfig, {"sweep": [{"label": "fast", "sampler": {"kind": "confidence"}}],
                                         "reference": "fats"}, at="inversion"), "fast"),
        (lambda: ComparisonConfig(members=(MemberConfig(name="mdlm"),), baseline="mdml"), "mdlm"),
        (lambda: chosen(["atention"]), "attention"),
        (lambda: check_choice("slrep", ["slerp", "lerp"], name="path"), "slerp"),
    ],
)  # fmt: skip
def test_every_message_about_an_unknown_name_suggests_one(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(MMLDLMError) as error:
        call()
    assert f"Did you mean '{name}'?" in str(error.value)
    assert "?." not in str(error.value)


def test_a_missing_file_or_folder_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "run-abc").mkdir()
    (tmp_path / "latents.npy").touch()
    with pytest.raises(MMLDLMError, match=r"no such run folder\. Did you mean 'run-abc'"):
        load_run(tmp_path / "run-abd")
    section = parse(SamplingConfig, {**SAMPLING, "l2t": {"files": [str(tmp_path / "latent.npy")]}}, at="sampling")
    with pytest.raises(MMLDLMError, match=r"'sampling\.l2t\.files\.0': .* Did you mean 'latents\.npy'\?"):
        check_files({"sampling": section}, read={"sampling"})


def test_durations_are_exact_and_estimates_are_round() -> None:
    seconds = (0.4, 42.0, 89.0, 421.0, 5_399.0, 7_500.0)
    assert [duration(value) for value in seconds] == ["0 s", "42 s", "89 s", "7 min 01 s", "89 min 59 s", "2 h 05 min"]
    assert [about(value) for value in seconds] == [
        "about 5 s", "about 40 s", "about 90 s", "about 7 min", "about 1 h 30 min", "about 2 h 05 min",
    ]  # fmt: skip


def test_a_text_at_the_limit_is_whole_and_a_longer_one_has_its_beginning_and_its_end() -> None:
    assert shorten("a" * LONGEST) == "a" * LONGEST
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("0123456789x", 10) == "01234 … 6789x"


def test_a_shown_value_has_no_credentials_in_any_part_of_it() -> None:
    class Own:
        def __repr__(self) -> str:
            return "Own(https://me:secret@host/x)"

    for value in (
        Own(),
        [Own()],
        {"a": Own()},
        {"https://me:secret@host": 1},
        ("https://me:secret@host",),
        {"token": "secret"},
    ):
        assert "secret" not in show(value), value
        assert "***" in show(value), value
    assert show(tuple(range(12))) == str(tuple(range(12)))
    assert show({"token": ""}) == "{'token': ''}"
