"""What objectives and trained models make is on the device of their arguments, whatever the default device is, and they
leave all arguments as they are."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_ends_of_texts import ASKED, CANVAS, CYCLES, REQUESTS, TOKENS
from test_every_option import ABSORBING, REAL, STEP, batch, built, generator, numbers, part
from torch import Tensor, nn

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.base import Batch

STEPS: list[tuple[str, dict[str, Any]]] = [
    ("text_diffusion", {"z_loss": 0.1}), ("latent_conditioned", ABSORBING), ("autoregressive", {"z_loss": 0.1}),
    ("ccdd", {"timesteps": "separate", "state_loss": "min_snr"}), ("image_text", {}), ("image_text_continuous", {}),
    ("multimodal", {"self_condition": True, **CYCLES}), ("classification", {}),
    ("classification", {"features": "trunk"}), ("pairwise_classification", {}),
    ("adaptive_masking", {"curriculum": {"pace": "dynamic"}, "warmup_steps": 3, "policy": "balanced"}),
    ("adaptive_masking", {"importance": "none", "curriculum": {}, "warmup_steps": 3}),
    *(("text_diffusion", {"process": {"kind": kind}}) for kind in ("d3pm", "sedd", "uniform", "gidd", "hdlm")),
]  # fmt: skip


FIXED = [(*case, True) for case in STEPS if "classification" not in case[0]]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options", "fixed_shapes"), [*((*case, False) for case in STEPS), *FIXED], ids=str)
def test_a_step_computes_on_the_device_of_its_batch(kind: str, options: dict[str, Any], fixed_shapes: bool) -> None:
    _, made, model = built(kind, options, fixed_shapes=fixed_shapes)
    for mode in made.kinds:
        expected = numbers(made(model, batch(), generator(), kind=mode, step=STEP))
        data, draws = batch(), generator()
        with torch.device("meta"):  # tensors without a device have no values
            assert made.kind(draws, step=STEP) in made.kinds
            found = made(model, data, draws, kind=mode, step=STEP)
        assert {x.device.type for pair in found.values() for x in pair} == {"cpu"}, mode
        assert numbers(found) == expected, mode


ON_HOST = ("pairwise_classification", "image_text_continuous")
AWAY = [case for case in STEPS if case[0] not in ON_HOST and "dynamic" not in str(case[1])]
"""Without those that read lengths, positions or a buffer on the host"""


@pytest.mark.parametrize(("kind", "options"), AWAY, ids=str)
def test_a_step_computes_on_another_device(kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients too, and the objective's own buffers and networks are moved with it."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **keys: contextlib.nullcontext())  # not for this device
    _, made, model = built(kind, options)
    with torch.no_grad():
        expected = {mode: set(made(model, batch(), generator(), kind=mode, step=STEP)) for mode in made.kinds}
    model = copy.deepcopy(model).to("meta")
    made = made.to("meta") if isinstance(made, nn.Module) else made
    for mode in made.kinds:
        found = made(model, batch().to(torch.device("meta")), generator().to("meta"), kind=mode, step=STEP)
        assert set(found) == expected[mode]
        assert {x.device.type for pair in found.values() for x in pair} == {"meta"}
        torch.stack([found[name][0] for name in made.weights if name in found]).sum().backward()


def test_the_answers_of_pairs_are_moved_with_their_objective() -> None:
    _, made, _ = built("pairwise_classification", {})
    assert made.to("meta").targets(batch().to(torch.device("meta"))).device.type == "meta"


@pytest.mark.parametrize(("kind", "options"), STEPS, ids=str)
def test_a_step_leaves_its_batch_as_it_is(kind: str, options: dict[str, Any]) -> None:
    _, made, model = built(kind, options)
    data, before = batch(), batch()
    for mode in made.kinds:
        losses = made(model, data, generator(), kind=mode, step=STEP)
        torch.stack([losses[name][0] for name in made.weights if name in losses]).sum().backward()
    model.zero_grad(set_to_none=True)
    for name, value in data.tensors.items():
        assert value._version == before.tensors[name]._version, name
        assert torch.equal(value, before.tensors[name]), name


# -- requests ----------------------------------------------------------------------------------------------------------


def given_to(kind: str) -> tuple[Any, Tensor | None]:
    options, field, _ = ASKED[kind]
    _, made, model = built(kind.split(" ")[0], options)
    given = None if field is None else part(batch(), slice(REAL)).fields[field]
    return made.generative_model(model), given


@torch.no_grad()
@pytest.mark.parametrize("kind", ASKED)
def test_a_request_leaves_texts_and_conditions_as_they_are(kind: str) -> None:
    made, given = given_to(kind)
    before = [x.clone() for x in (TOKENS, CANVAS, given) if x is not None]
    for request in ASKED[kind][2].split(","):
        versions = [x._version for x in (TOKENS, CANVAS, given) if x is not None]
        REQUESTS[request](made, given)
        after = [x for x in (TOKENS, CANVAS, given) if x is not None]
        assert [x._version for x in after] == versions, request
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)), request


ANSWERED = {
    "text_diffusion": "likelihood lengths logits", "adaptive_masking": "lengths logits importance",
    "latent_conditioned": "likelihood lengths logits tokens", "ccdd": "likelihood lengths logits states",
    "multimodal": "likelihood lengths logits tokens", "image_text": "likelihood lengths logits tokens",
    "multimodal without nulls": "likelihood logits", "image_text_continuous": "lengths", "autoregressive": "likelihood",
}  # fmt: skip


def model_of(kind: str) -> tuple[Any, Tensor | None]:
    """A trained model, and the conditions of its texts."""
    if kind in ASKED:
        return given_to(kind)
    _, made, model = built(kind, {})
    return made.generative_model(model), None


def answers(made: Any, given: Tensor | None, rows: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Each request for these rows of the texts, with tensors that are made before it is asked."""
    texts, canvases, draws, count = TOKENS[rows], CANVAS[rows], RowGenerator(STEP, rows), torch.arange(len(rows))
    times_B, given = torch.linspace(0.2, 0.9, REAL)[rows], None if given is None else given[rows]
    states = torch.linspace(-1, 1, REAL)[rows][:, None, None].expand(-1, canvases.shape[1], 3)

    def denoiser() -> Any:
        return made.text_denoiser(given, draws.fork("d"))

    return {
        "likelihood": lambda: made.likelihood(texts, latents_Bd=given, draws=2, generator=draws.fork("l")).nll_KB.T,
        "tokens": lambda: made.token_log_probs(texts, latents_Bd=given, generator=draws.fork("t"))[0],
        "lengths": lambda: made.length_log_probs(given, rows=len(rows)),
        "logits": lambda: denoiser().logits(canvases, times_B, count, canvases == 1),
        "importance": lambda: denoiser().importance(canvases, times_B),
        "states": lambda: denoiser().states.predict(canvases, times_B, states, times_B, canvases == 1)[0],
    }


