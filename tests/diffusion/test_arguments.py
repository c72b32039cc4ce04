"""What a process makes is on the device of its arguments, whatever the default device is, and all arguments but the
logits stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_traits import CASES, IDS, STORES
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.distributions import categorical
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.atat.masking_policies import mask_rates, sharpen

B, L = 6, 5
ENDS = {"schedule": {"name": "log_linear", "epsilon": 0.3}}  # some tokens are kept at the end
START = {"schedule": {"name": "geometric", "sigma_min": 0.2}}  # some are replaced at the start
WITH_ENDS: list[tuple[str, dict[str, Any]]] = [
    *CASES, ("uniform", ENDS), ("uniform", START), ("sedd", {"graph": "uniform", **START}), ("d3pm", {"steps": 4}),
]  # fmt: skip
"""A term of the bound at each end, too"""


def process_of(kind: str, options: dict[str, Any]) -> TextProcess:
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    process: TextProcess = config.build(**IDS, **{name: STORES[name] for name in config.stores})
    return process


def arguments() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    valid_BL = torch.arange(L) < torch.tensor([L, L, 3, 1, 2, 0])[:, None]
    count = int(valid_BL.sum())
    return {
        "tokens": torch.randint(1, 5, (B, L), generator=draw).masked_fill(~valid_BL, 0), "valid": valid_BL,
        "t": torch.tensor([0.2, 0.9, 0.5, 0.7, 0.05, 0.4]), "output": torch.randn(count, 6, generator=draw),
        "uniform": torch.rand(count, 2, generator=draw, dtype=torch.float64), "index": torch.arange(B),
        "draws": RowGenerator(3, torch.arange(B)), "each": torch.randn(L, 6, generator=draw),
    }  # fmt: skip


def asked(process: TextProcess, given: dict[str, Any]) -> dict[str, Tensor]:
    """Every answer of a process, by its name."""
    tokens, valid, t_B, draws = given["tokens"], given["valid"], given["t"], given["draws"]
    found = {"times": process.times(0.3, given["index"], B), "prior": process.prior(tokens, valid, draws.fork("p"))}
    found["noisy"] = noisy = process.corrupt(tokens, valid, t_B, draws.fork("c"))
    found["scored"] = process.scored(noisy, valid)
    noisy_M, t_M, targets_M = noisy[valid], t_B[:, None].expand_as(valid)[valid], tokens[valid]
    losses = process.token_losses(given["output"].clone(), targets_M, noisy_M, t_M)
    found |= {f"losses.{name}": value for name, value in losses._asdict().items()}
    step = {"t_M": t_M.double(), "s_M": t_M.double() / 2, "uniform_M2": given["uniform"]}
    found["score_step"] = process.score_step(given["output"].clone(), noisy_M, **step)
    found["x0_logits"] = logits = process.x0_logits(given["output"].clone(), noisy_M, t_M)
    found["log_x0"] = log_x0 = process.log_x0(logits.clone(), noisy_M)
    found["reverse_step"] = process.reverse_step(log_x0, noisy_M, **step)
    bound = process.nelbo(
        lambda noisy_BL, t_B, scored_BL: given["each"][scored_BL.nonzero()[:, 1]].clone(), tokens, valid, draws=2,
        generator=draws,
    )  # fmt: skip
    return found | {f"nelbo.{name}": value for name, value in vars(bound).items()}


@pytest.mark.parametrize(("kind", "options"), WITH_ENDS, ids=str)
def test_a_process_answers_on_the_device_of_its_arguments(kind: str, options: dict[str, Any]) -> None:
    process, given = process_of(kind, options), arguments()
    expected = asked(process, given)
    with torch.device("meta"):  # tensors without a device have no values
        found = asked(process, given)
    for name, value in expected.items():
        assert found[name].device.type == "cpu", name
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_a_process_computes_on_another_device(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with tables that lie on the CPU, such as those of clusters."""
    process, given = process_of(kind, options), arguments()
    monkeypatch.setattr(Tensor, "__bool__", lambda self: True)  # of what has no values: every branch is taken
    away: dict[str, Any] = {name: value.to("meta") for name, value in given.items()}
    count, shape = len(given["output"]), given["tokens"].shape
    noisy_M, t_M = (torch.empty(count, dtype=dtype, device="meta") for dtype in (torch.int64, torch.float64))
    step = {"t_M": t_M, "s_M": t_M, "uniform_M2": away["uniform"]}
    texts = away["tokens"], away["valid"]
    losses = process.token_losses(away["output"].clone(), noisy_M, noisy_M, t_M)
    logits = process.x0_logits(away["output"].clone(), noisy_M, t_M)
    found = [
        process.times(0.3, away["index"], B), logits, *losses, process.scored(*texts),
        process.log_x0(logits.clone(), noisy_M),
        process.reverse_step(logits.clone(), noisy_M, **step),
        process.score_step(away["output"].clone(), noisy_M, **step), *process.nelbo_times(t_M),
    ]  # fmt: skip
    if options != {"graph": "uniform"}:  # which lists the words in a tensor of their number
        found += [process.corrupt(*texts, away["t"], away["draws"]), process.prior(*texts, away["draws"])]
    assert {each.device.type for each in found} == {"meta"}
    assert {tuple(each.shape) for each in found} == {(B,), tuple(shape), (count,), (count, 6)}


