"""Next-token prediction: the chain rule computed by hand, counts, and capabilities."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.autoregressive.model import CausalConfig, CausalTransformer
from mm_ldlm.families.autoregressive.objective import AutoregressiveConfig, nll
from mm_ldlm.families.autoregressive.sampler import AutoregressiveSampler
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.objectives.base import Batch, Objective
from mm_ldlm.sampling.registry import text_sampler

N = 4
SHAPE = DataShape(vocab_size=5, pad_id=0, mask_id=1, max_length=N)
WORDS, END = (2, 3, 4), 5


def model(*, stirred: bool = True, shape: DataShape = SHAPE) -> CausalTransformer:
    made = CausalConfig(dim=16, depth=2, heads=2).build(shape, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    for parameter in made.parameters() if stirred else ():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return made


def batch(texts: list[tuple[int, ...]], *, width: int = N) -> Batch:
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text, dtype=torch.long)
    return Batch(
        tokens_BL=tokens,
        valid_BL=tokens != 0,
        fields={},
        examples_B=torch.tensor([i if text else -1 for i, text in enumerate(texts)]),
        position_B=torch.arange(len(texts)),
        global_size=sum(bool(text) for text in texts),
        global_tokens=sum(map(len, texts)),
    )


def losses(
    data: Batch, network: Any = None, *, fixed_shapes: bool = False, **keys: Any
) -> dict[str, tuple[Tensor, Tensor]]:
    objective = AutoregressiveConfig(**keys).build(SHAPE, fixed_shapes=fixed_shapes)
    generator = RowGenerator(0, data.position_B)
    return objective(network or model(), data, generator, kind=objective.kind(generator, step=0), step=0)


def every_text(longest: int) -> list[tuple[int, ...]]:
    return [text for length in range(1, longest + 1) for text in itertools.product(WORDS, repeat=length)]


def conditional(network: CausalTransformer, prefix: tuple[int, ...]) -> Tensor:
    """p(next symbol | prefix) in float64, from a forward pass over the prefix alone."""
    with torch.no_grad():
        return network(torch.tensor([prefix], dtype=torch.long))[0, -1].double().softmax(-1)


# -- the likelihood -----------------------------------------------------------------------------------------------


def test_the_likelihood_is_the_product_of_conditionals():
    network, texts = model(), every_text(3)
    data = batch(texts)
    with torch.no_grad():
        found = nll(network, data.tokens_BL, data.valid_BL, shape=SHAPE)
    assert found.dtype == torch.float64
    for text, value in zip(texts, found.tolist(), strict=True):
        given = [text[:i] for i in range(len(text) + 1)]
        by_hand = sum(-math.log(conditional(network, g)[x]) for g, x in zip(given, (*text, END), strict=True))
        assert value == pytest.approx(by_hand, abs=1e-5)


def test_the_probabilities_of_all_texts_and_of_longer_ones_sum_to_one():
    network, texts = model(), every_text(N)
    data = batch(texts)
    with torch.no_grad():
        mass = float(torch.exp(-nll(network, data.tokens_BL, data.valid_BL, shape=SHAPE)).sum())
    longer = 0.0
    for text in itertools.product(WORDS, repeat=N):
        prefix = math.prod(float(conditional(network, text[:i])[x]) for i, x in enumerate(text))
        longer += prefix * (1 - float(conditional(network, text)[END]))
    assert 0.01 < longer < 0.99
    assert mass + longer == pytest.approx(1, abs=1e-6)


def test_padding_does_not_change_the_likelihood():
    network, texts = model(), every_text(2)
    narrow, wide = batch(texts, width=2), batch(texts, width=4)
    a, b = (nll(network, x.tokens_BL, x.valid_BL, shape=SHAPE) for x in (narrow, wide))
    assert torch.allclose(a, b, atol=1e-5)


# -- the losses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_sums_and_counts(fixed_shapes):
    network, data = model(), batch([(2, 3, 4), (4,), (), (3, 3, 2, 2)])
    found = losses(data, network, fixed_shapes=fixed_shapes)
    exact = nll(network, data.tokens_BL, data.valid_BL, shape=SHAPE).detach()
    assert float(exact[2]) == 0
    assert found["text_loss"][0].item() == pytest.approx(float(exact.sum()), rel=1e-5)
    assert found["text_loss"][1].item() == 8  # tokens
    assert found["text_nll"][0].item() == pytest.approx(float(exact.sum()), rel=1e-5)
    assert found["text_nll"][1].item() == 8 + 3  # and an end token for each text
    right = 0
    for text in ((2, 3, 4), (4,), (3, 3, 2, 2)):
        right += sum(int(conditional(network, text[:i]).argmax()) == x for i, x in enumerate((*text, END)))
    assert found["text_accuracy"][0].item() == right
    assert found["text_accuracy"][1].item() == 11


def test_dense_and_gathered_logits_give_the_same_gradients():
    gradients = []
    for fixed_shapes in (False, True):
        network = model()
        losses(batch([(2, 3, 4), (4,), ()]), network, fixed_shapes=fixed_shapes)["text_loss"][0].backward()
        gradients.append([p.grad for p in network.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))
    assert all(torch.isfinite(g).all() for g in gradients[1])


def test_z_loss_is_the_squared_log_of_the_normalising_constant():
    network, data = model(), batch([(2, 3)])
    assert "z_loss" not in losses(data, network)
    assert AutoregressiveConfig(z_loss=0.5).build(SHAPE).weights["z_loss"] == 0.5
    by_hand = network(data.tokens_BL)[0, :3].logsumexp(-1).square().sum()
    assert float(losses(data, network, z_loss=0.5)["z_loss"][0].detach()) == pytest.approx(
        float(by_hand.detach()), rel=1e-5
    )


def test_the_first_loss_is_as_announced():
    expected = AutoregressiveConfig().build(SHAPE).expected_first_loss()["text_nll"]
    data = batch([(2, 3, 4, 2)])
    total, count = losses(data, model(stirred=False))["text_nll"]
    # the first token alone has one alternative less: no text is empty
    assert float(total.detach()) == pytest.approx(int(count) * expected - math.log(4 / 3), rel=1e-5)


def test_a_few_steps_on_one_batch_lower_the_loss():
    network, data = model(stirred=False).train(), batch([(2, 3, 4), (4, 4), (3, 2, 2, 3)])
    optimizer, seen = torch.optim.AdamW(network.parameters(), lr=1e-2), []
    for _ in range(40):
        total, count = losses(data, network)["text_loss"]
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        seen.append(float((total / count).detach()))
    assert seen[-1] < 0.6 * seen[0]


def test_it_is_an_objective():
    objective = AutoregressiveConfig().build(SHAPE)
    assert isinstance(objective, Objective)
    assert objective.fields == ()
    assert objective.kinds == ("text",)
    assert set(objective.units) == set(objective.weights)


# -- what a run can do --------------------------------------------------------------------------------------------


def test_capabilities():
    found = AutoregressiveConfig().capabilities(CausalConfig())
    assert found.uses == {"unconditional", "score"}
    assert found.likelihood == "exact"
    assert not found.joint_orders
    assert not found.reads_latents
    with pytest.raises(ConfigurationError, match="trains a model of interface 'next_token'"):
        AutoregressiveConfig().capabilities(DiTConfig())


def test_unknown_keys_are_refused():
    with pytest.raises(ConfigurationError, match=r"'objective\.mode' is not known"):
        parse(AutoregressiveConfig, {"mode": "l2t"}, at="objective")


def test_inference_scores_exactly_and_writes():
    network, data = model(), batch(every_text(2))
    generation = AutoregressiveConfig().build(SHAPE).generative_model(network)
    rows = RowGenerator(0, torch.arange(6))
    with generation.evaluating():
        likelihood = generation.likelihood(data.tokens_BL, latents_Bd=None, draws=7, generator=rows)
        canvas = torch.full((6, N), SHAPE.mask_id)
        open_BL = torch.ones_like(canvas, dtype=torch.bool)
        sampler = generation.default_sampler(conditional=False)
        sample = generation.write(canvas, open_BL, latents_Bd=None, sampler=sampler, generator=rows)
        other = AutoregressiveSampler().sample(network, canvas, process=None, generator=rows)
    assert not generation.has_length
    assert likelihood.nll_KB.shape == (1, 12)
    assert torch.equal(likelihood.nll_KB[0], nll(network, data.tokens_BL, data.valid_BL, shape=SHAPE).detach())
    assert torch.equal(sample.tokens, other.tokens)


def test_given_tokens_are_refused():
    generation = AutoregressiveConfig().build(SHAPE).generative_model(model())
    canvas = torch.full((2, N), SHAPE.mask_id)
    open_BL = torch.ones_like(canvas, dtype=torch.bool)
    open_BL[1, 0] = False
    with pytest.raises(SamplingError, match="writes whole texts, found 1 given tokens"), generation.evaluating():
        generation.write(
            canvas, open_BL, latents_Bd=None, sampler=generation.default_sampler(conditional=False),
            generator=RowGenerator(0, torch.arange(2)),
        )  # fmt: skip


def test_a_sampler_of_diffusion_models_is_refused():
    generation = AutoregressiveConfig().build(SHAPE).generative_model(model())
    canvas = torch.full((2, N), SHAPE.mask_id)
    with pytest.raises(SamplingError, match="sampler 'confidence' needs a diffusion model"):
        generation.write(
            canvas, canvas == SHAPE.mask_id, latents_Bd=None, sampler=text_sampler("confidence"),
            generator=RowGenerator(0, torch.arange(2)),
        )  # fmt: skip