@torch.no_grad()
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ANSWERED)
def test_an_answer_is_on_the_device_of_the_texts(kind: str, known: bool) -> None:
    made, given = model_of(kind)
    asked = answers(made, given if known else None, torch.arange(REAL))
    for name in ANSWERED[kind].split():
        if name == "tokens" and not known:
            continue
        expected = asked[name]()
        with torch.device("meta"):
            found = asked[name]()
        assert found.device.type == "cpu", name
        assert torch.equal(found, expected), name


@torch.no_grad()
@pytest.mark.parametrize("kind", ANSWERED)
def test_an_answer_for_a_text_does_not_depend_on_the_texts_beside_it(kind: str) -> None:
    made, given = model_of(kind)
    rows, row_M = torch.tensor([3, 0, 5]), (CANVAS == 1).nonzero()[:, 0]
    whole, some = answers(made, given, torch.arange(REAL)), answers(made, given, rows)
    for name in ANSWERED[kind].split():
        expected, found = whole[name](), some[name]()
        masked = name in ("logits", "states")  # whose rows are the masked positions
        chosen = torch.cat([expected[row_M == row] for row in rows]) if masked else expected[rows]
        torch.testing.assert_close(found, chosen, rtol=1e-4, atol=1e-4, msg=name)


class Once:
    """A sampler of latents that asks once for each prediction."""

    def sample(self, denoise: Any, *, dim: int, generator: RowGenerator) -> Any:
        x = generator.normal(dim)
        t_B = generator.uniform(dtype=torch.float32)
        found = denoise.predict(x, t_B, x)
        other = None if denoise.unconditional is None else denoise.unconditional(x, t_B, x)
        return SimpleNamespace(latents=found, other=other, model_calls=1)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["multimodal", "multimodal without nulls", "image_text", "image_text_continuous"])
def test_predictions_of_latents_and_images_are_on_the_device_of_the_texts(kind: str) -> None:
    made, given = given_to(kind)
    draws = {name: generator(REAL) for name in ("text", "length", "write", "both")}

    def asked() -> list[Tensor]:
        found = made.latents_given_texts(TOKENS, sampler=Once(), generator=draws["text"].fork(0))
        samples = [found.latents, *([] if found.other is None else [found.other])]
        if "multimodal" in kind:
            drawn = made.latents_given_lengths(CANVAS, sampler=Once(), generator=draws["length"].fork(0))
            samples.append(drawn.latents)
        return samples

    expected = asked()
    with torch.device("meta"):
        found = asked()
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert given is not None


# -- batches on another device -----------------------------------------------------------------------------------------


def test_on_a_gpu_the_next_tokens_are_predicted_at_every_position() -> None:
    """The number of scored positions would have to be waited for."""
    asked: list[dict[str, Any]] = []

    def model(tokens_BL: Tensor, **keys: Any) -> Tensor:
        asked.append(keys)
        count = int(keys["logits_at"].sum()) if keys else 0
        shape = (count, 13) if keys else (*tokens_BL.shape[:1], tokens_BL.shape[1] + 1, 13)
        return torch.zeros(shape, device=tokens_BL.device)

    _, made, _ = built("autoregressive", {})
    made(model, batch(), generator(), kind="text", step=0)
    made(model, batch().to(torch.device("meta")), generator(), kind="text", step=0)
    assert [set(keys) for keys in asked] == [{"logits_at"}, set()]


def test_the_first_example_of_a_split_is_an_example() -> None:
    """Row 0 is data; only −1 fills a batch."""
    data = dataclasses.replace(batch(), examples_B=torch.tensor([0, -1, 1]))
    assert isinstance(data, Batch)
    assert data.real_B.tolist() == [True, False, True]
