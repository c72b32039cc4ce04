"""The text processes other than absorbing diffusion, with a DiT: they learn, write words only, and give likelihoods."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.sampling.registry import text_sampler

V, PAD, MASK, N = 12, 0, 11, 6
SHAPE = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=N)
PROCESSES = {
    "d3pm": {"kind": "d3pm", "steps": 20},
    "sedd absorbing": {"kind": "sedd"},
    "sedd uniform": {"kind": "sedd", "graph": "uniform"},
    "sedd geometric": {"kind": "sedd", "graph": "uniform", "schedule": {"name": "geometric"}},
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


def batch(count: int = 16) -> Batch:
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, PAD, PAD]]).repeat(count // 2, 1)
    return Batch(
        tokens_BL=tokens, valid_BL=tokens != PAD, fields={}, examples_B=torch.arange(count),
        position_B=torch.arange(count), global_size=count, global_tokens=int((tokens != PAD).sum()),
    )  # fmt: skip


def trained(process: dict[str, Any], *, steps: int) -> tuple[Any, Any, list[float]]:
    """The objective, a DiT after some steps on one batch with one noise, and the losses."""
    made = parse(TextDiffusionConfig, {"process": process}, at="objective").build(SHAPE)
    model = DiTConfig(dim=32, depth=2, heads=4).build(SHAPE, generator=torch.Generator().manual_seed(0)).train()
    optimizer, seen, data = torch.optim.AdamW(model.parameters(), lr=1e-2), [], batch()
    for _ in range(steps):
        losses = made(model, data, RowGenerator(0, torch.arange(16)), kind="text", step=0)
        loss = losses["text_loss"][0] / losses["text_loss"][1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    return made, model, seen


@every_process
def test_ten_steps_on_one_batch_lower_the_loss(process: dict[str, Any]) -> None:
    made, _, seen = trained(process, steps=10)
    assert seen[-1] < 0.9 * seen[0]
    model = DiTConfig(dim=32, depth=2, heads=4).build(SHAPE, generator=torch.Generator().manual_seed(0))
    value, count = made(model, batch(), RowGenerator(0, torch.arange(16)), kind="text", step=0)["text_nll"]
    assert float((value / count).detach()) == pytest.approx(made.expected_first_loss()["text_nll"], rel=1e-4)


@every_process
def test_texts_hold_words_only_and_what_was_given(process: dict[str, Any]) -> None:
    made, model, _ = trained(process, steps=3)
    generation = made.generative_model(model)
    canvas = torch.tensor([[MASK] * 6, [7, MASK, 9, MASK, PAD, PAD], [1, 2, 3, 4, 5, 6]]).repeat(20, 1)
    with generation.evaluating():
        for sampler in (
            text_sampler("ancestral", steps=5), text_sampler("ancestral", steps=5, temperature=0.0),
            generation.default_sampler(conditional=True), generation.default_sampler(conditional=False),
        ):  # fmt: skip
            written = generation.write(
                canvas, canvas == MASK, latents_Bd=None, sampler=sampler, generator=RowGenerator(1, torch.arange(60))
            ).tokens
            assert torch.equal(written[canvas != MASK], canvas[canvas != MASK])
            assert not torch.isin(written[canvas == MASK], torch.tensor([MASK, PAD])).any()


@every_process
def test_a_likelihood_has_its_cross_entropy_and_does_not_depend_on_the_batch(process: dict[str, Any]) -> None:
    made, model, _ = trained(process, steps=3)
    generation, tokens, rows = made.generative_model(model), batch(4).tokens_BL, RowGenerator(2, torch.arange(4))
    with generation.evaluating():
        whole = generation.likelihood(tokens, latents_Bd=None, draws=3, generator=rows)
        alone = generation.likelihood(
            tokens[1:2, :4], latents_Bd=None, draws=3, generator=rows.select(torch.tensor([1]))
        )
    assert torch.allclose(whole.nll_KB[:, 1], alone.nll_KB[:, 0], rtol=1e-4)
    for value_KB in (whole.nll_KB, whole.cross_entropy_KB):
        assert value_KB is not None
        assert value_KB.dtype == torch.float64
        assert torch.isfinite(value_KB).all()
        assert (value_KB >= 0).all()
