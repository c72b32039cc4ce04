"""A run without latents: it generates, infills and scores texts, and refuses every use of a latent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mm_ldlm.inference.choices import latent_config, text_config

from mm_ldlm import MMLDLM
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

LATENTS = np.ones((1, 6), dtype=np.float32)


@pytest.mark.parametrize(
    ("use", "call"),
    [
        ("l2t", lambda model: model.invert(LATENTS)),
        ("l2t", lambda model: model.invert("w1")),
        ("t2l", lambda model: model.embed("w1")),
        ("t2l", lambda model: model.embed_tokens([[1]], ["w1"])),
        ("edit", lambda model: model.edit("w1 w2", targets=LATENTS)),
        ("interpolate", lambda model: model.interpolate(LATENTS, LATENTS)),
        ("infill_given_latent", lambda model: model.infill("w1 [MASK]", latents=LATENTS)),
        ("score_given_latent", lambda model: model.score("w1", latents=LATENTS)),
        ("score_given_latent", lambda model: model.score_tokens([[1]], ["w1"], latents=LATENTS)),
    ],
)
def test_every_use_of_a_latent_is_refused_in_the_words_of_the_capabilities(use, call, text_model):
    with pytest.raises(SamplingError) as error:
        call(text_model)
    assert str(error.value) == text_model.capabilities.refusal(use)
    assert "It can: unconditional, infill, score." in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.dim,
        lambda model: model.encoder,
        lambda model: model.encode("w1"),
        lambda model: model.neighbours(LATENTS, LATENTS, k=1),
    ],
)
def test_what_needs_a_latent_is_refused_without_latents(call, text_model):
    with pytest.raises(SamplingError, match="this run has no latents: its objective reads none"):
        call(text_model)


def test_texts_are_generated_without_latents(text_model):
    out = text_model.generate(8, seed=1)
    assert len(out) == 8
    assert out.latents is None
    assert out.cosines is None
    assert all(1 <= len(row) <= 12 and not {20, 21} & set(row) for row in out.tokens)
    assert "latent" not in out.to_frame().columns
    assert {len(row) for row in text_model.generate(3, length=5).tokens} == {5}
    assert text_model.generate(8, seed=1).tokens == out.tokens
    assert text_model.generate(8, seed=2).tokens != out.tokens


def test_infilling_and_scoring_need_no_latent(text_model):
    assert text_model.infill("w1 [MASK] w3").tokens[0][::2] == (1, 3)
    scores = text_model.score(["w1 w2 w3"], draws=4)
    assert scores.likelihood == "bound"
    assert np.isfinite(scores.nll).all()


def test_a_run_folder_without_a_normaliser_is_enough(text_run_folder):
    model = MMLDLM.from_run(text_run_folder)
    assert model.shape.latent_dim is None
    assert not model.capabilities.reads_latents
    assert model.parts.normaliser is None
    assert len(model.generate(2)) == 2
    with pytest.raises(SamplingError, match="this run has no latents"):
        _ = model.encoder


# -- samplers by kind, by configuration, and by default ----------------------------------------------------------------

DEFAULT = text_sampler("confidence", steps=5, temperature=0.25, top_k=3)


def test_a_sampler_by_name_inherits_steps_and_temperature_of_the_default():
    chosen = text_config("margin", None, default=DEFAULT)
    assert (chosen.kind, chosen.steps, chosen.temperature) == ("margin", 5, 0.25)
    assert chosen.top_k is None, "the other keys are the kind's own defaults"
    assert text_config("margin", 2, default=DEFAULT) == text_sampler("margin", steps=2, temperature=0.25)


def test_blocks_by_name_has_the_default_inside():
    chosen = text_config("blocks", None, default=DEFAULT)
    assert (chosen.kind, chosen.inner) == ("blocks", DEFAULT)
    assert text_config("blocks", 2, default=DEFAULT).inner == DEFAULT.override(steps=2)


def test_no_sampler_is_the_default_and_a_configuration_is_itself():
    assert text_config(None, None, default=DEFAULT) == DEFAULT
    given = text_sampler("threshold", threshold=0.7)
    assert text_config(given, None, default=DEFAULT) is given
    assert text_config({"kind": "entropy"}, 3, default=DEFAULT) == text_sampler("entropy", steps=3)
    assert latent_config(None, None, None) == latent_sampler("ddim")
    assert latent_config("ddpm", 3, 2) == latent_sampler("ddpm", steps=3, draws=2)
    with pytest.raises(SamplingError, match="steps must be at least 1, found 0"):
        text_config("margin", 0, default=DEFAULT)


def test_a_text_beyond_the_window_is_written_in_windows_of_it(text_model) -> None:
    """Without a window the model would read positions that it was never trained on."""
    module, read = text_model._engine.model.model, []
    module.register_forward_pre_hook(lambda _, given, named: read.append((given, named)), with_kwargs=True)
    window = text_model._engine.shape.max_length
    sampler = text_sampler("blocks", block_length=4, inner=text_sampler("random", steps=2))
    found = text_model.generate(2, length=window + 8, sampler=sampler)
    assert [len(tokens) for tokens in found.tokens] == [window + 8] * 2
    lengths = {t.shape[1] for given, named in read for t in (*given, *named.values())
               if isinstance(t, torch.Tensor) and t.ndim == 2 and t.dtype == torch.int64}  # fmt: skip
    assert max(lengths) == window
