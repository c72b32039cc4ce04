"""Training steps of the multimodal objective: modes, normalisation, noise, and known pitfalls."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from mm_ldlm.training.losses import total
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.mmdit import MMDiT, MMDiTConfig
from mm_ldlm.objectives.base import Batch, Losses, Objective
from mm_ldlm.objectives.multimodal import MultimodalObjective
from mm_ldlm.objectives.registry import OBJECTIVES

VOCAB, PAD, MASK, DIM, LENGTH = 20, 0, 1, 6, 8
SHAPE = DataShape(vocab_size=VOCAB, pad_id=PAD, mask_id=MASK, max_length=LENGTH, latent_dim=DIM)
SINGLE = ("l2t", "t2l", "unconditional")


def batch(rows: int = 12, *, length: int = LENGTH, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, LENGTH + 1, (rows,), generator=draw)
    valid = torch.arange(length) < lengths[:, None]
    tokens = torch.randint(3, VOCAB, (rows, LENGTH), generator=draw)
    tokens = torch.nn.functional.pad(tokens, (0, length - LENGTH), value=PAD)
    return Batch(
        tokens_BL=torch.where(valid, tokens, PAD),
        valid_BL=valid,
        fields={"latents": torch.randn(rows, DIM, generator=draw)},
        examples_B=torch.arange(rows),
        position_B=torch.arange(rows),
        global_size=rows,
        global_tokens=int(lengths.sum()),
    )


def objective(*, fixed_shapes: bool = False, **settings: Any) -> MultimodalObjective:
    config = parse_kind(OBJECTIVES, {"kind": "multimodal", **settings}, at="objective")
    made: MultimodalObjective = config.build(SHAPE, fixed_shapes=fixed_shapes)
    return made


def losses_of(
    made: MultimodalObjective, model: nn.Module, data: Batch, draws: RowGenerator, *, step: int = 0
) -> Losses:  # fmt: skip
    """The losses of the step's own kind."""
    return made(model, data, draws, kind=made.kind(draws, step=step), step=step)


def mmdit(**keys: Any) -> MMDiT:
    return MMDiTConfig(**keys).build(SHAPE, generator=torch.Generator().manual_seed(0))


class Spy(nn.Module):
    """Stub of the model with fixed outputs that records its inputs."""

    def __init__(self, *, latent: Tensor | None = None, logit: int | None = None) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.latent, self.logit = latent, logit
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
        self.calls.append({"tokens_BL": tokens_BL, **given})
        count = int(given["logits_at"].sum()) if given.get("logits_at") is not None else tokens_BL.numel()
        logits = torch.zeros(count, VOCAB) + self.weight
        if self.logit is not None:
            logits = logits.clone()
            logits[:, self.logit] += 50
        latent = torch.zeros_like(given["latents_Bd"]) if self.latent is None else self.latent
        length = torch.zeros(len(tokens_BL), LENGTH) + self.weight
        Out = dataclasses.make_dataclass("Out", ["logits_BLV", "latent_Bd", "length_logits_BN"])
        return Out(logits, latent + self.weight, length)


def generator(rows: int = 12, seed: int = 3) -> RowGenerator:
    return RowGenerator(seed, torch.arange(rows))


def test_it_is_an_objective() -> None:
    assert isinstance(objective(), Objective)


def test_l2t_gives_the_clean_latent_and_noises_the_text() -> None:
    spy, data = Spy(), batch()
    losses = losses_of(objective(mode="l2t"), spy, data, generator(), step=0)
    call = spy.calls[0]
    assert torch.equal(call["latents_Bd"], data.fields["latents"])
    assert bool((call["t_latent_B"] == 0).all())
    assert bool((call["t_text_B"] > 0).all())
    assert set(losses) >= {"text_loss", "text_accuracy", "length_loss"}
    assert "latent_loss" not in losses


def test_t2l_gives_the_clean_text_and_noises_the_latent() -> None:
    spy, data = Spy(), batch()
    losses = losses_of(objective(mode="t2l"), spy, data, generator(), step=0)
    call = spy.calls[0]
    assert torch.equal(call["tokens_BL"], data.tokens_BL)
    assert bool((call["t_text_B"] == 0).all())
    assert not torch.equal(call["latents_Bd"], data.fields["latents"])
    assert "text_loss" not in losses
    assert "latent_loss" in losses


