"""HDLM as a text process of the objective `text_diffusion`, with the model `dit`."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.autoregressive.objective import AutoregressiveConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.sampling.registry import text_sampler

PAD, MASK, V, L = 7, 8, 9, 5
CLUSTERS = torch.tensor([[0], [1], [2], [0], [1], [2], [0], [-1], [-1]])
DATA = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=L)
CONFIG = parse(TextDiffusionConfig, {"process": {"kind": "hdlm"}}, at="objective")
SHAPE = dataclasses.replace(DATA, noise_ids=CONFIG.noise_ids(DATA, token_clusters=CLUSTERS))


def batch():
    tokens = torch.tensor([[0, 1, 2, 3, 4], [6, 5, 4, PAD, PAD]] * 8)
    return Batch(
        tokens_BL=tokens, valid_BL=tokens != PAD, fields={}, examples_B=torch.arange(16),
        position_B=torch.arange(16), global_size=16, global_tokens=int((tokens != PAD).sum()),
    )  # fmt: skip


def model(**keys):
    return DiTConfig(dim=32, depth=2, heads=4, **keys).build(SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("fixed_shapes", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_ten_steps_on_one_batch_lower_the_loss(fixed_shapes, tied):
    net, made = model(tied_embeddings=tied).train(), CONFIG.build(SHAPE, fixed_shapes=fixed_shapes,
                                                                  token_clusters=CLUSTERS)  # fmt: skip
    optimizer, seen = torch.optim.AdamW(net.parameters(), lr=1e-2), []
    for _ in range(10):
        losses = made(net, batch(), RowGenerator(0, torch.arange(16)), kind="text", step=0)
        total = losses["text_loss"][0] / losses["text_loss"][1]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        seen.append(float(total.detach()))
    assert seen[-1] < 0.7 * seen[0]
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_fixed_shapes_give_the_same_losses():
    net = model()
    with torch.no_grad():
        net.text_head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    found = [
        CONFIG.build(SHAPE, fixed_shapes=fixed, token_clusters=CLUSTERS)(
            net, batch(), RowGenerator(0, torch.arange(16)), kind="text", step=0
        )
        for fixed in (False, True)
    ]  # fmt: skip
    for name, (value, count) in found[0].items():
        assert float(value.detach()) == pytest.approx(float(found[1][name][0].detach()), rel=1e-5), name
        assert int(count) == int(found[1][name][1])


def test_the_model_reads_the_clusters_and_predicts_words():
    net = model()
    assert SHAPE.num_ids == V + 3
    assert net.text_embedding.weight.shape[0] == V + 3
    tokens = torch.tensor([[V, V + 1, V + 2, MASK, 0]])
    assert net(tokens, valid_BL=None, t_B=torch.tensor([0.5])).logits.shape == (1, L, V)


def test_generation_and_likelihood_of_an_untrained_model():
    generation = CONFIG.build(SHAPE, token_clusters=CLUSTERS).generative_model(model())
    assert generation.default_sampler(conditional=False).kind == "ancestral"
    canvas, rows = torch.full((50, L), MASK), RowGenerator(0, torch.arange(50))
    with generation.evaluating():
        sample = generation.write(
            canvas, canvas == MASK, latents_Bd=None, sampler=text_sampler("ancestral", steps=4), generator=rows
        )
        found = generation.likelihood(sample.tokens, latents_Bd=None, draws=4, generator=rows)
    assert set(sample.tokens.unique().tolist()) == set(range(7))
    assert torch.isfinite(found.nll_KB).all()
    assert found.cross_entropy_KB.shape == found.nll_KB.shape


def test_stores_and_ids_are_declared_by_the_process():
    assert CONFIG.stores == ("token_clusters",)
    assert SHAPE.noise_ids == 3
    for other in (TextDiffusionConfig(), AutoregressiveConfig(), MultimodalConfig()):
        assert other.stores == ()
        assert other.noise_ids(DATA) == 0
    assert CONFIG.build(SHAPE, token_clusters=CLUSTERS).expected_first_loss() == {}


def test_the_multimodal_objective_refuses_a_process_with_stores():
    config = parse(MultimodalConfig, {"process": {"kind": "hdlm"}}, at="objective")
    with pytest.raises(ConfigurationError, match=r"'hdlm', which is made from the stores token_clusters"):
        config.capabilities(MMDiTConfig())
