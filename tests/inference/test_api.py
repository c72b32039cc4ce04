"""The Python API, on a tiny model in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mm_ldlm.objectives.multimodal_options import ModeWeights
from mm_ldlm.sampling.config import SearchConfig, UnconditionalConfig

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler, text_sampler

ORDERS = ("together", "latent_first", "text_first")
SAMPLERS = {"text": {"kind": "confidence"}, "latent": {"kind": "ddim", "draws": 4}}
OTHER_MODELS = ("autoregressive", "self_correction", "joint_states")  # samplers that need another model
DIFFUSION_SAMPLERS = tuple(kind for kind in TEXT_SAMPLERS.known if kind not in OTHER_MODELS)


def sampler_of(kind):
    given = {"ddpm_cache": {"timestep": "mask_ratio"}, "blocks": {"inner": text_sampler("confidence")}}
    return text_sampler(kind, **given.get(kind, {}))


@pytest.mark.parametrize("kind", DIFFUSION_SAMPLERS)
def test_invert_writes_with_every_sampler(kind, model, unit_latents):
    out = model.invert(unit_latents(5), sampler=sampler_of(kind), steps=4)
    assert len(out) == 5
    assert all(20 not in row and 21 not in row for row in out.tokens)
    assert (out.model_calls >= 1).all()
    assert list(out.to_frame().columns) == [
        "source",
        "text",
        "length",
        "log_prob",
        "model_calls",
        "encoder_calls",
        "latent",
        "latent_norm",
    ]


@pytest.mark.parametrize("kind", LATENT_SAMPLERS.known)
def test_embed_draws_with_every_sampler(kind, model):
    out = model.embed(["w1 w2 w3", "w4"], sampler=kind, steps=None if kind == "one_step" else 3)
    assert out.latents.shape == (2, 6)
    assert np.allclose(np.linalg.norm(out.latents, axis=1), 1, atol=1e-5)
    assert (out.model_calls == {"heun": 5, "one_step": 1}.get(kind, 3)).all()


def test_given_texts_are_written_surely_and_noise_is_drawn(model, unit_latents):
    latents = unit_latents(3)
    sure = text_sampler("confidence", steps=4, temperature=0.0)
    assert model.invert(latents, seed=1).tokens == model.invert(latents, sampler=sure, seed=2).tokens
    named = model.invert(latents, sampler="margin", steps=2, seed=1).tokens
    assert named == model.invert(latents, sampler=text_sampler("margin", steps=2, temperature=0.0), seed=2).tokens
    drawn = text_sampler("confidence", steps=32)
    assert model.generate(6, seed=1).tokens == model.generate(6, sampler=drawn, order="text_first", seed=1).tokens
    assert model.generate(6, seed=1).tokens != model.generate(6, seed=2).tokens


def test_its_text_names_the_parameters_and_the_uses_in_one_line(model):
    count = sum(parameter.numel() for parameter in model.model.model.parameters())
    assert repr(model).startswith(f"MMLDLM({count:,} parameters, objective multimodal, modes ")
    assert repr(model).endswith("; can l2t, t2l, unconditional, infill, infill_given_latent, edit, interpolate, "
                                "search, score, score_given_latent)")  # fmt: skip


def test_words_outside_the_vocabulary_are_said(model, unit_latents, caplog):
    model.score(["w1 zebra w2", "w3"])
    infilled = model.infill(["w1 [MASK] zebra"], latents=unit_latents(1))
    edited = model.edit(["w1 zebra"], targets=unit_latents(1), strength=0.0)
    model.embed(["zebra"], steps=1)
    model.invert(["w3 zebra"], steps=1)
    found = [record.getMessage() for record in caplog.records if "outside this model's vocabulary" in record.message]
    warning = "texts contain words outside this model's vocabulary;"
    read = "it reads them as [UNK]"
    assert found == [
        f"1 of 2 {warning} {read}: 'w1 zebra w2'",
        f"1 of 1 {warning} {read}, and the result keeps them as they are written: 'w1 [MASK] zebra'",
        f"1 of 1 {warning} {read}, and the result keeps those that are not rewritten: 'w1 zebra'",
        f"1 of 1 {warning} {read}: 'zebra'",
        f"1 of 1 {warning} the encoder reads them, but the model cannot write them: 'w3 zebra'",
    ]
    assert infilled.texts[0].startswith("w1 ")
    assert infilled.texts[0].endswith(" zebra")
    assert edited.texts == ("w1 zebra",)
    caplog.clear()
    model.score(["w1 w2"])
    model._engine.edge.targets(["w3 zebra"], written=False)  # as for classes: the encoder reads every word
    assert not caplog.records


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["mixed", "unconditional"])
def test_generate_in_every_order(order, mode, build):
    out = build(objective=MultimodalConfig(mode=mode)).generate(6, order=order, steps=3, seed=1)
    assert len(out.texts) == 6
    assert out.latents.shape == (6, 6)
    assert np.isfinite(out.latents).all()
    assert all(1 <= len(row) <= 12 for row in out.tokens)


@pytest.mark.parametrize("order", ["together", "latent_first"])
def test_latents_of_unknown_texts_are_never_averaged(order, build):
    made = build(objective=MultimodalConfig(mode="mixed"))
    several = latent_sampler("ddim", steps=3, draws=4)
    with pytest.raises(SamplingError, match=f"in the order '{order}' each draw is the latent of a different"):
        made.generate(2, order=order, latent_sampler=several, steps=3)
    with pytest.raises(ConfigurationError, match="set draws to 1"):
        parse(UnconditionalConfig, {"order": order, **SAMPLERS}, at="sampling.unconditional")
    assert len(made.generate(2, order="text_first", latent_sampler=several, steps=3)) == 2
    parse(UnconditionalConfig, {"order": "text_first", **SAMPLERS}, at="sampling.unconditional")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"sampler": "confidence"}, "expected text.kind 'ancestral', found 'confidence'"),
        ({"latent_sampler": "ddpm"}, "expected latent.kind 'ddim', found 'ddpm'"),
        ({"sampler": text_sampler("ancestral", steps=5)}, "expected text.steps 3, found 5"),
        ({"sampler": text_sampler("ancestral", steps=3, guidance=2.0)}, "expected text.guidance 1.0, found 2.0"),
        ({"latent_sampler": latent_sampler("ddim", steps=3, guidance=2.0)}, "expected latent.guidance 1.0, found 2.0"),
    ],
)
def test_joint_denoising_refuses_what_it_would_ignore(settings, found, build):
    made = build(objective=MultimodalConfig(mode="mixed"))
    given = {"latent_sampler": latent_sampler("ddim", steps=3), **settings}
    with pytest.raises(SamplingError, match=found):
        made.generate(2, order="together", **given)
    with pytest.raises(ConfigurationError, match="takes ancestral steps in the text"):
        parse(
            UnconditionalConfig,
            {"order": "together", "text": {"kind": "confidence"}, "latent": {"kind": "ddim"}},
            at="sampling.unconditional",
        )
    assert len(made.generate(2, order="together", sampler="ancestral", latent_sampler=latent_sampler("ddim", steps=3)))


@pytest.mark.parametrize("option", ["length_weight", "condition_dropout"])
def test_lengths_that_were_not_learned_are_refused(option, build):
    made = build(objective=MultimodalConfig(mode="unconditional", **{option: 0.0}))
    with pytest.raises(SamplingError, match=rf"distribution of lengths.*objective\.{option} 0\. Give the length"):
        made.generate(2, order="together")
    assert len(made.generate(2, order="together", length=4, steps=2)) == 2


def test_one_step_has_no_steps(model):
    with pytest.raises(ConfigurationError, match=r"parameter 'sampler\.steps' is not known"):
        model.embed("w1", sampler="one_step", steps=3)


def test_what_was_not_trained_is_refused(build, unit_latents):
    l2t, t2l = (build(objective=MultimodalConfig(mode=mode)) for mode in ("l2t", "t2l"))
    for model, use, call in (
        (l2t, "unconditional", lambda: l2t.generate(2)),
        (l2t, "t2l", lambda: l2t.embed("w1")),
        (t2l, "l2t", lambda: t2l.invert(unit_latents(1))),
        (t2l, "infill", lambda: t2l.infill("w1 [MASK]")),
        (t2l, "score", lambda: t2l.score("w1")),
    ):
        with pytest.raises(SamplingError) as error:
            call()
        assert str(error.value) == model.capabilities.refusal(use)
    given = build(objective=MultimodalConfig(loss_type_weights=ModeWeights(unconditional=0)))
    with pytest.raises(SamplingError) as error:
        given.generate(2, order="together")
    assert str(error.value) == (
        "this run cannot generate texts and latents in the order 'together': it was trained with objective multimodal, "
        "modes l2t, t2l. Orders that it supports: latent_first, text_first."
    )


def test_batching_changes_nothing(model, unit_latents):
    targets = unit_latents(9)
    one = model.invert(targets, length="sample", seed=3)
    model._engine.writer.batch_tokens = 20
    other = model.invert(targets, length="sample", seed=3)
    assert one.tokens == other.tokens
    assert (one.model_calls == other.model_calls).all()


def test_batching_changes_no_latent(model):
    """The noise of a latent is that of its row in the request, not of its place in a batch."""
    texts, sampler = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w2 w3"], latent_sampler("ddpm", steps=3)
    together = model.embed(texts, sampler=sampler, seed=3).latents
    model._engine.latents.batch_tokens = 1
    np.testing.assert_allclose(model.embed(texts, sampler=sampler, seed=3).latents, together, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_pairs_stay_together_in_batches_by_length(batch_tokens, parts):
    model = parts.make_classifier(pairs=True)
    with torch.no_grad():  # the head starts at 0
        for module in (value for value in vars(model.model).values() if isinstance(value, torch.nn.Module)):
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
    first, second = ["w1 w2 w3 w4 w5", "w6", "w7 w8 w9", "w2"], ["w3", "w4 w5 w6 w7", "w8", "w9 w1"]
    alone = [model.classify(a, second=b).probabilities[0] for a, b in zip(first, second, strict=True)]
    assert min(np.abs(a - b).max() for i, a in enumerate(alone) for b in alone[:i]) > 1e-3
    model._engine.batch_tokens = batch_tokens
    np.testing.assert_allclose(model.classify(first, second=second).probabilities, alone, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "allowed"),
    [(5, {5}), ("argmax", set(range(1, 13))), ("sample", set(range(1, 13))), ("top-3", set(range(1, 13)))],
)
def test_lengths(length, allowed, model, unit_latents):
    out = model.invert(unit_latents(8), length=length)
    assert {len(row) for row in out.tokens} <= allowed


def test_a_length_beyond_the_model_is_for_blocks(model, unit_latents):
    with pytest.raises(SamplingError, match=r"expected a text of at most 12 tokens.*found a request for 30"):
        model.invert(unit_latents(1), length=30)
    out = model.invert(
        unit_latents(2), length=30, sampler=text_sampler("blocks", block_length=4, inner=text_sampler("confidence"))
    )
    assert [len(row) for row in out.tokens] == [30, 30]


def test_search_never_lowers_the_cosine_and_counts(model):
    sources = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9"]
    targets = model.encode(sources)
    plain = model.invert(targets, reembed=True)
    before = model.encoder.calls
    found = model.invert(targets, search=SearchConfig(candidates=4, rounds=2, beam=2, lengths=2))
    assert (found.cosines >= plain.cosines - 1e-6).all()
    assert found.cosines.mean() > plain.cosines.mean()
    assert (found.model_calls > plain.model_calls).all()
    assert found.encoder_calls.sum() == model.encoder.calls - before


def test_invert_texts_keeps_the_sources(model):
    out = model.invert(["w1 w2", "w3"])
    assert out.sources == ("w1 w2", "w3")


def test_infill_keeps_what_is_given(model, unit_latents):
    texts = ["w1 [MASK] w3", "[MASK] w5 w6 [MASK] w7"]
    for latents in (None, unit_latents(2)):
        out = model.infill(texts, latents=latents)
        assert out.tokens[0][0] == 1
        assert out.tokens[0][2] == 3
        assert out.tokens[1][1:3] == (5, 6)
        assert len(out.tokens[1]) == 5
    with pytest.raises(SamplingError, match=r"expected at least one '\[MASK\]'"):
        model.infill("w1 w2")


def test_edit_strength_and_choice_have_their_effect(model, unit_latents):
    source, target = ["w1 w2 w3 w4 w5 w6 w7 w8"], unit_latents(1)
    kept = {}
    for strength in (0.0, 0.5, 1.0):
        out = model.edit(source, targets=target, strength=strength)
        assert len(out.tokens[0]) == 8
        kept[strength] = sum(a == b for a, b in zip(out.tokens[0], range(1, 9), strict=True))
    assert kept[0.0] == 8
    assert 4 <= kept[0.5] < 8
    assert kept[1.0] < 8
    chosen = model.edit(source, targets=target, which="least_likely")
    random = model.edit(source, targets=target, which="random")
    assert chosen.tokens != random.tokens
    assert int(chosen.model_calls[0] - random.model_calls[0]) == 4


def test_interpolate_ends_are_the_inversions(model, unit_latents):
    a, b = unit_latents(2, 1), unit_latents(2, 2)
    for path in ("slerp", "lerp"):
        out = model.interpolate(a, b, steps=4, path=path)
        assert len(out.written) == 8
        assert np.allclose(out.written.latents[0], a[0], atol=1e-6)
        assert np.allclose(out.written.latents[7], b[1], atol=1e-6)
        norms = np.linalg.norm(out.written.latents, axis=1)
        assert np.allclose(norms, 1, atol=1e-5) == (path == "slerp")
    assert list(out.to_frame()["fraction"]) == [0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1] * 2


def test_neighbours_by_cosine(model, unit_latents):
    store = unit_latents(50)
    found = model.neighbours(store[[7, 3]] * 4, store, k=3)
    assert found.rows[:, 0].tolist() == [7, 3]
    assert found.cosines[0, 0] == pytest.approx(1, abs=1e-5)
    assert (np.diff(found.cosines, axis=1) <= 0).all()
    assert len(found.to_frame()) == 6


def test_draws_are_averaged(model):
    many = model.embed(["w1 w2"], sampler=latent_sampler("ddpm", steps=4, draws=5))
    assert many.draws.shape == (5, 1, 6)
    assert (many.model_calls == 20).all()
    few = model.embed(["w1 w2"], sampler=latent_sampler("ddpm", steps=4, draws=2))
    assert np.allclose(few.draws, many.draws[:2], atol=1e-6)


def test_bad_requests_say_what_is_wrong(model, unit_latents, tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"expected a text sampler, found 'ancestrel'.*Did you mean 'ancestral'"
    ):
        model.invert(unit_latents(1), sampler="ancestrel")
    with pytest.raises(ConfigurationError, match=r"expected a latent sampler, found 'dimm'.*Known here: ddpm, ddim"):
        model.embed("w1", sampler="dimm")
    with pytest.raises(SamplingError, match="order must be one of together, latent_first, text_first, found 'both'"):
        model.generate(1, order="both")
    with pytest.raises(SamplingError, match=r"texts\[1\] is empty"):
        model.embed(["w1", "  "])
    with pytest.raises(SamplingError, match="has 13 tokens, but the model reads at most 12"):
        model.embed(" ".join(["w1"] * 13))
    with pytest.raises(SamplingError, match=r"dim 6, found shape \(2, 5\)"):
        model.invert(np.zeros((2, 5)))
    with pytest.raises(SamplingError, match=r"in 1 of 3 vectors \(rows \[1\]\)"):
        model.invert(np.array([[1.0] * 6, [np.nan] * 6, [1.0] * 6]))
    with pytest.raises(SamplingError, match="length must be 'argmax'"):
        model.invert(unit_latents(1), length="longest")
    np.save(tmp_path / "wide.npy", np.zeros((2, 9)))
    with pytest.raises(SamplingError, match=r"wide\.npy: expected vectors of dim 6"):
        model.invert(tmp_path / "wide.npy")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(SamplingError, match="pickled objects, which are never loaded"):
        model.invert(tmp_path / "objects.npy")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(SamplingError, match=r"text\.npy"):
        model.invert(tmp_path / "text.npy")
    np.save(tmp_path / "strings.npy", np.array(["a", "b"]))
    with pytest.raises(SamplingError, match="expected real numbers"):
        model.invert(tmp_path / "strings.npy")
    with pytest.raises(SamplingError, match=r"is not a \.npy file"):
        model.invert(tmp_path / "text.npy")
    with pytest.raises(SamplingError, match="beyond float32"):
        model.invert(np.full((1, 6), 1e300))
    with pytest.raises(SamplingError, match="rows of unequal length"):
        model.invert([[1.0, 2.0], [1.0]])
    with pytest.raises(SamplingError, match="unpaired surrogate"):
        model.embed("w1 \ud800")
    with pytest.raises(SamplingError, match="expected a text or a list of texts, found NoneType"):
        model.embed(None)
    with pytest.raises(SamplingError, match=r"ids\[0\]: expected ids in 0\.\.22, found 99"):
        model.embed_tokens([[99]], ["w1"])
    with pytest.raises(SamplingError, match="one row of ids for each of 2 texts, found 1 rows"):
        model.score_tokens([[1]], ["w1", "w2"])
    for name in ("steps", "draws"):
        with pytest.raises(SamplingError, match=rf"{name} must be at least 1, found 0"):
            model.embed("w1", **{name: 0})
    with pytest.raises(
        ConfigurationError, match="parameter 'sampler': expected a mapping with the key 'kind', found 3"
    ):
        model.invert(unit_latents(1), sampler=3)
    with pytest.raises(SamplingError, match=r"absent\.npy' does not exist"):
        model.invert(tmp_path / "absent.npy")


def test_npy_files_invert(model, unit_latents, tmp_path):
    np.save(tmp_path / "some.npy", unit_latents(3).astype(np.float16))
    assert len(model.invert(tmp_path / "some.npy")) == 3
    assert len(model.invert(str(tmp_path / "some.npy"))) == 3


def test_without_an_encoder_texts_need_one(build, unit_latents):
    model = build()
    model._engine.edge.loaded = None
    assert len(model.invert(unit_latents(2))) == 2
    with pytest.raises(SamplingError, match="expected the encoder that made the latents"):
        model.invert(["w1"])