def test_unconditional_noises_both_by_independent_times() -> None:
    spy, data = Spy(), batch(200)
    losses_of(objective(mode="unconditional"), spy, data, generator(200), step=0)
    call = spy.calls[0]
    both = torch.stack([call["t_text_B"], call["t_latent_B"]])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.25
    # the trunk sees noise, but the length is that of the clean latent, or of none
    assert torch.equal(call["length_latents_Bd"], data.fields["latents"])
    assert not bool(call["null_length_B"].all())
    assert bool(call["null_length_B"].any())


def test_pitfall_06_every_time_is_trained() -> None:
    """Not only "all masked" or "all noise": each mode covers (0, 1] evenly."""
    for mode, name in (("l2t", "t_text_B"), ("t2l", "t_latent_B")):
        spy, data = Spy(), batch(64)
        losses_of(objective(mode=mode), spy, data, generator(64), step=0)
        t = spy.calls[0][name].sort().values
        assert float((t - (torch.arange(64) + 0.5) / 64).abs().max()) < 1 / 64 + 2e-3


def test_pitfall_07_the_loss_acts_on_the_parameterisation_itself() -> None:
    """Twice too long a prediction costs: nothing is normalised to unit length before the comparison."""
    data, config = batch(), {"mode": "t2l", "latent_loss": "uniform", "parameterisation": "x0", "condition_dropout": 0}
    exact = losses_of(objective(**config), Spy(latent=data.fields["latents"]), data, generator(), step=0)["latent_loss"]
    twice = losses_of(objective(**config), Spy(latent=2 * data.fields["latents"]), data, generator(), step=0)[
        "latent_loss"
    ]
    assert float(exact[0].detach()) == pytest.approx(0.0, abs=1e-9)
    assert float((twice[0] / twice[1]).detach()) == pytest.approx(
        float(data.fields["latents"].square().mean()), rel=1e-5
    )


def test_pitfall_09_pads_do_not_count_and_the_weight_is_one_over_t() -> None:
    data, spy = batch(), Spy()
    losses = losses_of(objective(mode="l2t"), spy, data, generator(), step=0)
    call = spy.calls[0]
    masked = (call["tokens_BL"] == MASK) & data.valid_BL
    expected = (math.log(VOCAB - 2) / call["t_text_B"][:, None] * masked).sum()  # logits are equal: log V each
    assert float(losses["text_loss"][0]) == pytest.approx(float(expected), rel=1e-5)
    assert int(losses["text_loss"][1]) == int(data.valid_BL.sum())  # over valid tokens, not over masked ones
    longer = batch(length=LENGTH + 6)
    again = losses_of(objective(mode="l2t"), Spy(), longer, generator(), step=0)
    for name in ("text_loss", "text_accuracy", "masking_rate"):
        assert float(again[name][0]) == pytest.approx(float(losses[name][0]), rel=1e-6)
        assert float(again[name][1]) == float(losses[name][1])


def test_mask_and_pad_are_never_predicted() -> None:
    """All confidence on [MASK] is no confidence at all: the loss is that of equal chances."""
    data = batch()
    plain = losses_of(objective(mode="l2t"), Spy(), data, generator(), step=0)["text_loss"][0]
    fooled = losses_of(objective(mode="l2t"), Spy(logit=MASK), data, generator(), step=0)["text_loss"][0]
    assert float(plain) == pytest.approx(float(fooled), rel=1e-5)


def test_a_batch_without_any_mask_contributes_nothing() -> None:
    data = dataclasses.replace(
        batch(1), examples_B=torch.tensor([-1]), valid_BL=torch.zeros(1, LENGTH, dtype=torch.bool)
    )
    losses = losses_of(objective(mode="l2t"), Spy(), data, generator(1), step=0)
    assert all(float(value.detach()) == 0.0 and float(count) == 0.0 for value, count in losses.values())


def test_examples_that_only_fill_the_shape_count_nowhere() -> None:
    data = batch()
    fill = Batch(
        tokens_BL=torch.cat([data.tokens_BL, torch.full((3, LENGTH), PAD)]),
        valid_BL=torch.cat([data.valid_BL, torch.zeros(3, LENGTH, dtype=torch.bool)]),
        fields={"latents": torch.cat([data.fields["latents"], torch.zeros(3, DIM)])},
        examples_B=torch.cat([data.examples_B, torch.full((3,), -1)]),
        position_B=torch.arange(15),
        global_size=12,
        global_tokens=data.global_tokens,
    )
    for mode in SINGLE:
        plain = losses_of(objective(mode=mode), Spy(), data, generator(), step=0)
        filled = losses_of(objective(mode=mode), Spy(), fill, generator(15), step=0)
        for name in plain:
            torch.testing.assert_close(filled[name][0].double(), plain[name][0].double(), rtol=1e-5, atol=1e-6)
            assert float(filled[name][1]) == float(plain[name][1])


