"""Which process each sampler fits, which of its options fit, and how it draws from a model that predicts scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import (
    EditConfig,
    ImageTasksConfig,
    InfillConfig,
    InterpolateConfig,
    SamplingConfig,
    UnconditionalConfig,
)
from mm_ldlm.sampling.defaults import default_text_sampler

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.process import ProcessTraits
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, text_sampler

MASK, PAD, V = 8, 9, 10
INNER = {"blocks": {"inner": {"kind": "confidence"}}}
MASKED = ProcessTraits(kind="masked", only_masks=True)
SCORED = ProcessTraits(kind="scored", only_masks=True, predicts_scores=True)
REVISED = ProcessTraits(kind="revised", revises=True)
WORD_SCORES = ProcessTraits(kind="word scores", revises=True, predicts_scores=True)
OTHER = ProcessTraits(kind="other")
PROCESSES = (MASKED, SCORED, REVISED, WORD_SCORES, OTHER)
ANY, NONE = frozenset(PROCESSES), frozenset[ProcessTraits]()
FITTING = {
    "ancestral": ANY, "joint_states": ANY, "self_correction": frozenset({REVISED, WORD_SCORES}), "autoregressive": NONE
}  # fmt: skip
"""Kind → the processes that it fits; the other kinds fit those whose only noise is [MASK]."""


@pytest.mark.parametrize("kind", TEXT_SAMPLERS.known)
def test_a_sampler_fits_the_processes_of_its_noise(kind: str) -> None:
    sampler = text_sampler(kind, **INNER.get(kind, {}))
    fitting = FITTING.get(kind, frozenset({MASKED, SCORED}))
    for process in PROCESSES:
        reason = sampler.refusal(process)
        assert (reason is None) == (process in fitting), process.kind
        if reason is not None:
            assert f"'{kind}'" in reason
            assert f"'{process.kind}'" in reason or kind == "autoregressive"
    without = sampler.refusal(None)
    if kind == "autoregressive":
        assert without is None
    else:
        assert without == (f"sampler '{kind}' needs a diffusion model, but this model has no diffusion process. "
                           "Choose the sampler 'autoregressive'.")  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in TEXT_SAMPLERS.known if kind != "autoregressive"])
def test_what_does_not_fit_is_refused_by_the_sampler_too_in_the_same_words(kind: str) -> None:
    sampler = text_sampler(kind, **INNER.get(kind, {}))
    processes = {name: parse_kind(TEXT_PROCESSES, {"kind": name}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
                 for name in ("absorbing", "uniform")}  # fmt: skip
    for process in (None, *processes.values()):
        reason = sampler.refusal(None if process is None else process.traits)
        if reason is None:
            continue
        with pytest.raises(SamplingError) as error:
            sampler.sample(None, torch.full((1, 3), MASK), process=process, generator=RowGenerator(0, torch.arange(1)))
        assert str(error.value) == reason


@pytest.mark.parametrize("option", [{"timestep": "mask_ratio"}, {"skip_idle": True}])
def test_the_options_of_ancestral_fit_models_that_predict_the_words_behind_masks(option: dict[str, Any]) -> None:
    sampler = text_sampler("ancestral", **option)
    assert sampler.refusal(MASKED) is None
    assert "has no diffusion process" in sampler.refusal(None)
    for process in (SCORED, REVISED, WORD_SCORES, OTHER):
        assert sampler.refusal(process) == (
            "sampler 'ancestral': timestep 'mask_ratio' and skip_idle need a process whose only noise is [MASK] and "
            f"whose model predicts x_0, and this model was trained with '{process.kind}'. Set timestep to 'schedule' "
            "and skip_idle to false."
        )


def test_blocks_fit_where_their_inner_sampler_does_too() -> None:
    inner = {"kind": "ancestral", "timestep": "mask_ratio"}
    blocks = text_sampler("blocks", inner=inner)
    assert blocks.refusal(MASKED) is None
    assert blocks.refusal(SCORED) == text_sampler(**inner).refusal(SCORED)
    assert "sampler 'blocks' needs a process whose only noise is [MASK]" in blocks.refusal(REVISED)
    process = parse_kind(TEXT_PROCESSES, {"kind": "absorbing"}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    revising, tokens = text_sampler("blocks", inner={"kind": "self_correction"}), torch.full((1, 3), MASK)
    with pytest.raises(SamplingError, match="sampler 'self_correction' needs a process whose noise includes words"):
        revising.sample(None, tokens, process=process, generator=RowGenerator(0, torch.arange(1)))
    assert blocks.override(steps=3, temperature=0.5).inner == text_sampler(**inner, steps=3, temperature=0.5)
    assert blocks.override(steps=3).block_length == blocks.block_length


@pytest.mark.parametrize("kind", sorted(set(TEXT_PROCESSES.known) - {"hdlm"}))
@pytest.mark.parametrize("conditional", [True, False])
def test_the_default_sampler_of_a_process_fits_it(kind: str, conditional: bool) -> None:
    process = parse_kind(TEXT_PROCESSES, {"kind": kind}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    found = default_text_sampler(process, conditional=conditional)
    name = "confidence" if process.traits.only_masks else "ancestral"
    settings = {"steps": 4, "temperature": 0.0} if conditional else {"steps": 32, "temperature": 1.0}
    assert found == text_sampler(name, **settings)
    assert found.refusal(process.traits) is None


# -- models that predict scores ----------------------------------------------------------------------------------------


class Watched:
    """A process that keeps the names and arguments of the steps that are taken with it."""

    def __init__(self, process: Any) -> None:
        self.process, self.steps = process, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.process, name)
        if name not in ("score_step", "reverse_step"):
            return found

        def step(given_MV: Any, noisy_M: Any, *, t_M: Any, s_M: Any, uniform_M2: Any) -> Any:
            self.steps.append((name, given_MV.clone(), t_M.tolist(), s_M.tolist()))
            return found(given_MV, noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)

        return step


def scores_of(value: float) -> Any:
    """Log-scores that grow with the id, by `value` each."""
    return lambda tokens, t, rows, asked: value * torch.arange(float(V)).expand(int(asked.sum()), V).clone()


@pytest.mark.parametrize("graph", ["absorbing", "uniform"])
@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({}, "score_step"), ({"temperature": 0.5}, "reverse_step"), ({"temperature": 0.0}, "reverse_step"),
        ({"top_k": 2}, "reverse_step"), ({"top_p": 0.5}, "reverse_step"), ({"guidance": 2.0}, "reverse_step"),
    ],
)  # fmt: skip
def test_scores_themselves_are_read_where_nothing_changes_the_distribution_of_a_word(
    graph: str, settings: dict[str, Any], step: str
) -> None:
    made = parse_kind(TEXT_PROCESSES, {"kind": "sedd", "graph": graph}, at="p").build(
        vocab_size=V, pad_id=PAD, mask_id=MASK
    )
    process: Any = Watched(made)
    denoise = TextDenoiser(
        logits=scores_of(0.1), unconditional=scores_of(0.3), mask_id=MASK, pad_id=PAD, vocab_size=V
    )  # fmt: skip
    tokens = torch.full((4, 6), MASK)
    found = text_sampler("ancestral", steps=3, **settings).sample(
        denoise, tokens, process=process, generator=RowGenerator(0, torch.arange(4))
    )
    assert [name for name, *_ in process.steps] == [step] * 3
    for number, (_, _, t, s) in enumerate(process.steps):
        assert t == pytest.approx([1 - number / 3] * len(t))
        assert s == pytest.approx([1 - (number + 1) / 3] * len(s))
    if step == "score_step":
        torch.testing.assert_close(process.steps[0][1], scores_of(0.1)(None, None, None, torch.ones(4, 6)))
    assert (found.tokens < MASK).all()
    assert (found.log_probs < 0).any()


# -- settings that contradict one another ------------------------------------------------------------------------------

TEXT, LATENT = {"kind": "ancestral", "steps": 9}, {"kind": "ddim", "steps": 9}
TOGETHER = {"order": "together", "text": TEXT, "latent": LATENT}


@pytest.mark.parametrize(
    ("section", "given", "keys"),
    [
        (UnconditionalConfig, {**TOGETHER, "order": "latent_first", "latent": {**LATENT, "draws": 2}},
         ["latent.draws", "order"]),
        (UnconditionalConfig, {**TOGETHER, "text": {**TEXT, "kind": "margin"}}, ["text.kind", "order"]),
        (UnconditionalConfig, {**TOGETHER, "latent": {**LATENT, "kind": "ddpm"}}, ["latent.kind", "order"]),
        (UnconditionalConfig, {**TOGETHER, "text": {**TEXT, "steps": 8}}, ["text.steps", "order"]),
        (UnconditionalConfig, {**TOGETHER, "text": {**TEXT, "guidance": 2}}, ["text.guidance", "order"]),
        (UnconditionalConfig, {**TOGETHER, "latent": {**LATENT, "guidance": 2}}, ["latent.guidance", "order"]),
        (UnconditionalConfig, {**TOGETHER, "length": "top-2"}, ["length"]),
        (UnconditionalConfig, {**TOGETHER, "length": "longest"}, ["length"]),
        (InfillConfig, {"texts": ["a"], "latents_of": ["b", "c"]}, ["latents_of", "texts"]),
        (EditConfig, {"sources": ["a", "b"], "targets": ["c"] * 3}, ["sources", "targets"]),
        (InterpolateConfig, {"starts": ["a"]}, ["starts", "ends"]),
        (InterpolateConfig, {"steps": 1}, ["steps"]),
        (ImageTasksConfig, {"image": {**LATENT, "draws": 2}}, ["image.draws"]),
        (ImageTasksConfig, {"caption": {**LATENT, "draws": 2}}, ["caption.draws"]),
        (ImageTasksConfig, {"length": "top-2"}, ["length"]),
        (SamplingConfig, {"tasks": ["infill"]}, ["tasks"]),
        (SamplingConfig, {"length": "longest"}, ["length"]),
    ],
)  # fmt: skip
def test_the_parameters_that_contradict_one_another_are_named_by_their_keys(
    section: Any, given: dict[str, Any], keys: list[str]
) -> None:
    if section is SamplingConfig:
        given = {"text": {"kind": "margin"}, "latent": LATENT, "unconditional": TOGETHER, **given}
    names = " and ".join(f"'here.{key}'" for key in keys)
    with pytest.raises(ConfigurationError) as error:
        parse(section, given, at="here")
    assert str(error.value).startswith(f"parameter{'s' if keys[1:] else ''} {names}: ")


KINDS = [kind for kind in TEXT_SAMPLERS.known if kind != "blocks"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_sampler_checks_what_all_of_them_share(kind: str) -> None:
    """Also those that check settings of their own."""
    for bad in ({"top_p": 0.0}, {"temperature": 1e-5}, {"temperature": 1e5}):
        (key,) = bad
        with pytest.raises(ConfigurationError, match=rf"'sampler\.{key}'"):
            text_sampler(kind, **bad)
    for good in ({"top_p": 1e-6}, {"temperature": 0.0}, {"temperature": 1e4}):
        assert text_sampler(kind, **good)


def test_self_correction_has_bounds_of_its_own() -> None:
    assert text_sampler("self_correction", correction_time=1.0).correction_time == 1.0
    for bad in ({"correction_time": 1.01}, {"correction_time": 0.0}, {"correction_temperature": 1e5}):
        (key,) = bad
        with pytest.raises(ConfigurationError, match=rf"'sampler\.{key}'"):
            text_sampler("self_correction", **bad)
