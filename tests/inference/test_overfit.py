"""A model overfitted to four sentences reconstructs them with every sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mm_ldlm.objectives.multimodal_options import ModeWeights
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, text_sampler

STEPS = 260
TEXTS = ["w1 w2 w3 w4 w5", "w6 w7 w8", "w9 w10 w11 w12 w13 w14 w15", "w16 w2 w18 w1"]


@pytest.fixture(scope="module")
def learned():
    from importlib import util
    from pathlib import Path

    spec = util.spec_from_file_location("tiny_parts", Path(__file__).with_name("conftest.py"))
    parts = util.module_from_spec(spec)
    spec.loader.exec_module(parts)
    config = MultimodalConfig(
        loss_type_weights=ModeWeights(l2t=3, t2l=2, unconditional=0),
        parameterisation="x0",
        latent_loss="uniform",
        latent_weight=1.0,
        condition_dropout=0.25,
    )
    made = parts.make(objective=config, dim=48, depth=2)
    module, objective = made.model.model, config.build(parts.SHAPE)
    ids = made.tokenizer.encode(TEXTS) * 8
    tokens = torch.tensor([row + [20] * (7 - len(row)) for row in ids])
    latents = made._engine.edge.standardised(made.encode(TEXTS)).repeat(8, 1)
    rows = torch.arange(len(ids))
    fields = {"latents": latents}
    batch = Batch(tokens, tokens != 20, fields, rows, rows, len(ids), int((tokens != 20).sum()))
    optimizer = torch.optim.Adam(module.parameters(), lr=4e-3)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (STEPS - step) / 60)
        generator = RowGenerator(step, rows)
        losses = objective(module, batch, generator, kind=objective.kind(generator, step=step), step=step)
        total = sum(objective.weights[k] * losses[k][0] / losses[k][1] for k in objective.weights if k in losses)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return made


@pytest.mark.parametrize(
    "kind", sorted(set(TEXT_SAMPLERS.known) - {"autoregressive", "self_correction", "joint_states"})
)
def test_every_sampler_rebuilds_what_was_learned(kind, learned):
    settings = {"steps": 8, "temperature": 0.5}
    if kind == "blocks":
        settings = {"inner": text_sampler("confidence", **settings)}
    if kind == "ddpm_cache":
        settings["timestep"] = "mask_ratio"
    sampler = text_sampler(kind, **settings)
    assert list(learned.invert(learned.encode(TEXTS), sampler=sampler).texts) == TEXTS


def test_fewer_calls_do_for_what_is_certain(learned):
    latents = learned.encode(TEXTS)
    ancestral = learned.invert(latents, sampler="ancestral", steps=64)
    quick = learned.invert(latents, sampler="threshold")
    assert list(quick.texts) == TEXTS
    assert quick.model_calls.sum() * 5 < ancestral.model_calls.sum()


def test_search_and_infill_and_edit_agree(learned):
    latents = learned.encode(TEXTS)
    found = learned.invert(latents, search=SearchConfig(candidates=3, rounds=1, lengths=2))
    assert list(found.texts) == TEXTS
    assert found.cosines.min() > 0.999
    assert learned.infill("w9 w10 [MASK] w12 [MASK] w14 w15", latents=latents[2]).texts[0] == TEXTS[2]
    assert learned.infill("w9 w10 [MASK] w12 [MASK] w14 w15").texts[0] == TEXTS[2]
    # four of the five words are another sentence's under this latent: those go first
    other = learned.edit("w16 w2 w18 w5", targets=latents[3], strength=0.25)
    assert other.texts[0] == TEXTS[3]


def test_embedding_comes_near_the_encoder(learned):
    def cosines(**how):
        return np.einsum("nd,nd->n", learned.embed(TEXTS, **how).latents, learned.encode(TEXTS)).mean()

    assert cosines(steps=10, draws=4) > 0.9
    assert cosines(sampler="one_step", draws=8) > 0.9


def test_a_latent_is_worth_its_bits(learned):
    with_latent = learned.score(TEXTS, latents=learned.encode(TEXTS))
    without = learned.score(TEXTS)
    assert (with_latent.nll < without.nll).all()
    assert with_latent.nll.mean() < 0.5
    assert without.nll.mean() > 0.5


def test_guidance_sharpens_at_twice_the_calls(learned):
    plain, guided = (
        learned.invert(learned.encode(TEXTS), sampler=text_sampler("random", guidance=scale), length=5)
        for scale in (1.0, 1.5)
    )
    assert guided.log_probs.sum() > plain.log_probs.sum()
    assert (guided.model_calls == 2 * plain.model_calls).all()


def test_generate_draws_what_was_learned(learned):
    out = learned.generate(40, order="text_first", sampler="random", steps=12, seed=2)
    assert np.mean([text in TEXTS for text in out.texts]) > 0.25
    assert len(set(out.texts) & set(TEXTS)) > 2