@pytest.mark.parametrize("mode", SINGLE)
def test_losses_do_not_depend_on_how_the_batch_is_dealt(mode: str) -> None:
    """Sums over two halves are the sums over the whole: noise belongs to the place in the global batch."""
    data, made = batch(), objective(mode=mode, condition_dropout=0.3)
    model = mmdit(dim=16, depth=1, heads=2)
    for parameter in model.parameters():  # away from the all-zero heads
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    whole = losses_of(made, model, data, generator(), step=0)
    parts = []
    for index in (torch.arange(0, 12, 2), torch.arange(1, 12, 2)):
        chosen = {
            f.name: getattr(data, f.name)[index]
            for f in dataclasses.fields(data)
            if isinstance(getattr(data, f.name), Tensor)
        }
        fields = {name: value[index] for name, value in data.fields.items()}
        half = dataclasses.replace(data, fields=fields, **chosen)
        parts.append(losses_of(made, model, half, RowGenerator(3, half.position_B), step=0))
    for name, (value, count) in whole.items():
        together = sum(part[name][0] for part in parts)
        torch.testing.assert_close(together.double(), value.double(), rtol=1e-4, atol=1e-5)
        assert sum(float(part[name][1]) for part in parts) == float(count)


def test_mixed_draws_modes_by_their_weights_and_all_ranks_agree() -> None:
    made = objective(mode="mixed", loss_type_weights={"l2t": 6, "t2l": 2, "unconditional": 2})
    seen = [made.kind(generator(4, seed=step), step=step) for step in range(2000)]
    assert seen == [made.kind(RowGenerator(step, torch.arange(100, 107)), step=step) for step in range(2000)]
    assert seen.count("l2t") / 2000 == pytest.approx(0.6, abs=0.04)
    assert seen.count("t2l") / 2000 == pytest.approx(0.2, abs=0.03)


def test_sequential_cycles_by_steps() -> None:
    made = objective(mode="sequential", sequential_steps=2, loss_type_weights={"l2t": 1, "t2l": 1, "unconditional": 0})
    assert [made.kind(generator(), step=step) for step in range(6)] == ["l2t", "l2t", "t2l", "t2l", "l2t", "l2t"]


def test_conditions_are_dropped_at_their_fraction() -> None:
    for mode, name in (("l2t", "null_latent_B"), ("t2l", "null_text_B")):
        spy, data = Spy(), batch(2000)
        losses_of(objective(mode=mode, condition_dropout=0.1), spy, data, generator(2000), step=0)
        assert float(spy.calls[0][name].float().mean()) == pytest.approx(0.1, abs=0.03)
        spy = Spy()
        losses_of(objective(mode=mode, condition_dropout=0), spy, data, generator(2000), step=0)
        assert not bool(spy.calls[0][name].any())


def test_self_conditioning_feeds_an_estimate_in_half_of_the_steps() -> None:
    data, fed = batch(), 0
    for step in range(60):
        spy = Spy()
        losses_of(objective(mode="t2l", self_condition=True), spy, data, generator(seed=step), step=step)
        fed += len(spy.calls) == 2
        assert not spy.calls[-1]["self_condition_Bd"].requires_grad, "no gradient goes through the first pass"
    assert 15 < fed < 45


def test_z_loss_and_length_loss_appear_by_their_weights() -> None:
    data = batch()
    plain = losses_of(objective(mode="l2t"), Spy(), data, generator(), step=0)
    assert "z_loss" not in plain
    assert "z_loss" in losses_of(objective(mode="l2t", z_loss=1e-4), Spy(), data, generator(), step=0)
    spy = Spy()
    assert "length_loss" not in losses_of(objective(mode="l2t", length_weight=0), spy, data, generator(), step=0)
    assert spy.calls[0]["heads"] == ("text",)


