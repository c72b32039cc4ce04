"""Arguments of MMLDLM that are refused before a model call: wrong types, wrong values, and lengths nobody can write."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from mm_ldlm.inference.inputs import read_texts
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.families.atat.objective import AdaptiveMaskingConfig
from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.inference import inputs
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

LATENTS = np.ones((2, 6), dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(2.5), "n: expected an integer, found 2.5"),
        (lambda m: m.generate("3"), "n: expected an integer, found '3'"),
        (lambda m: m.generate(True), "n: expected an integer, found True"),
        (lambda m: m.generate(0), "n must be at least 1, found 0"),
        (lambda m: m.generate(1, seed=2.5), "seed: expected an integer, found 2.5"),
        (lambda m: m.invert(LATENTS, seed="a"), "seed: expected an integer, found 'a'"),
        (lambda m: m.embed("w1", seed=None), "seed: expected an integer, found None"),
        (lambda m: m.infill("w1 [MASK]", seed=1.0), "seed: expected an integer, found 1.0"),
        (lambda m: m.edit("w1 w2", targets=LATENTS[:1], seed="0"), "seed: expected an integer"),
        (lambda m: m.edit("w1 w2", targets=LATENTS[:1], strength="all"), "strength must lie between 0 and 1"),
        (lambda m: m.score("w1", seed=0.5), "seed: expected an integer"),
        (lambda m: m.score("w1", draws=2.5), "draws: expected an integer, found 2.5"),
        (lambda m: m.score("w1", draws=True), "draws: expected an integer, found True"),
        (lambda m: m.score("w1", draws=0), "draws must be at least 1"),
        (lambda m: m.interpolate(LATENTS, LATENTS, steps=2.5), "steps .*: expected an integer, found 2.5"),
        (lambda m: m.interpolate(LATENTS, LATENTS, path=None), "path must be one of slerp, lerp, found None"),
        (lambda m: m.neighbours(LATENTS, LATENTS, k=1.5), "k: expected an integer, found 1.5"),
        (lambda m: m.embed("w1", too_long="trunc"), "too_long must be one of refuse, truncate, found 'trunc'"),
        (lambda m: m.invert(LATENTS, length=True), "length must be .* found True"),
        (lambda m: m.invert(LATENTS, length=2.5), "length must be .* found 2.5"),
        (lambda m: m.invert(LATENTS, length="top-0"), "length must be .* found 'top-0'"),
        (lambda m: m.invert(LATENTS, length="top-\u00b2"), "length must be"),
        (lambda m: m.invert(LATENTS, length=0), "length must be at least 1 token, found 0"),
        (lambda m: m.score_tokens([], []), "ids: expected at least one row, found none"),
        (lambda m: m.score_tokens([["1"]], ["w1"]), r"ids\[0\]: expected ids in 0\.\.22, found '1'"),
        (lambda m: m.score_tokens([1], ["w1"]), r"ids\[0\]: expected a list of ids, found 1"),
        (lambda m: m.score_tokens([[20]], ["w1"]), r"expected ids of words, found 20, which is \[PAD\]"),
        (lambda m: m.score_tokens([[1, 20, 2]], ["w1"]), r"expected ids of words, found 20, which is \[PAD\]"),
        (lambda m: m.embed_tokens([[1, 21]], ["w1"]), r"expected ids of words, found 21, which is \[MASK\]"),
    ],
)
def test_an_argument_of_a_wrong_type_or_value_is_one_sentence(call, message, model):
    with pytest.raises(SamplingError, match=message):
        call(model)


@pytest.mark.parametrize("sampler", [DdimConfig(), {"kind": "mm_ldlm.sampling.gaussian:DdimConfig"}])
def test_a_sampler_of_latents_does_not_write_texts(sampler, model):
    with pytest.raises(ConfigurationError, match=r"expected a text sampler, found .*DdimConfig, which is not one"):
        model.generate(1, sampler=sampler)
    with pytest.raises(ConfigurationError, match="expected a latent sampler, found ConfidenceConfig, which is not one"):
        model.embed("w1", sampler=text_sampler("confidence"))


class Broken:
    """A sequence, or an array, that fails where it is read."""

    def __iter__(self):
        raise RuntimeError("the disk is gone")

    def __array__(self, *args, **keys):
        raise RuntimeError("the disk is gone")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.embed(Broken()), r"texts: expected a list of texts, found one that cannot be read \(the disk"),
        (lambda m: m.neighbours(Broken(), LATENTS), r"latents: expected an array, found Broken \('the disk is gone'\)"),
        (lambda m: m.interpolate(LATENTS, LATENTS[:1]), "an end for each of 2 starts, found 1"),
        (lambda m: m.edit(["w1"] * 3, targets=LATENTS), "one for each of 3 sources, found 2 targets"),
        (lambda m: m.generate(1, length="top-2"), "length 'top-2' ranks texts instead of drawing them"),
        (lambda m: m.neighbours(LATENTS, LATENTS[0], k=1), r"an array of real numbers \(m, d\), found shape \(6,\)"),
        (lambda m: m.neighbours(LATENTS, LATENTS > 0, k=1), "an array of real numbers .* dtype .*bool"),
        (lambda m: m.neighbours(LATENTS, LATENTS[:, :5], k=1), "latents of dimension 5, as in the store, found 6"),
        (lambda m: m.neighbours(LATENTS, "store", k=1), "expected a latent store or an array"),
    ],
)
def test_what_cannot_be_read_or_does_not_fit_together_is_one_sentence(call, message, model):
    with pytest.raises(SamplingError, match=message):
        call(model)


def test_an_encoder_makes_one_vector_for_each_text(build):
    encoder = SimpleNamespace(dim=6, encode=lambda texts: np.ones((len(texts) + 1, 6), np.float32))
    with pytest.raises(SamplingError, match="a vector for each of 2 texts, the encoder made 3"):
        build(encoder=encoder).invert(["w1", "w2"])


def test_the_second_texts_of_pairs_are_truncated_and_refused_as_the_first_ones(parts):
    model, long = parts.make_classifier(pairs=True), "w1 " * 13
    cut = model.classify("w2", second=long, too_long="truncate")
    np.testing.assert_array_equal(cut.probabilities, model.classify("w2", second="w1 " * 12).probabilities)
    assert len(cut) == 1
    for first, second in (("w2", long), (long, "w2")):
        with pytest.raises(SamplingError, match="has 13 tokens, but the model reads at most 12"):
            model.classify(first, second=second)
    with pytest.raises(SamplingError, match="one second text for each of 1, found 2"):
        model.classify("w2", second=["w1", "w3"])


@pytest.mark.parametrize("sources", [[], ["one"], ["one", "two", "three"], ["one", 2], [b"one", "two"]])
def test_the_texts_of_latents_are_one_for_each(sources):
    engine = SimpleNamespace(capabilities=SimpleNamespace(require=lambda use: None), edge=SimpleNamespace(dim=6))
    with pytest.raises(SamplingError, match="sources: expected a text or None for each of 2 latents"):
        classifying.latents(engine, LATENTS[:2], sources)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), r"cannot be read \(Permission denied\)"),
        (OSError("gone"), ".* .gone"),
    ],
)
def test_a_file_of_vectors_that_the_host_does_not_give_is_named(error, words, tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", LATENTS)

    def refuse(path):
        raise error

    monkeypatch.setattr(inputs.npy, "read_npy", refuse)
    with pytest.raises(SamplingError, match=rf"a\.npy'? {words}"):
        inputs.read_npy(tmp_path / "a.npy", dim=6)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    for path, fault in ((tmp_path / "latin.txt", "cannot be read as UTF-8 text"), (tmp_path, "is a folder")):
        with pytest.raises(SamplingError, match=fault):
            read_texts(path)


def test_a_file_without_texts_is_named(tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(SamplingError, match=r"blank\.txt: expected at least one text, found none"):
        read_texts(tmp_path / "blank.txt")


def test_numbers_of_numpy_are_numbers(model):
    made = model.generate(np.int64(2), length=np.int64(4), steps=2, seed=np.int32(1))
    assert made.tokens == model.generate(2, length=4, steps=2, seed=1).tokens


@pytest.mark.parametrize(("option", "value"), [("order", "nope"), ("latent_sampler", "nope")])
def test_arguments_are_checked_where_the_run_does_not_use_them(option, value, text_model):
    with pytest.raises((SamplingError, ConfigurationError), match="'nope'"):
        text_model.generate(1, **{option: value})


@pytest.mark.parametrize("order", ["text_first", "latent_first", "together"])
def test_a_length_that_cannot_be_written_is_refused_before_texts_of_it_are_made(order, model, monkeypatch):
    """A canvas of a thousand million tokens would take the memory of the host."""
    monkeypatch.setattr(model._engine, "masks", lambda lengths: pytest.fail("a canvas was made"))
    monkeypatch.setattr(model._engine.latents, "_canvases", lambda lengths: pytest.fail("a canvas was made"))
    with pytest.raises(SamplingError, match=r"at most 12 tokens.*found a request for 1000000000"):
        model.generate(6, order=order, length=10**9, steps=2)
    with pytest.raises(SamplingError, match=r"at most 12 tokens.*or use the sampler 'blocks'"):
        model.invert(LATENTS, length=10**9)


@pytest.mark.parametrize("order", ["text_first", "latent_first", "together"])
def test_a_text_with_a_latent_fits_the_model(order, build):
    """The sampler 'blocks' writes longer texts, but the model reads no latent of them, and none together with them."""
    blocks = text_sampler("blocks", block_length=4, inner=text_sampler("confidence", steps=2))
    text = text_sampler("ancestral", steps=2) if order == "together" else blocks
    latent = latent_sampler("ddim", steps=2)
    if order == "latent_first":  # with a learned null text, a latent needs no length
        assert {len(row) for row in build().generate(1, order=order, sampler=text, length=30).tokens} == {30}
    model = build(objective=MultimodalConfig(mode="unconditional"))
    with pytest.raises(SamplingError, match="at most 12 tokens, the model's maximum length"):
        model.generate(1, order=order, sampler=text, latent_sampler=latent, length=30)


def test_the_sampler_blocks_is_not_advised_to_an_autoregressive_model(causal_model):
    with pytest.raises(SamplingError, match=r"at most 12 tokens.*Request a shorter text\.$"):
        causal_model.generate(1, length=30)


@pytest.mark.parametrize(("kind", "advised"), [("absorbing", True), ("uniform", False), ("gidd", False)])
def test_the_sampler_blocks_is_advised_where_it_fits(kind, advised, build_text):
    model = build_text(objective=parse(TextDiffusionConfig, {"process": {"kind": kind}}, at="objective"))
    with pytest.raises(SamplingError, match="Request a shorter text") as error:
        model.generate(1, length=30)
    assert ("'blocks'" in str(error.value)) == advised


def test_infilling_with_and_without_a_latent_are_two_uses(build):
    """Without condition dropout, the mode l2t trains no unknown latent; the mode unconditional trains no given one."""
    l2t = build(objective=MultimodalConfig(mode="l2t", condition_dropout=0.0))
    noise = build(objective=MultimodalConfig(mode="unconditional"))
    assert l2t.infill("w1 [MASK] w3", latents=LATENTS[:1], steps=2).tokens[0][0] == 1
    assert noise.infill("w1 [MASK] w3", steps=2).tokens[0][0] == 1
    for model, use, latents in ((l2t, "infill", None), (noise, "infill_given_latent", LATENTS[:1])):
        with pytest.raises(SamplingError) as error:
            model.infill("w1 [MASK] w3", latents=latents)
        assert str(error.value) == model.capabilities.refusal(use)


@pytest.mark.parametrize("objective", [TextDiffusionConfig, AdaptiveMaskingConfig])
def test_a_text_run_without_learned_lengths_writes_texts_of_a_given_length_only(objective, build_text):
    model = build_text(objective=objective(length_weight=0.0))
    with pytest.raises(SamplingError, match=r"not learned the distribution of lengths: .*objective\.length_weight 0"):
        model.generate(2)
    with pytest.raises(SamplingError, match=r"cannot score texts without a latent \(score\)"):
        model.score("w1")
    with pytest.raises(SamplingError, match="not learned the distribution of lengths"):
        model.model.length_log_probs(None, rows=1)
    assert {len(row) for row in model.generate(2, length=4, steps=2).tokens} == {4}


def test_a_search_at_one_given_length_needs_no_distribution_of_lengths(build):
    model = build(objective=MultimodalConfig(length_weight=0.0))
    search = SearchConfig(candidates=2)
    assert {len(row) for row in model.invert(LATENTS, length=3, search=search, steps=2).tokens} == {3}
    with pytest.raises(SamplingError, match="not learned the distribution of lengths"):
        model.invert(LATENTS, search=search, steps=2)


def test_latents_are_guided_where_a_null_text_was_trained(build):
    guided = latent_sampler("ddim", steps=2, guidance=2.0)
    assert len(build().embed("w1", sampler=guided))
    with pytest.raises(SamplingError, match="guidance 2"):
        build(objective=MultimodalConfig(condition_dropout=0.0)).embed("w1", sampler=guided)


def test_a_known_sampler_is_recognised_by_its_import_path(model):
    path = {"kind": "mm_ldlm.sampling.ancestral:AncestralConfig", "steps": 3}
    settings = {"order": "together", "latent_sampler": latent_sampler("ddim", steps=3), "seed": 4}
    made = model.generate(2, sampler=path, **settings)
    assert made.tokens == model.generate(2, sampler=path | {"kind": "ancestral"}, **settings).tokens
