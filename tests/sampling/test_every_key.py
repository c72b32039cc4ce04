"""Every key of every sampler has its effect, and only where it should: on the texts or latents, the steps that wrote
them, the calls, or the times that the model receives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.denoising import StateDenoiser, TextDenoiser
from mm_ldlm.sampling.gaussian import LatentDenoiser
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler, text_sampler

MASK, PAD, V, L = 8, 9, 10, 14


def text_denoiser(times: list[Tensor]) -> TextDenoiser:
    """A distribution that depends on the position, the other tokens and the time, another one without the condition,
    and states of the tokens."""
    table = 2 * torch.randn(64, V, generator=torch.Generator().manual_seed(3))

    def make(shift: int) -> Any:
        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            times.append(t_A.double())
            seen_A = torch.where(tokens_AL < MASK, tokens_AL + 1, 0).sum(dim=1)
            index_AL = (torch.arange(tokens_AL.shape[1]) * 7 + seen_A[:, None] * 3 + shift) % 64
            return (table[index_AL] * (1 + t_A[:, None, None].float()))[asked_AL]

        return logits

    def states(tokens: Tensor, t: Tensor, z: Tensor, t_state: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        return make(int((z[:, :, 0] > 0).sum()) % 64)(tokens, t, torch.arange(len(tokens)), asked), z.tanh()

    return TextDenoiser(
        logits=make(0), unconditional=make(5), mask_id=MASK, pad_id=PAD, vocab_size=V,
        states=StateDenoiser(predict=states, dim=2, schedule=GaussianSchedule(), dropped=True),
        importance=lambda tokens, t: torch.linspace(0.1, 0.9, tokens.shape[1]).expand(tokens.shape),
    )  # fmt: skip


class Decoder:
    """Predicts the next token from the last one and the position; column V ends a text."""

    begin_id, end_id, pad_id = V, V, PAD
    table = 2 * torch.randn(16, V + 1, V + 1, generator=torch.Generator().manual_seed(4))

    def start(self) -> Any:
        self.count = 0
        return self

    def keep(self, rows: Tensor) -> None:
        """Nothing is kept."""

    def step(self, cache: Any, token_B: Tensor) -> Tensor:
        logits = self.table[self.count][token_B].clone()
        logits[:, [MASK, PAD]] = -torch.inf
        self.count += 1
        return logits


def texts(kind: str, **keys: Any) -> dict[str, Any]:
    """What a text sampler returns for six texts, by name, and the times at which it asks."""
    config, times = text_sampler(kind, **keys), list[Tensor]()
    process = {"self_correction": "uniform"}.get(kind, "absorbing")
    made = parse_kind(TEXT_PROCESSES, {"kind": process}, at="process").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    tokens = torch.full((6, L), MASK)
    tokens[1, 9:], tokens[3, 4] = PAD, 2
    generator = RowGenerator(1, torch.arange(6))
    if kind == "autoregressive":
        found = config.sample(Decoder(), tokens[:, :8].clone().fill_(MASK), process=None, generator=generator)
    else:
        found = config.sample(text_denoiser(times), tokens, process=made, generator=generator, window=8)
    return {
        "tokens": found.tokens.tolist(), "calls": (found.calls_per_row.tolist(), found.model_calls),
        "steps": found.steps.tolist(), "times": [t.tolist() for t in times],
    }  # fmt: skip


def latents(kind: str, **keys: Any) -> dict[str, Any]:
    """What a latent sampler returns for three latents, and the times at which it asks."""
    times = list[float]()

    def predict(shift: float) -> Any:
        def prediction(x: Tensor, t: Tensor, previous: Tensor | None) -> Tensor:
            times.append(float(t[0]))
            return torch.sin(2 * x + shift) + 0.3 * t[:, None]

        return prediction

    denoise = LatentDenoiser(
        predict=predict(0.0), unconditional=predict(1.0), parameterisation="x0", schedule=GaussianSchedule()
    )  # fmt: skip
    found = latent_sampler(kind, **keys).sample(denoise, dim=4, generator=RowGenerator(1, torch.arange(3)))
    return {"latents": found.latents.tolist(), "calls": found.model_calls, "times": times}


def parsed(options: str) -> list[tuple[str, Any]]:
    return [(key, yaml.safe_load(value)) for key, _, value in (option.partition("=") for option in options.split())]


def changed(found: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name, value in found.items() if value != other[name]}


DRAW = "temperature=0.3 top_k=1 top_p=0.3"
ALL = "tokens calls steps times"
# kind → (the keys that it starts from, {places: keys, each of which changes just these places})
TEXTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "ancestral": ({}, {
        ALL: "steps=5", "tokens": DRAW, "tokens calls times": "guidance=3", "tokens times": "timestep=mask_ratio",
        "calls times": "skip_idle=true",
    }),
    "ddpm_cache": ({"timestep": "mask_ratio"}, {ALL: "steps=5", "tokens": DRAW, "tokens calls times": "guidance=3"}),
    **{
        kind: ({}, {
            ALL: "steps=5 guidance=3 counts=cosine", "tokens steps": DRAW, "times": "timestep=schedule"
        })
        for kind in ("confidence", "margin", "entropy")
    },
    "random": ({}, {
        ALL: "steps=5 counts=cosine", "tokens": DRAW, "tokens calls times": "guidance=3",
        "tokens times": "timestep=schedule",
    }),
    "uncertainty": ({}, {
        ALL: "steps=5 guidance=3 counts=cosine certain=0.5",
        "tokens steps": f"{DRAW} measure=variance measure=max_probability order=uncertain_first",
        "times": "timestep=schedule",
    }),
    "threshold": ({}, {ALL: f"steps=5 guidance=3 threshold=0.3 {DRAW}"}),
    "entropy_bounded": ({}, {ALL: f"steps=5 guidance=3 entropy_bound=2 {DRAW}"}),
    "blocks": ({"inner": {"kind": "confidence"}}, {ALL: 'block_length=4 inner={"kind":"confidence","steps":3}'}),
    **{
        kind: ({"eta": 0.3}, {
            ALL: "steps=5 eta=0.05", "tokens": DRAW, "tokens calls times": "guidance=3",
            "tokens times": "timestep=schedule", "calls times": "skip_idle=true",
        })
        for kind in ("remdm_cap", "remdm_rescale")
    },
    "remdm_conf": ({"eta": 0.3}, {
        ALL: "steps=5 eta=0.05 guidance=3", "tokens steps times": DRAW, "tokens times": "timestep=schedule",
        "calls times": "skip_idle=true",
    }),
    "remdm_loop": ({"eta": 0.3, "steps": 16}, {
        ALL: "steps=5 eta=0.05 t_on=0.9 t_off=0.3 alpha_on=0.5", "tokens": DRAW, "tokens calls times": "guidance=3",
        "tokens times": "timestep=schedule", "calls times": "skip_idle=true",
    }),
    "self_correction": ({"corrections": 6}, {
        ALL: "steps=5 top_k=1 top_p=0.3 guidance=3 corrections=3 patience=1",
        "tokens steps": "temperature=0.3 correction_temperature=1",
        "tokens steps times": "correction_time=0.4",
    }),
    "joint_states": ({}, {ALL: "steps=5", "tokens": f"{DRAW} eta=0.9", "tokens calls times": "guidance=3"}),
    "autoregressive": ({}, {"tokens calls steps": DRAW}),
}  # fmt: skip
SOLVED = {"latents calls times": "guidance=3 draws=3 steps=5", "latents times": "t_max=0.8"}
LATENTS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("ddpm", "euler", "heun", "dpmpp_2m"), SOLVED),
    "ddim": {**SOLVED, "latents": "eta=0.7"},
    "one_step": {"latents calls times": "guidance=3 draws=3", "latents times": "t_max=0.8"},
}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_key_of_a_text_sampler_changes_what_it_should_and_nothing_else(kind: str) -> None:
    base, expected = TEXTS[kind]
    before = texts(kind, **base)
    for places, keys in expected.items():
        for key, value in parsed(keys):
            assert changed(before, texts(kind, **{**base, key: value})) == set(places.split()), f"{key}: {value}"


@pytest.mark.parametrize("kind", LATENTS)
def test_every_key_of_a_latent_sampler_changes_what_it_should_and_nothing_else(kind: str) -> None:
    before = latents(kind)
    for places, keys in LATENTS[kind].items():
        for key, value in parsed(keys):
            assert changed(before, latents(kind, **{key: value})) == set(places.split()), f"{key}: {value}"


def test_no_key_is_left_out() -> None:
    assert set(TEXTS) == set(TEXT_SAMPLERS.known)
    assert set(LATENTS) == set(LATENT_SAMPLERS.known)
    cases = [(text_sampler(kind, **base), expected) for kind, (base, expected) in TEXTS.items()]
    cases += [(latent_sampler(kind), expected) for kind, expected in LATENTS.items()]
    for config, expected in cases:
        named = {key for keys in expected.values() for key, _ in parsed(keys)}
        left = {field.name for field in dataclasses.fields(config)} - {"kind"} - named
        assert left <= ({"timestep"} if config.kind == "ddpm_cache" else set()), config.kind  # test_ancestral.py


@pytest.mark.parametrize("kind", [*TEXTS, *LATENTS])
def test_no_random_number_is_drawn_twice_in_a_sample(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one text: whether a token is written, where, and which, and the noise of every step, are independent."""
    keys, plain = list[int](), RowGenerator._next_key
    monkeypatch.setattr(RowGenerator, "_next_key", lambda self: keys.append(plain(self)) or keys[-1])
    if kind in TEXTS:
        texts(kind, **TEXTS[kind][0])
    else:
        latents(kind, draws=3, **({"eta": 0.5} if kind == "ddim" else {}))
    assert keys
    assert len(set(keys)) == len(keys)