def test_weights_reach_the_total_and_gamma_the_latent_loss() -> None:
    data, heavy = batch(), objective(mode="unconditional", text_weight=3.0, latent_weight=0.5)
    losses = losses_of(heavy, Spy(), data, generator(), step=0)
    by_hand = 3.0 * losses["text_loss"][0] / data.global_tokens + 0.5 * losses["latent_loss"][0] / data.global_size
    by_hand += heavy.config.length_weight * losses["length_loss"][0] / data.global_size
    assert float(total(losses, heavy, data)) == pytest.approx(float(by_hand), rel=1e-6)

    def latent_loss(**settings: Any) -> float:
        chosen = objective(mode="t2l", parameterisation="x0", **settings)
        return float(losses_of(chosen, Spy(), data, generator(), step=0)["latent_loss"][0].detach())

    small, large = (latent_loss(latent_loss="min_snr", min_snr_gamma=gamma) for gamma in (1.0, 5.0))
    assert small < large < 5 * small, "times of little noise count for gamma, the others for their own ratio"
    assert latent_loss(latent_loss="uniform") == latent_loss(latent_loss="uniform", min_snr_gamma=1.0)


def test_every_position_or_the_masked_ones_alone_give_the_same_losses() -> None:
    """Where shapes have to stay (GPUs, compiled graphs) logits are made everywhere."""
    data, spies = batch(), (Spy(logit=5), Spy(logit=5))
    some, all_ = (objective(mode="l2t", z_loss=1e-3, fixed_shapes=fixed) for fixed in (False, True))
    a = losses_of(some, spies[0], data, generator(), step=0)
    spies[1].forward = shaped(spies[1])  # type: ignore[method-assign]
    b = losses_of(all_, spies[1], data, generator(), step=0)
    assert spies[0].calls[0]["logits_at"] is not None
    assert spies[1].calls[0]["logits_at"] is None
    assert a.keys() == b.keys()
    for name in a:
        assert [float(x) for x in a[name]] == pytest.approx([float(x) for x in b[name]], rel=1e-6), name


def shaped(spy: Spy) -> Any:
    """The spy's logits at every position, (B, L, V) as the model gives them."""
    plain = spy.forward

    def forward(tokens_BL: Tensor, **given: Any) -> Any:
        out = plain(tokens_BL, **given)
        return dataclasses.replace(out, logits_BLV=out.logits_BLV.view(*tokens_BL.shape, VOCAB))

    return forward


def test_loss_by_time_adds_up() -> None:
    losses = losses_of(objective(mode="l2t"), Spy(), batch(), generator(), step=0)
    parts = [losses[f"text_nll_t{i}"] for i in range(4)]
    assert float(sum(value for value, _ in parts)) == pytest.approx(float(losses["text_nll"][0]), rel=1e-5)
    assert float(sum(count for _, count in parts)) == float(losses["text_nll"][1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type_weights": {"l2t": 0, "t2l": 0, "unconditional": 0}}, "at least one mode"),
        ({"parameterisation": "v", "latent_schedule": {"name": "flow"}}, "variance-preserving"),
        ({"mode": "l2x"}, "objective.mode"),
        ({"latent_wieght": 1}, "latent_weight"),
    ],
)
def test_pitfall_15_settings_that_contradict_or_are_unknown_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        objective(**settings)


@pytest.mark.parametrize("mode", [*SINGLE, "mixed", "sequential"])
def test_ten_steps_on_one_batch_lower_the_loss_in_every_mode(mode: str) -> None:
    made, data = objective(mode=mode), batch()
    model = mmdit(dim=32, depth=2, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    names = [objective(mode=name) for name in (SINGLE if mode in ("mixed", "sequential") else (mode,))]

    def loss() -> Tensor:
        found = torch.zeros(())
        for each in names:
            losses = losses_of(each, model, data, generator(), step=0)
            found = found + sum(
                losses[name][0] / data.normaliser(each.units[name]) * weight
                for name, weight in each.weights.items()
                if name in losses
            )
        return found

    first = float(loss())
    for step in range(10 * len(names)):
        losses = losses_of(made, model, data, generator(seed=step), step=step)
        value = sum(losses[n][0] / data.normaliser(made.units[n]) * w for n, w in made.weights.items() if n in losses)
        optimizer.zero_grad()
        value.backward()  # type: ignore[union-attr]
        optimizer.step()
    assert float(loss()) < 0.97 * first