@pytest.mark.parametrize(("kind", "options"), WITH_ENDS, ids=str)
def test_a_process_leaves_its_arguments_as_they_are(kind: str, options: dict[str, Any]) -> None:
    process, given, before = process_of(kind, options), arguments(), arguments()
    asked(process, given)
    for name, value in given.items():
        if isinstance(value, Tensor):
            assert value._version == before[name]._version, name
            assert torch.equal(value, before[name]), name
    assert torch.equal(given["draws"].uniform(3), before["draws"].uniform(3)), "nothing was drawn but from forks"


ROWS = torch.tensor([3, 0, 2])


def of_rows(given: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """The arguments of these texts, in this order."""
    row_M = given["valid"].nonzero()[:, 0]
    at_M = torch.cat([(row_M == row).nonzero()[:, 0] for row in rows])
    chosen = {name: given[name][rows] for name in ("tokens", "valid", "t", "index")}
    positions = {name: given[name][at_M] for name in ("output", "uniform")}
    return {**given, **chosen, **positions, "draws": given["draws"].select(rows)}


@pytest.mark.parametrize(("kind", "options"), WITH_ENDS, ids=str)
def test_an_answer_for_a_text_does_not_depend_on_the_texts_beside_it(kind: str, options: dict[str, Any]) -> None:
    process, given = process_of(kind, options), arguments()
    whole, some = asked(process, given), asked(process, of_rows(given, ROWS))
    row_M = given["valid"].nonzero()[:, 0]
    at_M = torch.cat([(row_M == row).nonzero()[:, 0] for row in ROWS])
    for name, value in whole.items():
        expected = value[:, ROWS] if name.startswith("nelbo") else value[at_M if len(value) == len(row_M) else ROWS]
        torch.testing.assert_close(some[name], expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("policy", ["uniform", "importance", "inverse", "balanced"])
def test_rates_of_masking_of_a_text_do_not_depend_on_the_texts_beside_it(policy: Any) -> None:
    importance, given = torch.rand(B, L, generator=torch.Generator().manual_seed(2)), arguments()

    def rates(rows: Tensor) -> Any:
        return mask_rates(
            policy, importance[rows], given["valid"][rows], given["t"][rows], schedule=MaskSchedule(), temperature=0.7
        )

    for found, expected in zip(rates(ROWS), rates(torch.arange(B)), strict=True):
        torch.testing.assert_close(found, expected[ROWS])


@pytest.mark.parametrize("policy", ["uniform", "importance", "inverse", "balanced"])
def test_rates_of_masking_are_on_the_device_of_the_importance(policy: Any) -> None:
    importance = torch.rand(B, L, generator=torch.Generator().manual_seed(1))
    given = arguments()
    before = importance.clone()

    def rates() -> tuple[Tensor, ...]:
        schedule = MaskSchedule(name="cosine")
        found = mask_rates(policy, importance, given["valid"], given["t"], schedule=schedule)
        return (*found, sharpen(importance, given["t"]))

    expected = rates()
    with torch.device("meta"):
        found = rates()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(importance, before)


def test_a_level_that_rounding_carried_to_the_total_draws_the_last_possible_id_of_its_own_row() -> None:
    probs = torch.tensor([[0.2, 0.8, 0.0], [0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4]])
    levels = torch.tensor([1.0, 0.6, 1.0, 0.1], dtype=torch.float64)
    assert categorical(probs, levels).tolist() == [1, 1, 0, 0]
    with torch.device("meta"):
        assert categorical(probs, levels).tolist() == [1, 1, 0, 0]
