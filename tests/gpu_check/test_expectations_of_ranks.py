"""Each expectation of the checks of several processes fails alone, and what a launched rank is given."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.extras.gpu_check import rank, ranks, task
from mm_ldlm.extras.gpu_check.outcome import Finding, Setting

INF = math.inf


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", tmp_path)


RANKS: dict[str, Any] = {
    "collectives": {"wrong": [], "world": 2, "backend": "gloo", "active": True, "gigabytes_per_second": 3.5},
    "moved": {"model": 0.0, "ema": 0.0, "optimizer": 0.0},
    "trained": {"model": 0.5, "ema": 0.0, "optimizer": 0.0},
    "skips": [{"step": 3, "reason": "NaN on rank 1"}],
    "several": [2.0, 1.0], "one": [2.0, 1.0],
}  # fmt: skip


def scripted_ranks(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []

    def start(setting: Setting, spec: Any, *, root: Path, **more: Any) -> None:
        started.append((root.name, spec is None, more))
        if spec is None:
            (root / "collectives.json").write_text(json.dumps(found["collectives"]))

    def losses(path: Path) -> list[dict[str, Any]]:
        return [{"loss": x} for x in found[path.parent.parent.name]] + [{"other": 1}]

    def difference(a: Path, first: int, b: Path, second: int) -> dict[str, float]:
        assert a.name == b.name == "several"
        return found[{(3, 4): "moved", (4, 6): "trained"}[first, second]]

    monkeypatch.setattr(ranks, "start", start)
    monkeypatch.setattr(ranks, "_difference", difference)
    monkeypatch.setattr(ranks, "read_events", lambda path, kind: found["skips"])
    monkeypatch.setattr(ranks, "read_metrics", losses)
    monkeypatch.setattr(ranks, "train_case", lambda spec, *, root, fault: started.append((root.name, fault)))
    return started


def test_the_last_rank_is_poisoned_and_the_one_process_likewise(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = scripted_ranks(RANKS, monkeypatch)
    found = ranks.ranks(setting)
    poison = {"kind": "nan", "step": 3, "rank": 1}
    assert started == [
        (setting.folder.name, True, {"processes": 2, "megabytes": 1.0}),
        ("several", False, {"processes": 2, "fault": poison}), ("one", {**poison, "rank": 0}),
    ]  # fmt: skip
    assert found == Finding({
        "ranks": 2, "backend": "gloo", "all-reduce GB per second": 3.5, "change by a poisoned step": 0.0,
        "loss error to one process": 0.0, "tolerance": 1e-3,
    })  # fmt: skip


def test_on_gpus_there_is_one_process_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {**RANKS["collectives"], "world": 4, "backend": "nccl"}
    skips = [{"step": 3, "reason": "NaN on rank 3"}]
    started = scripted_ranks({**RANKS, "collectives": measured, "skips": skips}, monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert ranks.ranks(Setting("cuda", tmp_path)).faults == ()
    assert started[0][2] == {"processes": 4, "megabytes": 256.0}
    assert started[1][2]["fault"]["rank"] == 3


COLLECTIVES = RANKS["collectives"]


@pytest.mark.parametrize(("changes", "words"), [
    ({"collectives": {**COLLECTIVES, "wrong": ["sum", "gather"]}}, "wrong results of sum, gather over 2"),
    ({"collectives": {**COLLECTIVES, "active": False}}, "wrong results of no operation over 2"),
    ({"collectives": {**COLLECTIVES, "world": 1}}, "over 2 ranks of gloo, found wrong results of no operation over 1"),
    ({"moved": {"model": 0.0, "ema": 0.25, "optimizer": 0.0}}, "found a change of 0.25 in that step, 0.5 afterwards"),
    ({"moved": {"model": 0.0, "ema": 0.0, "optimizer": INF}}, "found a change of inf in that step"),
    ({"trained": {"model": 0.0, "ema": 0.5, "optimizer": 0.5}}, "in that step, 0 afterwards"),
    ({"skips": []}, "skips that name the rank in steps []"),
    ({"skips": [{"step": 3, "reason": "NaN on rank 0"}]}, "skips that name the rank in steps []"),
    ({"skips": RANKS["skips"] + [{"step": 5, "reason": "NaN on rank 1"}]}, "in steps [3, 5]"),
    ({"skips": [{"step": 4, "reason": "NaN on rank 1"}]}, "in steps [4]"),
    ({"several": [2.0, 1.002]}, "within 0.001 of one, found 0.002"),
    ({"several": [1.99, 1.0]}, "within 0.001 of one, found 0.005"),
    ({"several": [math.nan, 1.0]}, "the losses of 2 processes within 0.001 of one, found"),
    ({"one": [math.nan, 1.0]}, "the losses of 2 processes within 0.001 of one, found"),
    ({"several": [2.0, math.nan]}, "within 0.001 of one, found inf"),
    ({"several": [2.0]}, "within 0.001 of one, found inf"),
])  # fmt: skip
def test_each_expectation_of_several_ranks_fails_alone(
    changes: dict[str, Any], words: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_ranks({**RANKS, **changes}, monkeypatch)
    (fault,) = ranks.ranks(setting).faults
    assert words in fault


@pytest.mark.parametrize(("message", "survived", "resumed", "different", "words"), [
    ("rank 0 was ended by SIGKILL", "step-00000004", "step-00000004", 0.0, None),
    ("rank 0 was ended by SIGTERM", "step-00000004", "step-00000004", 0.0, "found rank 0 was ended by SIGTERM."),
    (None, "step-00000004", "step-00000004", 0.0, "found a finished run."),
    ("ended by SIGKILL", None, None, 0.0, "expected SIGKILL in step 5 after a checkpoint, found ended by SIGKILL."),
    ("ended by SIGKILL", "step-00000004", "step-00000002", 0.0, "found one resumed from step-00000002"),
    ("ended by SIGKILL", "step-00000004", None, 0.0, "found one resumed from None"),
    ("ended by SIGKILL", "step-00000004", "step-00000004", 1e-9, "to equal the undisturbed one to the bit"),
])  # fmt: skip
def test_each_expectation_of_a_killed_run_fails_alone(
    message: str | None, survived: str | None, resumed: str | None, different: float, words: str | None,
    setting: Setting, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    done: list[Any] = []

    def start(setting: Setting, spec: Any, *, root: Path, **more: Any) -> None:
        done.append((root.name, more))
        if message is not None:
            raise ranks.WorkerFailed(message)

    checkpoint = None if survived is None else Path(survived)
    monkeypatch.setattr(ranks, "start", start)
    monkeypatch.setattr(ranks, "train_case", lambda spec, *, root: done.append(root.name))
    monkeypatch.setattr(ranks.folder, "newest_whole", lambda path: (checkpoint, []))
    monkeypatch.setattr(ranks, "read_events", lambda path, kind: [{"resumed_from": "old"}, {"resumed_from": resumed}])
    monkeypatch.setattr(ranks, "_difference", lambda *given: {"model": 0.0, "optimizer": different})
    found = ranks.kill_resume(setting)
    assert done[:2] == ["whole", ("killed", {"processes": 1, "fault": {"kind": "kill", "step": 5}})]
    assert [words in fault for fault in found.faults] == ([] if words is None else [True])  # type: ignore[operator]


def test_a_rank_reads_its_case_from_a_file_beside_its_logs(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(ranks, "launch", lambda module, args, **more: launched.append((module, args, more)))
    spec = task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cpu")
    root = setting.folder / "new" / "case"
    ranks.start(setting, spec, root=root, processes=3, fault={"kind": "nan", "step": 2}, megabytes=7.0)
    ((module, args, more),) = launched
    assert (module, args, more["log_directory"]) == (
        "mm_ldlm.extras.gpu_check.rank",
        [str(root / "case.json")],
        root / "logs",
    )
    assert (more["config"].processes, more["config"].nodes) == (3, 1)
    case = json.loads((root / "case.json").read_text())
    assert case.pop("spec") == spec.to_dict()
    assert case == {
        "root": str(root.resolve()), "fault": {"kind": "nan", "step": 2}, "device": "cpu", "megabytes": 7.0
    }  # fmt: skip
    ranks.start(setting, None, root=root, processes=1)
    case = json.loads((root / "case.json").read_text())
    assert [case[key] for key in ("spec", "fault", "megabytes")] == [None, None, 1.0]


@pytest.mark.parametrize("main", [True, False])
def test_a_rank_trains_its_case_or_checks_the_collectives(
    main: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    spec = task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cpu")
    monkeypatch.setattr(rank, "train_case", lambda spec, **more: done.append((spec, more)))
    case = {"spec": spec.to_dict(), "root": str(tmp_path), "fault": {"kind": "kill", "step": 1}, "device": "cpu"}
    path = tmp_path / "case.json"
    path.write_text(json.dumps({**case, "megabytes": 2.0}))
    rank.main(path)
    assert done == [(spec, {"root": tmp_path, "fault": case["fault"]})]
    assert not (tmp_path / "collectives.json").exists()

    @contextlib.contextmanager
    def joined(*, device: str, group_of_one: bool) -> Iterator[Any]:
        done.append((device, group_of_one))
        yield SimpleNamespace(is_main=main)

    monkeypatch.setattr(rank, "joined", joined)
    monkeypatch.setattr(rank, "check_collectives", lambda process, *, megabytes: {"of": megabytes})
    monkeypatch.setattr(rank.collectives, "barrier", lambda: done.append("barrier"))
    path.write_text(json.dumps({**case, "spec": None, "megabytes": 2.0}))
    rank.main(path)
    assert done[1:] == [("cpu", True), "barrier"]
    written = tmp_path / "collectives.json"
    assert (json.loads(written.read_text()) if main else written.exists()) == ({"of": 2.0} if main else False)
