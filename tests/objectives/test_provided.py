"""What the generative model of each kind of objective says of itself, and which requests it does not provide, by the
words of its refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_every_option import KINDS, SHAPE, built, generator
from torch import Tensor

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.sampling.registry import latent_sampler

CANVAS = torch.ones(2, 3, dtype=torch.long)
LENGTHS = "a distribution over lengths"
TOKENS = "log-probabilities of single tokens given a latent"
GIVEN = "texts given latents"
REQUESTS: dict[str, Any] = {
    "default_sampler": lambda made: made.default_sampler(conditional=True),
    "write": lambda made: made.write(
        CANVAS, CANVAS == 1, latents_Bd=None, sampler=made.default_sampler(conditional=False), generator=generator(2)
    ),
    "likelihood": lambda made: made.likelihood(CANVAS + 3, latents_Bd=None, draws=1, generator=generator(2)),
    "length_log_probs": lambda made: made.length_log_probs(None, rows=2),
    "token_log_probs": lambda made: made.token_log_probs(
        CANVAS + 3, latents_Bd=torch.zeros(2, made.dim), generator=generator(2)
    ),
    "latents_given_texts": lambda made: made.latents_given_texts(
        CANVAS + 3, sampler=latent_sampler("ddim", steps=1), generator=generator(2)
    ),
    "latents_given_lengths": lambda made: made.latents_given_lengths(
        CANVAS, sampler=latent_sampler("ddim", steps=1), generator=generator(2)
    ),
    "class_logits": lambda made: made.class_logits(CANVAS + 3, second_BL=CANVAS + 4, latents_Bd=torch.zeros(2, 4)),
}
NO_LATENTS = {"latents_given_texts": "latents", "latents_given_lengths": "latents"}
NO_CLASSES = {"class_logits": "classes"}
OF_TEXTS = {**NO_LATENTS, **NO_CLASSES, "token_log_probs": GIVEN}
OF_CLASSES = {
    **NO_LATENTS, "default_sampler": "texts", "write": "texts", "likelihood": "likelihoods",
    "length_log_probs": LENGTHS, "token_log_probs": TOKENS,
}  # fmt: skip
REFUSED: dict[str, dict[str, str]] = {
    "text_diffusion": OF_TEXTS, "adaptive_masking": OF_TEXTS, "ccdd": OF_TEXTS,
    "latent_conditioned": {**NO_LATENTS, **NO_CLASSES}, "multimodal": NO_CLASSES,
    "autoregressive": {**OF_TEXTS, "token_log_probs": TOKENS, "length_log_probs": LENGTHS},
    "image_text": {**NO_CLASSES, "latents_given_lengths": "latents"},
    "image_text_continuous": {
        **NO_CLASSES, "latents_given_lengths": "latents", "token_log_probs": TOKENS,
        "likelihood": "likelihoods of captions that are noised as vectors",
    },
    "classification": OF_CLASSES, "pairwise_classification": OF_CLASSES,
}  # fmt: skip
"""kind → the requests that its model does not provide, and in which words it says so"""
# kind → whether lengths are drawn, the process, the dimension of what is drawn beside a text, and the number of classes
SELVES: dict[str, tuple[bool, str | None, int, int]] = {
    "text_diffusion": (True, "absorbing", 4, 0), "adaptive_masking": (True, "absorbing", 4, 0),
    "autoregressive": (False, None, 4, 0), "latent_conditioned": (True, "absorbing", 4, 0),
    "multimodal": (True, "absorbing", 4, 0), "ccdd": (True, "absorbing", 3, 0),
    "image_text": (True, "absorbing", 16, 0), "image_text_continuous": (True, None, 16, 0),
    "classification": (True, None, 4, 3), "pairwise_classification": (True, None, 4, 3),
}  # fmt: skip


def test_no_kind_is_left_out() -> None:
    assert set(REFUSED) == set(SELVES) == set(KINDS)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_provides_all_requests_but_those_of_its_table(kind: str) -> None:
    _, objective, model = built(kind, {})
    made = objective.generative_model(model)
    for request, ask in REQUESTS.items():
        if request not in REFUSED[kind]:
            assert ask(made) is not None, request
            continue
        with pytest.raises(SamplingError) as raised:
            ask(made)
        what = REFUSED[kind][request]
        assert str(raised.value) == (
            f"{type(made).__name__} does not provide {what}. Check `capabilities` before the call."
        ), request


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_says_of_itself_what_it_draws(kind: str) -> None:
    _, objective, model = built(kind, {})
    made = objective.generative_model(model)
    has_length, process, dim, classes = SELVES[kind]
    assert (made.has_length, made.dim, len(made.classes)) == (has_length, dim, classes)
    assert made.latents_need_lengths is False
    assert (None if made.process is None else made.process.kind) == process
    assert made.process is None or made.process is getattr(objective, "process", None) or kind == "multimodal"
    assert (made.model, made.shape) == (model, SHAPE)
    assert made.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("modes", "dropout", "needs"),
    [("t2l unconditional", 0.1, False), ("l2t unconditional", 0.1, True), ("l2t t2l", 0.1, False),
     ("l2t t2l", 0.0, True), ("unconditional", 0.1, True)],
)  # fmt: skip
def test_latents_need_lengths_where_no_null_text_is_learned(modes: str, dropout: float, needs: bool) -> None:
    weights = {name: float(name in modes.split()) for name in ("l2t", "t2l", "unconditional")}
    _, objective, model = built("multimodal", {"loss_type_weights": weights, "condition_dropout": dropout})
    assert objective.generative_model(model).latents_need_lengths is needs


TYPES: dict[str, torch.dtype] = {
    "likelihood": torch.float64, "length_log_probs": torch.float32, "token_log_probs": torch.float64,
    "class_logits": torch.float32,
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_an_answer_have_their_type_also_under_autocast(kind: str) -> None:
    _, objective, model = built(kind, {})
    made = objective.generative_model(model)
    for request, dtype in TYPES.items():
        if request in REFUSED[kind]:
            continue
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                found = REQUESTS[request](made)
            if request == "likelihood":
                tensors: list[Tensor] = [value for value in vars(found).values() if value is not None]
                assert len(tensors) == (1 if kind == "autoregressive" else 5)
            else:
                tensors = [found[0] if isinstance(found, tuple) else found]
            assert {each.dtype for each in tensors} == {dtype}, (request, autocast)
            assert all(bool(each.isfinite().all()) for each in tensors), (request, autocast)
