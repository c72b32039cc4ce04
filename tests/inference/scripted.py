"""A model whose answers are functions of its inputs, with the parts of a run around it; imported by name."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mm_ldlm.inference.engine import Engine

from mm_ldlm.objectives.capabilities import USES, Capabilities
from mm_ldlm.objectives.generation import Likelihood
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.registry import text_sampler

PAD, MASK, LONGEST = 20, 21, 9
SHAPE = SimpleNamespace(pad_id=PAD, mask_id=MASK, vocab_size=23, max_length=LONGEST, latent_dim=2)
ABLE = Capabilities(uses=frozenset(USES), reads_latents=True, trained_as="everything",
                    joint_orders=("together", "latent_first", "text_first"))  # fmt: skip


class Scripted:
    """A model that writes the number of masks + the latent, and whose costs are functions of the tokens."""

    shape, device, dim, process, latents_need_lengths = SHAPE, torch.device("cpu"), 2, None, False
    evaluating = contextlib.nullcontext
    classes = ("x", "y", "z")

    def __init__(self, *, has_length: bool = True) -> None:
        self.has_length, self.asked = has_length, []  # type: ignore[var-annotated]

    def default_sampler(self, *, conditional: bool) -> Any:
        return text_sampler("confidence", steps=3 if conditional else 7, temperature=0.0 if conditional else 0.5)

    def length_log_probs(self, latents_Bd: Any, *, rows: int) -> torch.Tensor:
        """Lengths 1 … 4; the most probable one is the first coordinate of the latent, then one less; 3 without."""
        best_B = torch.full((rows,), 3.0) if latents_Bd is None else latents_Bd[:, 0]
        away = (torch.arange(1, 5)[None] - best_B[:, None] + 0.1).abs()
        return torch.log_softmax(-away, dim=1)

    def write(self, canvas_BL: Any, open_BL: Any, *, latents_Bd: Any, sampler: Any, generator: Any) -> TextSample:
        self.asked.append((canvas_BL, latents_Bd, sampler, generator))
        given_B = torch.zeros(len(canvas_BL)) if latents_Bd is None else latents_Bd[:, 1]
        made_BL = torch.where(open_BL, open_BL.sum(1, keepdim=True) + given_B[:, None].long(), canvas_BL)
        log_probs_BL = torch.where(open_BL, -0.25 * (1 + given_B[:, None]), 0.0)
        return TextSample(made_BL, log_probs_BL, torch.zeros_like(made_BL), open_BL.sum(1) * 10, 99)

    def likelihood(self, tokens_BL: Any, *, latents_Bd: Any, draws: int, generator: Any) -> Likelihood:
        self.asked.append((latents_Bd, draws, generator))
        cost_B = (tokens_BL != PAD).sum(1) * 1.0 + tokens_BL[:, 0] / 64
        draw_K = torch.arange(1.0, draws + 1)
        each = [cost_B[None] * draw_K[:, None] * scale for scale in (1.0, 0.01, 2.0, 3.0, 4.0)]
        return Likelihood(each[0].double(), *each[1:])

    def class_logits(self, tokens_BL: Any = None, *, second_BL: Any = None, latents_Bd: Any = None) -> Any:
        if latents_Bd is not None:
            return torch.stack([latents_Bd[:, 0], latents_Bd[:, 1], torch.zeros(len(latents_Bd))], dim=1)
        first_B = (tokens_BL != PAD).sum(1).float()
        second_B = torch.zeros_like(first_B) if second_BL is None else (second_BL != PAD).sum(1).float()
        return torch.stack([first_B, second_B, torch.zeros_like(first_B)], dim=1)

    def latents_given_texts(self, tokens_BL: Any, *, sampler: Any, generator: Any) -> LatentSample:
        self.asked.append((tokens_BL, sampler, generator))
        base_B = (tokens_BL != PAD).sum(1).float()
        draws_KBd = torch.stack([torch.stack([base_B, base_B + 10 * k], dim=1) for k in range(sampler.draws)])
        return LatentSample(draws_KBd.mean(0), draws_KBd, sampler.steps * 5)

    def latents_given_lengths(self, tokens_BL: Any, *, sampler: Any, generator: Any) -> LatentSample:
        found = self.latents_given_texts(tokens_BL, sampler=sampler, generator=generator)
        return LatentSample(found.latents, found.draws + 1.0, found.model_calls + 2)

    def both(self, canvas_BL: Any, *, text: Any, latent: Any, generator: Any) -> Any:
        self.asked.append((canvas_BL, text, latent, generator))
        written = self.write(canvas_BL, canvas_BL == MASK, latents_Bd=None, sampler=text, generator=generator)
        length_B = (canvas_BL == MASK).sum(1).float()
        latents = LatentSample(torch.stack([length_B, -length_B], dim=1), torch.zeros(1), 3)
        return SimpleNamespace(text=written, latent=latents, model_calls=17)


class Words:
    """Id 5 is the word w5, and 22 an unknown one."""

    vocab_size, pad_id, mask_id, unk_id, max_length = 23, PAD, MASK, 22, LONGEST

    def encode(self, texts: Any) -> list[list[int]]:
        return [[int(word[1:]) if word.startswith("w") else 22 for word in text.split()] for text in texts]

    def spans(self, text: str) -> list[tuple[int, int]]:
        return [found.span() for found in re.finditer(r"\S+", text)]

    def decode(self, ids: Any) -> str:
        return " ".join(f"w{i}" for i in ids)

    def decode_batch(self, rows: Any) -> list[str]:
        return [self.decode(row) for row in rows]


class Shift:
    """Standardised = raw − 1, and back."""

    typical = None

    def standardise(self, raw: Any) -> Any:
        return np.asarray(raw, np.float64) - 1

    def invert(self, z: Any) -> Any:
        return np.asarray(z) + 1


class Lengths:
    """The vector of a text: its number of words, and 1."""

    dim = 2

    def encode(self, texts: Any) -> Any:
        return np.array([[len(text.split()), 1.0] for text in texts], np.float32)


def engine(*, batch_tokens: int = 6, model: Any = None, capabilities: Capabilities = ABLE) -> Engine:
    return Engine(
        model or Scripted(), capabilities, Words(), Shift(), encoder=Lengths(), load_encoder=None,
        batch_tokens=batch_tokens,
    )  # type: ignore[arg-type]  # fmt: skip


class Sized(Scripted):
    """A model that counts the tokens of each of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, canvas_BL: Any, *given: Any, **named: Any) -> TextSample:
        self.sizes.append(canvas_BL.numel())
        return super().write(canvas_BL, *given, **named)

    def likelihood(self, tokens_BL: Any, **named: Any) -> Likelihood:
        self.sizes.append(tokens_BL.numel())
        return super().likelihood(tokens_BL, **named)

    def class_logits(self, tokens_BL: Any = None, *, second_BL: Any = None, latents_Bd: Any = None) -> Any:
        self.sizes.append(sum(each.numel() for each in (tokens_BL, second_BL) if each is not None))
        return super().class_logits(tokens_BL, second_BL=second_BL, latents_Bd=latents_Bd)

    def latents_given_texts(self, tokens_BL: Any, **named: Any) -> LatentSample:
        self.sizes.append(tokens_BL.numel())
        return super().latents_given_texts(tokens_BL, **named)

    def token_log_probs(self, tokens_BL: Any, *, latents_Bd: Any, generator: Any) -> tuple[torch.Tensor, int]:
        self.asked.append((generator,))
        self.sizes.append(tokens_BL.numel())
        return -tokens_BL.float(), 4
