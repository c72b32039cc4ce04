"""The sentence that is written while training: at an interval, without any change of the training."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.training import conftest, task

from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.extras.progress import preview
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.training import loop
from mm_ldlm.training.build import build
from mm_ldlm.training.data import open_data
from mm_ldlm.training.spec import TrainingSpec

dataset, planned = conftest.dataset, conftest.planned
L2T = {"kind": "multimodal", "mode": "l2t"}


@pytest.fixture
def run_of(planned: Callable[..., TrainingSpec], tmp_path: Path) -> Callable[..., loop.Run]:
    def made(objective: Any = None, model: Any = None, **training: Any) -> loop.Run:
        spec = planned(objective=objective or L2T, model=model, **{"show_every_seconds": 1e-9, **training})
        root = tmp_path / "runs"
        data = open_data(spec, root)
        return build(spec, root=root, data=data, process=task.ALONE, tracker=task.Recorder())

    return made


@pytest.mark.parametrize(
    ("objective", "model", "rebuilds"),
    [(L2T, None, True), ({"kind": "multimodal", "mode": "unconditional"}, None, False),
     ({"kind": "text_diffusion"}, {"kind": "dit"}, False)],
)  # fmt: skip
def test_a_held_out_sentence_is_rebuilt_or_a_text_is_written_from_noise(
    run_of: Callable[..., loop.Run], dataset: Dataset, objective: Any, model: Any, rebuilds: bool
) -> None:
    run = run_of(objective, model)
    loop.train(run)
    events = run.tracker.of("preview")
    assert events[0]["step"] == 1
    assert events[-1]["step"] == 4
    held_out = set(dataset.records.table(dataset.rows("validation")).column("text").to_pylist())
    assert all((event["original"] in held_out) is rebuilds for event in events)
    texts = []
    for run.observers["preview"].seed in (0, 0, 1):  # type: ignore[attr-defined]
        texts.append(run.observers["preview"].texts()[0])
    assert (texts[0] == texts[1], texts[0] == texts[2]) == (True, rebuilds), "from noise of the seed"


def test_only_the_first_rank_of_a_model_that_it_holds_shows_texts_of_a_run_that_writes_them(
    run_of: Callable[..., loop.Run],
) -> None:
    run = run_of()
    for rank, world, parallel in ((0, 1, "fsdp"), (0, 2, "ddp"), (0, 2, "fsdp"), (1, 2, "ddp")):
        run.process = dataclasses.replace(run.process, rank=rank, world=world)
        run.spec = dataclasses.replace(run.spec, training=dataclasses.replace(run.config, parallel=parallel))
        assert (preview.preview(run) is not None) is (rank == 0 and (parallel == "ddp" or world == 1))
    able = Capabilities(uses=frozenset(["unconditional"]), joint_orders=("latent_first",), trained_as="")
    assert preview.task_of(able) is None, "its texts need a latent"


def test_the_sentence_has_the_median_length_and_no_unknown_word_if_possible(run_of: Callable[..., loop.Run]) -> None:
    shown, words = run_of().observers["preview"], [[5] * 2, [5, 6, 7], [7, 8, 9], [5] * 9, [5] * 30]
    lengths = np.array([len(each) for each in words])
    shown.source = SimpleNamespace(lengths=lengths, tokens=lambda row, length: [words[row[0]]])  # type: ignore[attr-defined]
    assert [int(shown._usual_row(unknown)[0]) for unknown in (None, 6, 7)] == [1, 2, 0]  # type: ignore[attr-defined]


def test_a_preview_changes_nothing_of_the_training(run_of: Callable[..., loop.Run]) -> None:
    shown, silent = run_of(run_name="shown"), run_of(run_name="silent", show_every_seconds=None)
    assert "preview" not in silent.observers
    for run in (shown, silent):
        loop.train(run)
        assert run.learner.root.training
    assert task.largest_difference(task.held(shown), task.held(silent)) == 0


def test_an_error_ends_the_previews_only(run_of: Callable[..., loop.Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of()
    monkeypatch.setattr(preview.TextTokenizer, "load", lambda path: 1 / 0)
    assert loop.train(run) == "finished"
    (event,) = run.tracker.of("preview_failed")
    assert event["reason"].startswith("ZeroDivisionError")
    assert run.learner.root.training
    assert torch.is_grad_enabled()


def test_slow_sentences_are_shown_less_often(run_of: Callable[..., loop.Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run, now = run_of(show_every_seconds=10), [100.0]
    write = run.observers["preview"]._write

    def slow(*given: Any) -> list[int]:
        now[0] += 5.0
        return write(*given)

    monkeypatch.setattr(preview.time, "monotonic", lambda: now[0])
    run.observers["preview"]._write = slow  # type: ignore[method-assign]
    shown = []
    for step in range(1, 3000):
        now[0] += 1.0
        run.observers["preview"].after_step(step, last=False)
        shown.append(len(run.tracker.of("preview")))
    assert shown[0] == 1
    assert shown[-1] == pytest.approx(3000 * preview.MOST / 5, abs=2)
