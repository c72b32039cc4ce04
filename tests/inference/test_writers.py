"""Writers in token ids: the width of a search, texts that the model cannot read, and noise of texts and of latents."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference import writing
from mm_ldlm.inference.writing import Writer
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

PAD, MASK, LONGEST = 20, 21, 9


class Model:
    """Writes word 1, and keeps the numbers that it was given for each text and for each latent."""

    shape = SimpleNamespace(pad_id=PAD, mask_id=MASK, vocab_size=23, max_length=LONGEST, latent_dim=2)
    device, dim, process, latents_need_lengths, has_length = torch.device("cpu"), 2, None, False, True
    evaluating = contextlib.nullcontext

    def __init__(self) -> None:
        self.noise: dict[str, list[float]] = {"text": [], "latent": []}

    def write(self, canvas_BL: Any, open_BL: Any, *, latents_Bd: Any, sampler: Any, generator: Any) -> TextSample:
        for number in range(3):
            self.noise["text"] += generator.fork(number).uniform(4).flatten().tolist()
        zeros_BL = torch.zeros(canvas_BL.shape)
        return TextSample(
            torch.where(open_BL, 1, canvas_BL), zeros_BL, zeros_BL.long(), torch.ones(len(canvas_BL)).long(), 1
        )

    def latents_given_texts(self, tokens_BL: Any, *, sampler: Any, generator: Any) -> LatentSample:
        for number in range(3):
            self.noise["latent"] += generator.fork(number).uniform(4).flatten().tolist()
        zeros_Bd = torch.zeros(len(tokens_BL), 2)
        return LatentSample(zeros_Bd, zeros_Bd[None], 1)

    latents_given_lengths = latents_given_texts


@pytest.mark.parametrize("order", ["text_first", "latent_first"])
def test_a_text_and_its_latent_have_noise_of_their_own(order: str) -> None:
    model: Any = Model()
    writer, latents = Writer(model, batch_tokens=100), LatentWriter(model, batch_tokens=100)
    latents.generate(3, order, writer, text_sampler("confidence"), latent_sampler("ddim"), 4, 5)
    assert len(model.noise["text"]) == len(model.noise["latent"]) == 3 * 3 * 4
    assert not set(model.noise["text"]) & set(model.noise["latent"])


@pytest.mark.parametrize(
    ("rounds", "resize", "width"), [(0, 0.5, 3), (1, 0.5, 4), (4, 0.5, 7), (30, 0.5, LONGEST), (4, 0.0, 3)]
)
def test_a_search_leaves_room_for_a_token_in_each_round_that_may_add_one(
    rounds: int, resize: float, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def search(canvases_BKL: Any, **_: Any) -> Any:
        raise Stop(tuple(canvases_BKL.shape))

    monkeypatch.setattr(writing, "search", search)
    model: Any = Model()
    with pytest.raises(Stop) as stopped:
        Writer(model, batch_tokens=100).search(
            [[[MASK] * 3, [MASK] * 2]], latents_nd=torch.zeros(1, 2), cosines=lambda tokens, rows: [0.0] * len(rows),
            sampler=text_sampler("confidence"), config=SearchConfig(candidates=2, rounds=rounds, resize=resize), seed=0,
        )  # fmt: skip
    assert stopped.value.args == ((1, 2, width),)


@pytest.mark.parametrize("place", [0, 1])
def test_a_text_that_the_model_cannot_read_is_refused_whichever_it_is(place: int) -> None:
    model: Any = Model()
    writer, sampler = Writer(model, batch_tokens=100), text_sampler("confidence")
    canvases = [[MASK] * 3, [MASK] * LONGEST]
    assert len(writer.write(canvases, latents_nd=None, sampler=sampler, seed=0).tokens) == 2
    canvases[place] = [MASK] * (LONGEST + 1)
    with pytest.raises(SamplingError, match="at most 9 tokens, the model's maximum length; found a request for 10"):
        writer.write(canvases, latents_nd=None, sampler=sampler, seed=0)
    with pytest.raises(SamplingError, match="found a request for 10"):
        writer.search(
            [[[MASK] * 2, canvas] for canvas in canvases], latents_nd=torch.zeros(2, 2), sampler=sampler,
            cosines=lambda tokens, rows: [0.0] * len(rows), config=SearchConfig(candidates=2), seed=0,
        )  # fmt: skip
    blocks = text_sampler("blocks", inner={"kind": "confidence"})
    assert len(writer.write(canvases, latents_nd=None, sampler=blocks, seed=0).tokens[place]) == LONGEST + 1


LATENTS = np.eye(3, 6, dtype=np.float32)
DRAWN = text_sampler("confidence", steps=3)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda m: m.invert(LATENTS, sampler=DRAWN, length="sample", samples=2),
        lambda m: m.invert(LATENTS, sampler=DRAWN, search=SearchConfig(candidates=2, rounds=2, resize=0.5)),
        *(
            lambda m, order=order: m.generate(3, order=order, steps=3, latent_sampler={"kind": "ddim", "eta": 0.5})
            for order in ("text_first", "latent_first", "together")
        ),
        lambda m: m.edit(["w1 w2 w3"] * 3, targets=LATENTS, sampler=DRAWN, which="random"),
        lambda m: m.edit(["w1 w2 w3"] * 3, targets=LATENTS, sampler=DRAWN),
        lambda m: m.infill("w1 [MASK]", sampler=DRAWN),
        lambda m: m.embed(["w1 w2"], draws=3, sampler="ddpm", steps=3),
        lambda m: m.score(["w1 w2"], draws=3),
    ],
)
def test_no_random_number_is_drawn_twice_in_a_request(request_of: Any, model: Any, monkeypatch: Any) -> None:
    keys, plain = list[int](), RowGenerator._next_key
    monkeypatch.setattr(RowGenerator, "_next_key", lambda self: keys.append(plain(self)) or keys[-1])
    request_of(model)
    assert keys
    assert len(set(keys)) == len(keys)
