"""Probabilities of inverted texts: where they are found, what a request does with them, and damaged files."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.inference.runs import BagEncoder, make

from mm_ldlm.app.console import encoded
from mm_ldlm.core import CheckpointError, SamplingError, to_dict
from mm_ldlm.core.files import write_json
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.calibration import CALIBRATION, Calibration, Curve, features_of
from mm_ldlm.inference.exporting import export, source_of
from mm_ldlm.training.checkpoints.provenance import weights_of

COLUMNS = {"p_exact", "p_up_to_case", "p_content_words"}
FITTED = Calibration(
    weights={}, texts=9, up_to_case=Curve(-1.0, (1.0, 2.0, 0.1), 0.99), exact=Curve(2.0, (0.0, 0.0, 0.3), 0.9),
    content_words=Curve(0.0, (0.0, 1.0, 0.0), 0.9),
)  # fmt: skip


@pytest.fixture(scope="module")
def calibrated() -> MMLDLM:
    made = make()
    return MMLDLM(replace(made.parts, calibration=FITTED), BagEncoder())


def test_texts_have_probabilities_where_they_are_embedded_again(calibrated: MMLDLM, unit_latents: Any) -> None:
    latents = unit_latents(12)
    plain, found = calibrated.invert(latents), calibrated.invert(latents, reembed=True)
    assert not COLUMNS & {*plain.to_frame()}
    assert {*found.to_frame()} >= COLUMNS
    expected = FITTED.probabilities(found.cosines, found.log_probs)
    np.testing.assert_array_equal(found.p_content_words, expected["content_words"])
    same, right, content = (
        curve(features_of(found.cosines, found.log_probs))
        for curve in (FITTED.up_to_case, FITTED.exact, FITTED.content_words)
    )
    assert expected["exact"] == pytest.approx(same * right)
    assert expected["content_words"] == pytest.approx(same + (1 - same) * content)
    assert FITTED.probabilities([1.0], [0.0])["exact"] == pytest.approx(0.99 * 0.9), "no more than was ever found"
    assert not COLUMNS & {*make().invert(latents, reembed=True).to_frame()}


@pytest.mark.parametrize("right", ["exact", "up_to_case", "content_words"])
@pytest.mark.parametrize(
    "how", [{}, {"samples": 3, "temperature": 1.0}, {"samples": 2, "temperature": 1.0, "keep": "all"}]
)
def test_a_text_is_empty_exactly_where_the_model_abstains(
    right: Any, how: dict[str, Any], calibrated: MMLDLM, unit_latents: Any
) -> None:
    latents = unit_latents(12)
    every = calibrated.invert(latents, reembed=True, **how)
    values = getattr(every, f"p_{right}")
    least = float(np.median(values))
    found = calibrated.invert(latents, min_probability=least, right=right, **how)
    assert [*found.texts] == [text if value >= least else "" for text, value in zip(every.texts, values, strict=True)]
    assert [bool(ids) for ids in found.tokens] == [bool(text) for text in found.texts]
    assert len(encoded(found, found.texts, "txt").decode().splitlines()) == len(every)
    assert any(found.texts)
    assert not all(found.texts)


def test_a_run_without_calibration_cannot_abstain(unit_latents: Any, refuses: Callable[..., Any]) -> None:
    with refuses(SamplingError, "min_probability"):
        make().invert(unit_latents(1), min_probability=0.9)


# -- files -------------------------------------------------------------------------------------------------------------


def kept(run: Path, **changes: Any) -> dict[str, Any]:
    """Write the calibration of a run, with changes; return the document."""
    weights = weights_of(run / "checkpoints" / "step-00000003", use_ema=True)
    document = {**to_dict(replace(FITTED, weights=weights)), **changes}
    (run / "evaluation").mkdir()
    write_json(run / "evaluation" / CALIBRATION, document)
    return document


def test_a_calibration_belongs_to_its_weights_and_is_exported_with_them(run_folder: Path, tmp_path: Path) -> None:
    document = kept(run_folder)
    found = MMLDLM.from_run(run_folder).parts.calibration
    assert to_dict(found) == document
    assert MMLDLM.from_run(run_folder / "checkpoints" / "step-00000003").parts.calibration == found
    assert MMLDLM.from_run(run_folder, use_ema=False).parts.calibration is None
    assert MMLDLM.from_run(shutil.copytree(run_folder, tmp_path / "other")).parts.calibration == found
    for name, use_ema in {"averaged": True, "last": False}.items():
        export(source_of(run_folder, tmp_path / name, use_ema=use_ema), tmp_path / name)
        assert MMLDLM.from_pretrained(tmp_path / name).parts.calibration == (found if use_ema else None)
    document["weights"]["digest"] = "0" * 32
    write_json(run_folder / "evaluation" / CALIBRATION, document)
    assert MMLDLM.from_run(run_folder).parts.calibration is None, "of other weights"


@pytest.mark.parametrize(
    "change",
    [
        {"up_to_case": {"bias": 0.0, "slopes": [-1.0, 0.0, 0.0], "most": 0.9}},
        {"exact": {"bias": 0.0, "slopes": [1.0], "most": 0.9}},
        {"content_words": {"bias": 0.0, "slopes": [1.0, 1.0, 1.0], "most": 1.1}},
        {"texts": "6"},
        {"more": 1},
    ],
)
def test_a_damaged_calibration_is_refused(
    change: dict[str, Any], run_folder: Path, refuses: Callable[..., Any]
) -> None:
    kept(run_folder, **change)
    with refuses(CheckpointError, CALIBRATION):
        MMLDLM.from_run(run_folder)


def test_numbers_that_are_not_finite_are_refused(run_folder: Path, refuses: Callable[..., Any]) -> None:
    document = kept(run_folder)
    text = json.dumps(document).replace(json.dumps(document["exact"]["bias"]), "1e999", 1)
    (run_folder / "evaluation" / CALIBRATION).write_text(text)
    with refuses(CheckpointError, CALIBRATION):
        MMLDLM.from_run(run_folder)
