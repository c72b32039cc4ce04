"""Numbers that are not finite, in weights and in inputs: an error that names the tensor or the row, never a text."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mm_ldlm.inference.finite import bad_weight, check_finite, check_words

from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler, text_sampler

LATENTS = np.eye(3, 6, dtype=np.float32)
CALLS = {
    "invert": lambda m: m.invert(LATENTS, steps=2),
    "invert of a length": lambda m: m.invert(LATENTS, steps=2, length=4),
    "generate": lambda m: m.generate(2, steps=2),
    "generate together": lambda m: m.generate(2, steps=2, order="together", length=3),
    "embed": lambda m: m.embed(["w1", "w2"], steps=2),
    "infill": lambda m: m.infill("w1 [MASK]", steps=2),
    "edit": lambda m: m.edit("w1 w2 w3", targets=LATENTS[:1], steps=2),
    "interpolate": lambda m: m.interpolate(LATENTS, LATENTS, steps=2),
    "score": lambda m: m.score(["w1 w2"], draws=2),
    "score given a latent": lambda m: m.score(["w1 w2"], latents=LATENTS[:1], draws=2),
}  # fmt: skip


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("call", CALLS)
def test_a_weight_that_is_not_finite_is_named(call, value, model):
    name, weight = next((name, p) for name, p in model.model.model.named_parameters() if name.startswith("blocks.0."))
    with torch.no_grad():
        weight.view(-1)[0] = value
    with pytest.raises(SamplingError, match=r"not finite for \d of \d inputs \(rows 0.*tensor 'blocks\.0\.") as error:
        CALLS[call](model)
    assert f"'{name}' of this run contains 1 numbers" in str(error.value)


def test_a_latent_that_exceeds_float32_is_refused_by_its_row(model):
    with pytest.raises(SamplingError, match=r"row 1 of the request: the model drew a latent that exceeds float32"):
        model._engine.edge.raw(torch.tensor([[1.0] * 6, [float("nan")] * 6]))


def test_every_tensor_of_every_module_is_examined():
    """The cause can be a parameter or a buffer, of the model or of the objective that a generative model carries."""
    made = SimpleNamespace(model=torch.nn.BatchNorm1d(2), other=None, objective=torch.nn.BatchNorm1d(2))
    assert bad_weight(made) is None
    for module in (made.model, made.objective):
        for name in ("weight", "running_var"):
            tensor = getattr(module, name).data
            kept = tensor.clone()
            tensor[:] = float("-inf")
            assert f"'{name}' of this run contains 2 numbers that are not finite" in bad_weight(made)
            tensor.copy_(kept)


SAMPLERS = sorted(set(TEXT_SAMPLERS.known) - {"autoregressive", "joint_states", "self_correction", "ddpm_cache"})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_text_sampler_notices_it(kind, temperature, model):
    with torch.no_grad():
        next(model.model.model.parameters()).view(-1)[:] = float("nan")
    settings = {} if kind == "blocks" else {"steps": 3, "temperature": temperature}
    inner = {"inner": {"kind": "confidence", "steps": 2, "temperature": temperature}} if kind == "blocks" else {}
    with pytest.raises(SamplingError, match="not finite"):
        model.invert(LATENTS, sampler=text_sampler(kind, **settings, **inner), length=5)


@pytest.mark.parametrize("kind", sorted(LATENT_SAMPLERS.known))
def test_every_latent_sampler_notices_it(kind, model):
    with torch.no_grad():
        next(model.model.model.parameters()).view(-1)[:] = float("nan")
    with pytest.raises(SamplingError, match="returned latents that are not finite for 2 of 2 inputs"):
        model.embed(["w1", "w2 w3"], sampler=latent_sampler(kind))


def test_classes_are_checked(parts):
    model = parts.make_classifier(pairs=False)
    assert np.isfinite(model.classify("w1").probabilities).all()
    with torch.no_grad():
        next(model.model.model.parameters()).view(-1)[:] = float("nan")
    with pytest.raises(SamplingError, match="probabilities of classes that are not finite"):
        model.classify("w1")


@pytest.mark.parametrize("scale", [1e20, -1e30, 3e38])
@pytest.mark.parametrize("call", ["invert", "edit", "interpolate", "score", "infill"])
def test_latents_of_absurd_size_are_refused_with_their_row(call, scale, model):
    far = LATENTS.copy()
    far[1] *= scale
    requests = {
        "invert": lambda: model.invert(far, steps=2),
        "edit": lambda: model.edit(["w1"] * 3, targets=far, steps=2),
        "interpolate": lambda: model.interpolate(LATENTS, far, steps=3),
        "score": lambda: model.score(["w1"] * 3, latents=far, draws=1),
        "infill": lambda: model.infill(["[MASK]"] * 3, latents=far, steps=1),
    }
    with pytest.raises(SamplingError, match=r"1 of 3 that are more than 1e\+06 standard deviations away.*\(row 1: "):
        requests[call]()


def test_guidance_beyond_float32_is_refused(model):
    for make in (text_sampler, latent_sampler):
        with pytest.raises(ConfigurationError, match=r"guidance.*less than or equal to 1000"):
            make("confidence" if make is text_sampler else "ddim", guidance=1e30)
    with contextlib.suppress(SamplingError):  # the largest guidance may overflow: an error, but never a NaN
        assert np.isfinite(model.embed("w1", sampler=latent_sampler("ddim", steps=20, guidance=1000.0)).latents).all()


def test_the_row_of_the_request_is_named_whatever_its_batch(build):
    """Longer texts are in other batches; the row is that of the request."""
    model = build(objective=MultimodalConfig())
    predict = model.model.model.forward

    def poisoned(*args, **keys):  # fmt: skip
        found = predict(*args, **keys)
        tokens = args[0] if args else keys["tokens_BL"]
        found.latent_Bd[tokens.eq(7).any(dim=1)] = float("nan")
        return found

    model.model.model.forward = poisoned
    model._engine.latents.batch_tokens = 4
    with pytest.raises(SamplingError, match=r"2 of 4 inputs \(rows 1, 3\); its weights are finite"):
        model.embed(["w1 w2 w3", "w7", "w2", "w1 w7 w2 w4"], steps=2)


def test_a_buffer_that_is_not_finite_is_named_after_the_weights():
    inner = torch.nn.Linear(2, 2)
    inner.register_buffer("table", torch.tensor([1.0, float("inf"), float("nan")]))
    inner.register_buffer("counts", torch.tensor([1, 2]))
    holder = SimpleNamespace(shape=None, model=inner)
    assert bad_weight(holder) == "the tensor 'table' of this run contains 2 numbers that are not finite"
    with torch.no_grad():
        inner.bias[1] = float("nan")
    assert bad_weight(holder) == "the tensor 'bias' of this run contains 1 numbers that are not finite"
    assert bad_weight(SimpleNamespace(model=torch.nn.Linear(2, 2))) is None


def test_the_row_of_an_edited_text_is_that_of_the_request(build, monkeypatch):
    model = build(objective=MultimodalConfig())
    scored = model.model.token_log_probs

    def poisoned(tokens_BL, **options):
        found_BL, calls = scored(tokens_BL, **options)
        return found_BL.masked_fill(tokens_BL.eq(7), float("nan")), calls

    monkeypatch.setattr(model.model, "token_log_probs", poisoned)
    model._engine.writer.batch_tokens = 4
    with pytest.raises(SamplingError, match=r"2 of 4 inputs \(rows 1, 3\); its weights are finite"):
        model.edit(["w1 w2 w3", "w7", "w2", "w1 w7 w2 w4"], targets=np.ones((1, 6)))


SHAPE = SimpleNamespace(mask_id=21, pad_id=20, vocab_size=23)


@pytest.mark.parametrize(("token", "name"), [(21, r"21 \(\[MASK\]\)"), (20, r"20 \(\[PAD\]\)"), (23, "23")])
def test_forbidden_ids_are_refused(token, name):
    model = SimpleNamespace(shape=SHAPE)
    check_words(model, [(1, 22), (), (0,)])
    with pytest.raises(SamplingError, match=rf"row 1 of the request: .* wrote the id {name}"):
        check_words(model, [(1, 2), (3, token)])


def test_an_infinite_value_is_not_finite_in_any_row_or_column():
    model = SimpleNamespace()
    check_finite(model, np.ones((3, 2)), what="numbers")
    for bad in (np.nan, np.inf, -np.inf):
        for row in range(3):
            values = np.ones((3, 2))
            values[row, row % 2] = bad
            with pytest.raises(SamplingError, match=rf"numbers that are not finite for 1 of 3 inputs \(rows {row}\)"):
                check_finite(model, values, what="numbers")
