"""A model overfitted to four sentences: every sampler rebuilds them, and the other requests agree with the latents."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.inference.runs import MMDIT, MULTIMODAL, BagEncoder, make, root_of, tokenizer

from mm_ldlm.core import SamplingError, parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.loading import Parts
from mm_ldlm.inference.requests.generation import _several
from mm_ldlm.inference.results import Texts
from mm_ldlm.models.base import MODELS
from mm_ldlm.objectives.base import OBJECTIVES, Batch
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.search import SearchConfig

STEPS = 260
TEXTS = ["w1 w2 w3 w4 w5", "w6 w7 w8", "w9 w10 w11 w12 w13 w14 w15", "w16 w2 w18 w1"]
OBJECTIVE = MULTIMODAL | {
    "loss_type_weights": {"l2t": 3, "t2l": 2, "unconditional": 0}, "parameterisation": "x0", "latent_loss": "uniform",
    "latent_weight": 1.0, "condition_dropout": 0.25,
}  # fmt: skip


@pytest.fixture(scope="module")
def learned() -> MMLDLM:
    root = root_of(MMDIT | {"dim": 48}, OBJECTIVE, spread=0.0).requires_grad_(True)
    plain, pad = make(), tokenizer().pad_id
    ids = tokenizer().encode(TEXTS) * 8
    tokens_BL = torch.tensor([row + [pad] * (7 - len(row)) for row in ids])
    latents_Bd = plain.standardised(plain.encode(TEXTS)).repeat(8, 1)
    rows, valid_BL = torch.arange(len(ids)), tokens_BL != pad
    batch = Batch(tokens_BL, valid_BL, {"latents": latents_Bd}, rows, rows, len(ids), int(valid_BL.sum()))
    optimizer = torch.optim.Adam(root.parameters(), lr=4e-3)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (STEPS - step) / 60)
        generator = RowGenerator(step, rows)
        kind = root.objective.kind(generator, step=step)
        losses, weights = root(batch, generator, kind=kind, step=step), root.objective.weights
        optimizer.zero_grad()
        sum(weights[name] * losses[name][0] / losses[name][1] for name in weights if name in losses).backward()
        optimizer.step()
    objective, model = parse_kind(OBJECTIVES, OBJECTIVE, at=""), parse_kind(MODELS, MMDIT | {"dim": 48}, at="")
    frozen = root.requires_grad_(False).eval()
    able = objective.capabilities(model)
    parts = Parts(frozen.objective.generative_model(frozen.model), able, tokenizer(), plain.normalisers)
    return MMLDLM(parts, BagEncoder())


class Loud(BagEncoder):
    """An encoder whose vectors have another norm than those of the run."""

    def encode(self, sentences: Any) -> Any:
        return 7 * super().encode(sentences)


def test_search_infilling_editing_and_interpolation_agree(learned: MMLDLM) -> None:
    latents = learned.encode(TEXTS)
    found = learned.invert(latents, search=SearchConfig(candidates=3, rounds=1, lengths=2))
    assert list(found.texts) == TEXTS
    assert found.cosines.min() > 0.999
    growing = {"candidates": 4, "rounds": 4, "infill": 1.0}
    grown = learned.invert(latents, length=2, search=growing)
    assert max(map(len, grown.tokens)) > 2
    loud = MMLDLM(learned.parts, Loud()).invert(latents, length=2, search=growing)
    assert loud.texts == grown.texts, "whatever the norm of the encoder's vectors"
    again_nd = learned.reembedded(TEXTS, 3 * latents)[1]
    np.testing.assert_allclose(again_nd, learned.normaliser.standardise(3 * latents), atol=1e-4)
    assert learned.infill("w9 w10 [MASK] w12 [MASK] w14 w15", latents=latents[2]).texts[0] == TEXTS[2]
    assert learned.infill("w9 w10 [MASK] w12 [MASK] w14 w15").texts[0] == TEXTS[2]
    edited = learned.edit("w16 w2 w18 w5", targets=latents[3], strength=0.25)
    assert edited.texts[0] == TEXTS[3], "the word that is least likely given the latent is rewritten"
    assert edited.model_calls.tolist() == [4 + 1], "four calls choose it, and one writes it"
    path = learned.interpolate(TEXTS[:2], TEXTS[2:], steps=3)
    assert [path.texts[place] for place in (0, 2, 3, 5)] == [TEXTS[0], TEXTS[2], TEXTS[1], TEXTS[3]]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.integers(1, 60), samples=st.integers(1, 3), keep=st.sampled_from(["best", "all"]),
    sampler=st.sampled_from([
        text_sampler("confidence", steps=2, temperature=0.0), text_sampler("ancestral", steps=5, guidance=1.5),
        text_sampler("threshold", steps=3), text_sampler("ddpm_cache", steps=2),
        text_sampler("blocks", block_length=5, inner={"kind": "random", "steps": 2}),
    ]),
    how=st.sampled_from([{}, {"length": 9}, {"length": "sample"}, {"search": {"candidates": 2, "rounds": 3}}]),
)  # fmt: skip
@example(
    calls=20, samples=1, keep="all", sampler=text_sampler("blocks", block_length=5, inner={"kind": "random", "steps": 2}),
    how={"search": {"rounds": 20}},
)  # fmt: skip
@example(
    calls=12, samples=2, keep="all", sampler=text_sampler("confidence", steps=2, temperature=0.0),
    how={"search": {"candidates": 2, "rounds": 9}},
)  # fmt: skip
def test_no_text_takes_more_than_its_calls_or_depends_on_its_batch(
    calls: int, samples: int, keep: Any, sampler: Any, how: dict[str, Any], model: MMLDLM, unit_latents: Any
) -> None:
    latents, how = unit_latents(3), {"sampler": sampler, "samples": samples, **how}
    if calls < samples * sampler.most_calls(12):
        with pytest.raises(SamplingError, match="calls"):
            model.invert(latents, calls=calls, keep=keep, **how)
        return
    made = model.invert(latents, calls=calls, keep=keep, **how)
    alone = make(batch_tokens=1).invert(latents, calls=calls, keep=keep, **how)
    assert (alone.texts, [*alone.model_calls]) == (made.texts, [*made.model_calls])
    spent_n = made.model_calls.reshape(3, -1).sum(axis=1)
    assert spent_n.max() <= calls
    least = calls - samples * sampler.override(steps=1).most_calls(12)
    assert "search" in how or spent_n.min() >= least, "of each sample at most one call is left"
    assert how.get("length") != 9 or {len(ids) for ids in made.tokens} == {9}


def test_certain_samples_differ_in_their_length_the_most_probable_ones_first(model: MMLDLM, unit_latents: Any) -> None:
    latents = unit_latents(5)
    made, one = model.invert(latents, samples=3, keep="all"), model.invert(latents)
    drawn = model.invert(latents, samples=3, keep="all", temperature=1.0, reembed=True)
    cosines = model.invert(latents, samples=3, keep="all", reembed=True).cosines
    again_nd, unit_nd = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (model.encode(made.texts), latents))
    assert np.allclose(cosines, (again_nd * np.repeat(unit_nd, 3, axis=0)).sum(axis=1), atol=1e-5)
    log_probs_nN = model.writer.length_log_probs(model.standardised(latents), rows=5).numpy()
    lengths_nk = np.array([len(ids) for ids in made.tokens]).reshape(5, 3)
    assert (lengths_nk == (-log_probs_nN).argsort(axis=1)[:, :3] + 1).all()
    assert [len(ids) for ids in drawn.tokens] == lengths_nk[:, 0].repeat(3).tolist(), "drawn texts of one length"
    firsts_n = [(2, row[0])[place % 2] for place, row in enumerate(lengths_nk.tolist())]
    one_nk, two_nk = (
        [[len(canvas) for canvas in row] for row in model.writer._starting_canvases(
            model.standardised(latents), firsts_n, SearchConfig(candidates=3, lengths=count)
        )]
        for count in (1, 2)
    )  # fmt: skip
    choices = [
        [first, *(each for each in row if each != first)]
        for first, row in zip(firsts_n, lengths_nk.tolist(), strict=True)
    ]
    assert (one_nk, two_nk) == ([[a] * 3 for a, *_ in choices], [[a, b, a] for a, b, *_ in choices])
    assert len(model.writer.length_log_probs(torch.zeros(5_000, model.dim), rows=5_000)) == 5_000
    assert list(made.texts[::3]) == list(one.texts)
    joint_nk = made.log_probs.reshape(5, 3) + 0.5 * np.take_along_axis(log_probs_nN, lengths_nk - 1, axis=1)
    assert (made.best.reshape(5, 3).argmax(axis=1) == joint_nk.argmax(axis=1)).all()


def test_the_best_of_several_texts_is_that_of_the_highest_cosine_or_log_probability() -> None:
    made = Texts(  # three samples of two latents
        texts=tuple("abcdef"), tokens=((1,),) * 6, log_probs=np.array([-1.0, -9.0, -3.0, -4.0, -8.0, -2.0]),
        model_calls=np.arange(6), encoder_calls=np.ones(6, int), sources=(None,) * 6,
        cosines=np.array([0.1, 0.9, 0.8, 0.2, 0.3, 0.4]),
    )  # fmt: skip
    found, without = (_several(made, 2, 3, "best", scores_n=scores) for scores in (made.cosines, made.log_probs))
    assert (found.texts, without.texts) == (("c", "b"), ("a", "f"))
    assert (found.model_calls.tolist(), found.encoder_calls.tolist()) == ([0 + 2 + 4, 1 + 3 + 5], [3, 3])
    every = _several(made, 2, 3, "all", scores_n=made.cosines)
    assert (every.texts, every.best.tolist()) == (tuple("acebdf"), [False, True, False, True, False, False])


def test_embedding_comes_near_the_encoder(learned: MMLDLM) -> None:
    def cosine(**how: Any) -> Any:
        return np.einsum("nd,nd->n", learned.embed(TEXTS, **how).latents, learned.encode(TEXTS)).mean()

    assert cosine(steps=10, draws=4) > 0.9
    assert cosine(sampler="one_step", draws=8) > 0.9


ORDERS: Any = [("text_first", None), ("latent_first", None), ("latent_first", 3), ("together", 3)]


def test_a_search_draws_at_its_temperature_and_its_children_take_its_steps(
    model: MMLDLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, write = set[Any](), type(model.model).write

    def watched(*given: Any, sampler: Any, **named: Any) -> Any:
        used.add((sampler.temperature, sampler.steps))
        return write(*given, sampler=sampler, **named)

    monkeypatch.setattr(type(model.model), "write", watched)
    model.invert(np.eye(3, 6), search=SearchConfig(candidates=2, rounds=2, temperature=0.5, steps=3))
    assert used == {(0.0, 4), (0.5, 4), (0.5, 3)}


def test_guidance_takes_twice_the_calls_and_each_modality_its_own(learned: MMLDLM, model: MMLDLM) -> None:
    vectors = learned.encode(TEXTS)
    plain, guided = (learned.invert(vectors, sampler=text_sampler("random", guidance=scale)) for scale in (1.0, 1.5))
    assert (guided.model_calls == 2 * plain.model_calls).all()
    made = [model.generate(2, order=order, length=12, steps=steps) for order, steps in ORDERS]
    assert [each.model_calls.tolist() for each in made] == [[12 + 20] * 2, [12 + 20] * 2, [3 + 3] * 2, [3] * 2]
