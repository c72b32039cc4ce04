"""Models given latents, overfitted to four sentences: they rebuild, edit, score and generate these, and embed none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.latent_dit.objective import LatentConditionedConfig
from mm_ldlm.inference import MMLDLM
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch
from mm_ldlm.sampling.registry import text_sampler

STEPS = 160
COPIES = 6
TEXTS = ["w1 w2 w3 w4 w5", "w6 w7 w8", "w9 w10 w11 w12 w13 w14 w15", "w16 w2 w18 w1"]
KINDS = ("latent_dit", "latent_dit_cross")


def learn(made: MMLDLM, config: LatentConditionedConfig) -> None:
    """Overfit the model of `made` to TEXTS."""
    module, objective = made.model.model, config.build(made.shape)
    ids = made.tokenizer.encode(TEXTS) * COPIES
    tokens = torch.tensor([row + [20] * (7 - len(row)) for row in ids])
    fields = {"latents": made._engine.edge.standardised(made.encode(TEXTS)).repeat(COPIES, 1)}
    rows = torch.arange(len(ids))
    batch = Batch(tokens, tokens != 20, fields, rows, rows, len(ids), int((tokens != 20).sum()))
    optimizer = torch.optim.Adam(module.parameters(), lr=4e-3)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (STEPS - step) / 60)
        losses = objective(module, batch, RowGenerator(step, rows), kind="text", step=step)
        total = sum(objective.weights[k] * losses[k][0] / losses[k][1] for k in objective.weights if k in losses)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


@pytest.fixture(scope="module", params=KINDS)
def learned(request, parts):
    model = parse_kind(MODELS, {"kind": request.param, "dim": 48, "depth": 2, "heads": 2}, at="model")
    config = LatentConditionedConfig(condition_dropout=0.4)
    made = parts.make(objective=config, config=model)
    learn(made, config)
    return made


def test_the_sentences_are_rebuilt_from_their_latents(learned):
    latents = learned.encode(TEXTS)
    for sampler in (None, "ancestral", "threshold"):
        assert list(learned.invert(latents, sampler=sampler, steps=8).texts) == TEXTS
    found = learned.invert(latents, search=SearchConfig(candidates=3, rounds=1, lengths=2))
    assert list(found.texts) == TEXTS
    assert found.cosines.min() > 0.999


def test_infill_and_edit(learned):
    latents = learned.encode(TEXTS)
    assert learned.infill("w9 w10 [MASK] w12 [MASK] w14 w15", latents=latents[2]).texts[0] == TEXTS[2]
    assert learned.infill("w9 w10 [MASK] w12 [MASK] w14 w15").texts[0] == TEXTS[2]
    assert learned.edit("w16 w2 w18 w5", targets=latents[3], strength=0.25).texts[0] == TEXTS[3]
    ends = learned.interpolate(latents[:1], latents[1:2], steps=3).written.texts
    assert (ends[0], ends[2]) == (TEXTS[0], TEXTS[1])


def test_a_latent_is_worth_its_bits(learned):
    given, without = learned.score(TEXTS, latents=learned.encode(TEXTS)), learned.score(TEXTS)
    assert given.likelihood == "bound"
    assert (given.nll < without.nll).all()
    assert given.nll.mean() < 0.5
    assert given.length_nll.max() < 0.3 < without.length_nll.min(), "the length is known from the latent"


def test_guidance_rebuilds_them_at_twice_the_calls(learned):
    plain, guided = (
        learned.invert(learned.encode(TEXTS), sampler=text_sampler("confidence", steps=4, guidance=scale))
        for scale in (1.0, 1.5)
    )
    assert list(guided.texts) == TEXTS
    assert (guided.model_calls == 2 * plain.model_calls).all()


def test_texts_without_a_latent_are_those_that_were_learned(learned):
    out = learned.generate(40, sampler="random", steps=12, seed=2)
    assert out.latents is None
    assert np.mean([text in TEXTS for text in out.texts]) > 0.1
    assert len(set(out.texts) & set(TEXTS)) > 1


def test_it_embeds_nothing(learned):
    with pytest.raises(SamplingError) as error:
        learned.embed(TEXTS)
    assert str(error.value) == learned.capabilities.refusal("t2l")
    assert "objective latent_conditioned, process absorbing" in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_folder_is_enough(kind, parts, tmp_path):
    config = parse_kind(MODELS, {"kind": kind, "dim": 32, "depth": 2, "heads": 2}, at="model")
    parts.write_run(tmp_path / "run-1", objective=LatentConditionedConfig(), config=config)
    model = MMLDLM.from_run(tmp_path / "run-1", encoder=parts.BagEncoder())
    assert len(model.invert(model.encode(TEXTS)).texts) == 4
    assert len(model.generate(2)) == 2
