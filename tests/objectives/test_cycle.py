"""Cycle losses of the multimodal objective: off by default, their ramp, what the passes read, gradients, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from test_multimodal import DIM, MASK, PAD, VOCAB, Spy, batch, generator, losses_of, mmdit, objective
from torch import Tensor

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.objectives.cycle import CycleConfig

BOTH = {"text_weight": 0.5, "latent_weight": 0.25}


class WholeSpy(Spy):
    """`Spy` with logits (B, L, V) where none are chosen, as the model has them."""

    def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
        out = super().forward(tokens_BL, **given)
        if given.get("logits_at") is None:
            out.logits_BLV = out.logits_BLV.view(*tokens_BL.shape, VOCAB)
        return out


def losses(kind: str, model: Any, *, step: int = 0, data: Any = None, **settings: Any) -> dict[str, Any]:
    made = objective(mode="mixed", **settings)
    found: dict[str, Any] = made(model, data or batch(), generator(), kind=kind, step=step)
    return found


def stirred(**keys: Any) -> Any:
    """With noise on every parameter, because the heads start at 0."""
    model = mmdit(dim=16, depth=1, heads=2, token_vectors="random", **keys)
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model


@pytest.mark.parametrize("kind", ["l2t", "t2l", "unconditional"])
def test_without_weight_nothing_is_computed_and_with_one_the_other_losses_are_the_same_bits(kind: str) -> None:
    spy, model = Spy(), stirred()
    plain = losses(kind, spy)
    assert len(spy.calls) == 1
    assert not [name for name in plain if "cycle" in name]
    assert not [name for name in objective().weights if "cycle" in name]
    before, after = losses(kind, model), losses(kind, model, cycle=BOTH)
    assert {name for name in after if name not in before} == {
        "l2t": {"cycle_text_loss", "cycle_text"},
        "t2l": {"cycle_latent_loss", "cycle_latent"},
        "unconditional": set(),
    }[kind]
    for name in before:
        assert torch.equal(before[name][0], after[name][0]), name


def test_the_factors_grow_linearly_and_the_statistic_does_not() -> None:
    ramp = CycleConfig(text_weight=1.0, ramp_steps=4)
    assert [ramp.ramp(step) for step in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert CycleConfig(text_weight=1.0).ramp(0) == 1.0
    model = stirred()
    for kind, name in (("l2t", "cycle_text"), ("t2l", "cycle_latent")):
        cycle = {**BOTH, "ramp_steps": 4}
        assert name not in losses(kind, model, cycle=cycle)
        third, last = (losses(kind, model, step=step, cycle=cycle) for step in (3, 9))
        assert torch.allclose(third[f"{name}_loss"][0], 0.75 * last[f"{name}_loss"][0])
        assert torch.equal(third[name][0], last[name][0])
        assert objective(cycle=cycle).weights[f"{name}_loss"] == BOTH[f"{name.removeprefix('cycle_')}_weight"]


def test_the_text_cycle_reads_the_estimate_from_the_clean_text_in_the_place_of_the_latent() -> None:
    data, estimate_Bd = batch(), torch.randn(12, DIM)
    spy = Spy(latent=estimate_Bd)
    losses("l2t", spy, data=data, cycle=BOTH, parameterisation="x0")
    step, first, second = spy.calls
    assert torch.equal(first["tokens_BL"], data.tokens_BL)
    assert float(first["t_text_B"].max()) == 0 == float((first["t_latent_B"] - 1).abs().max())
    assert not torch.isin(first["latents_Bd"], data.fields["latents"]).any(), "the estimate begins from noise"
    assert torch.equal(second["latents_Bd"], estimate_Bd)
    assert torch.equal(second["tokens_BL"], step["tokens_BL"])
    assert second["null_latent_B"] is None


def test_the_latent_cycle_reads_no_token_of_the_text() -> None:
    data, spy = batch(), WholeSpy()
    losses("t2l", spy, data=data, cycle=BOTH)
    _, first, second = spy.calls
    assert torch.equal(first["tokens_BL"], torch.where(data.valid_BL, MASK, PAD))
    assert torch.equal(first["latents_Bd"], data.fields["latents"])
    probs_BLV = second["token_probs_BLV"]
    assert probs_BLV.shape == (*data.tokens_BL.shape, VOCAB)
    torch.testing.assert_close(probs_BLV.sum(-1), torch.ones(data.tokens_BL.shape))
    assert float(probs_BLV.detach()[..., [MASK, PAD]].max()) == 0
    assert len(second["tokens_BL"][data.valid_BL].unique()) == 1
    times = [(set(call["t_text_B"].tolist()), set(call["t_latent_B"].tolist())) for call in (first, second)]
    assert times == [({1.0}, {0.0}), ({0.0}, {1.0})]
    assert not torch.isin(second["latents_Bd"], data.fields["latents"]).any(), "the estimate begins from noise"


def test_examples_that_fill_a_batch_are_in_no_cycle() -> None:
    data, fill_B = batch(), torch.arange(12) >= 9
    filled = dataclasses.replace(
        data, valid_BL=data.valid_BL & ~fill_B[:, None], tokens_BL=data.tokens_BL.masked_fill(fill_B[:, None], PAD),
        examples_B=data.examples_B.masked_fill(fill_B, -1),
    )  # fmt: skip
    found = losses("t2l", WholeSpy(), data=filled, cycle=BOTH, parameterisation="x0")
    total, count = found["cycle_latent"]
    each_B = data.fields["latents"].square().mean(1)  # the spy predicts 0
    assert int(count) == 9
    assert float(total) == pytest.approx(float(each_B[:9].sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "name", "parts"),
    [
        ("l2t", "cycle_text_loss", ("latent_head", "text_head", "text_embedding", "latent_encoder")),
        ("t2l", "cycle_latent_loss", ("text_head", "latent_head", "text_embedding", "latent_encoder")),
    ],
)
def test_gradients_of_a_cycle_reach_both_of_its_passes(kind: str, name: str, parts: tuple[str, ...]) -> None:
    """The head of the first pass has no other way to the loss."""
    model = stirred()
    losses(kind, model, cycle=BOTH)[name][0].backward()
    for part in parts:
        gradients = [p.grad for n, p in model.named_parameters() if n.startswith(f"{part}.")]
        assert any(g is not None and bool(g.abs().sum() > 0) for g in gradients), part
        assert all(g is None or bool(g.isfinite().all()) for g in gradients)


def test_a_step_on_the_cycle_loss_lowers_it() -> None:
    for kind, name in (("l2t", "cycle_text"), ("t2l", "cycle_latent")):
        model = stirred()
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        seen = []
        for _ in range(12):
            optimizer.zero_grad()
            found = losses(kind, model, cycle=BOTH)
            found[f"{name}_loss"][0].backward()
            optimizer.step()
            seen.append(float(found[name][0]))
        assert seen[-1] < 0.9 * seen[0], name


def test_certain_distributions_are_the_tokens_themselves() -> None:
    model, data = stirred(), batch()
    zeros_B = torch.zeros(12)

    def latent(tokens_BL: Tensor, **given: Any) -> Tensor:
        out = model(
            tokens_BL, valid_BL=data.valid_BL, t_text_B=zeros_B, latents_Bd=data.fields["latents"],
            t_latent_B=zeros_B + 1, heads=("latent",), **given,
        )  # fmt: skip
        found: Tensor = out.latent_Bd
        return found

    probs_BLV = torch.nn.functional.one_hot(data.tokens_BL, VOCAB).float()
    stand_in = torch.where(data.valid_BL, 3, PAD)
    torch.testing.assert_close(latent(stand_in, token_probs_BLV=probs_BLV), latent(data.tokens_BL))
    assert not torch.allclose(latent(stand_in), latent(data.tokens_BL))


def test_cycles_need_both_directions_and_an_estimate_from_pure_noise() -> None:
    for mode in ("l2t", "t2l", "unconditional"):
        with pytest.raises(ConfigurationError, match="cycle losses need the modes l2t and t2l"):
            objective(mode=mode, cycle=BOTH)
        objective(mode=mode, cycle={"ramp_steps": 5})
    with pytest.raises(ConfigurationError, match="parameterisation 'eps'"):
        objective(parameterisation="eps", cycle=BOTH)
    with pytest.raises(ConfigurationError, match="'sedd', whose model predicts scores"):
        objective(process={"kind": "sedd"}, cycle=BOTH)
    objective(process={"kind": "sedd"}, cycle={"text_weight": 1.0})
    assert losses_of(objective(mode="sequential", cycle=BOTH), stirred(), batch(), generator())
