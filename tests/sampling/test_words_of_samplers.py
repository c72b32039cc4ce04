"""Refusals of samplers and of their parameters word for word."""

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

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.process import ProcessTraits
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.autoregressive.sampler import AutoregressiveSampler
from mm_ldlm.sampling.base import refuse_other_noise, refuse_without_states
from mm_ldlm.sampling.gaussian import Point, estimate_at
from mm_ldlm.sampling.guidance import refuse_without_condition
from mm_ldlm.sampling.logit_filters import filter_logits
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

MASK, PAD, V = 8, 9, 10
WORDS = ProcessTraits(kind="words", revises=True)
MASKS = ProcessTraits(kind="masks", only_masks=True)
NEXT = ("sampler 'autoregressive' needs a model that predicts the next token, but this model denoises whole texts. "
        "Choose the sampler 'confidence' or 'ancestral'.")  # fmt: skip
SAMPLERS = {"text": {"kind": "margin"}, "latent": {"kind": "ddim", "steps": 9}}
TOGETHER = {"order": "together", "text": {"kind": "ancestral", "steps": 9}, "latent": {"kind": "ddim", "steps": 9}}


class Decoder:
    begin_id, end_id, pad_id = V, V, PAD

    def start(self) -> Any:
        return None

    def step(self, cache: Any, token_B: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (text_sampler("autoregressive").refusal(WORDS), NEXT),
        (text_sampler("margin").refusal(WORDS),
         "sampler 'margin' needs a process whose only noise is [MASK], as in 'absorbing'; this model was trained with "
         "'words'. Choose the sampler 'ancestral'."),
        (refuse_other_noise("blocks", WORDS),
         "sampler 'blocks' needs a process whose only noise is [MASK], as in 'absorbing'; this model was trained with "
         "'words'. Choose the sampler 'ancestral'."),
        (refuse_other_noise("margin", None),
         "sampler 'margin' needs a diffusion model, but this model has no diffusion process. Choose the sampler "
         "'autoregressive'."),
        (refuse_without_states("joint_states"),
         "sampler 'joint_states' needs a model with a continuous state for each token (objective 'ccdd'), and this "
         "model has none. Choose the sampler 'ancestral'."),
        (text_sampler("self_correction").refusal(MASKS),
         "sampler 'self_correction' needs a process whose noise includes words, such as 'uniform' or 'gidd' with "
         "p_uniform above 0; this model was trained with 'masks', where a written token is final. Choose the sampler "
         "'ancestral', or 'remdm_conf' if the only noise is [MASK]."),
        (str(refuse_without_condition(2.5)),
         "guidance 2.5 needs an unconditional prediction, but this model was trained without dropping its condition, "
         "or it has no condition here. Set guidance to 1."),
    ],
)  # fmt: skip
def test_a_sampler_that_does_not_fit_says_which_one_does(reason: str, message: str) -> None:
    assert reason == message


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: AutoregressiveSampler().sample(object(), torch.full((1, 3), MASK), process=None, generator=g), NEXT),
        (lambda g: AutoregressiveSampler().sample(
            Decoder(), torch.full((2, 4), MASK), process=None, generator=g,
            open_BL=torch.tensor([[True, True, False, True], [False, False, True, True]])),
         "sampler 'autoregressive' writes whole texts, found 3 given tokens. Choose a run that can infill."),
        (lambda g: filter_logits(torch.zeros(1, 2), temperature=0.0),
         "temperature must be above 0 to filter logits, found 0.0; 0 means argmax."),
        (lambda g: filter_logits(torch.zeros(1, 2), temperature=1e9),
         "temperature must be 0, for the most probable token, or lie between 0.0001 and 10000, found 1e+09: float32 "
         "has too few digits for it."),
        (lambda g: estimate_at(Point(0.75, 0.0, 1.0), torch.ones(1, 2), "eps", x_t_Bd=torch.ones(1, 2)),
         "a model that predicts ε has no estimate of x0 at t=0.75, where no signal is left. Set t_max below 1, for "
         "example to 0.995."),
    ],
)  # fmt: skip
def test_a_sampler_that_cannot_go_on_says_what_it_found(ask: Any, message: str) -> None:
    with pytest.raises(SamplingError) as error:
        ask(RowGenerator(0, torch.arange(2)))
    assert str(error.value) == message


def test_a_block_beyond_the_window_is_refused_with_both_numbers(write: Any, rows: Any, canvas: Any) -> None:
    with pytest.raises(SamplingError) as error:
        write("blocks", None, canvas(30), rows(1), window=10, block_length=12, inner={"kind": "random"})
    assert str(error.value) == (
        "block_length 12 exceeds the 10 positions that the model reads at once. Set a smaller block_length."
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: text_sampler("margin", top_p=0.0),
         "parameter 'sampler.top_p': top_p must be above 0, found 0: no token could be drawn."),
        (lambda: text_sampler("autoregressive", top_p=0.0),
         "parameter 'sampler.top_p': top_p must be above 0, found 0: no token could be drawn."),
        (lambda: text_sampler("blocks", inner={"kind": "blocks", "inner": {"kind": "random"}}),
         "parameter 'sampler.inner': inner must write within the model's window, found the sampler 'blocks'."),
        (lambda: text_sampler("remdm_conf", eta=0.5),
         "parameter 'sampler.eta': eta of 'remdm_conf' must be at most 1/e = 0.367, found 0.5: an uncertain token is "
         "remasked up to e times as often as the mean, and no probability may exceed 1."),
        (lambda: text_sampler("remdm_loop", t_on=0.25, t_off=0.75),
         "parameters 'sampler.t_off' and 'sampler.t_on': t_off must be below t_on, found t_off=0.75, t_on=0.25."),
        (lambda: text_sampler("remdm_loop", t_on=0.5, t_off=0.5),
         "parameters 'sampler.t_off' and 'sampler.t_on': t_off must be below t_on, found t_off=0.5, t_on=0.5."),
        (lambda: text_sampler("self_correction", correction_time=1.5),
         "parameter 'sampler.correction_time': correction_time must be at most 1, found 1.5."),
        (lambda: text_sampler("self_correction", correction_temperature=1e5),
         "parameter 'sampler.correction_temperature': correction_temperature must be 0, for the most probable token, "
         "or lie between 0.0001 and 10000, found 100000: float32 has too few digits for it."),
        (lambda: latent_sampler("ddim", t_max=1.5), "parameter 'sampler.t_max': t_max must be at most 1, found 1.5."),
        (lambda: parse(UnconditionalConfig, {**SAMPLERS, "length": "top-3"}, at="x"),
         "parameter 'x.length': length 'top-3' ranks texts instead of drawing them; use 'sample' or 'argmax'."),
        (lambda: parse(ImageTasksConfig, {"length": "top-3"}, at="x"),
         "parameter 'x.length': length 'top-3' ranks captions; use 'argmax', 'sample' or a number."),
        (lambda: parse(ImageTasksConfig, {"caption": {"kind": "heun", "draws": 3}}, at="x"),
         "parameter 'x.caption.draws': caption.draws is 3, but the mean of several draws is not a sample: set it to "
         "1."),
        (lambda: parse(InfillConfig, {"texts": ["a"] * 3, "latents_of": ["b"]}, at="x"),
         "parameters 'x.latents_of' and 'x.texts': latents_of must be empty or have one text for each of 3 texts, "
         "found 1."),
        (lambda: parse(EditConfig, {"sources": ["a"] * 3, "targets": ["b"] * 2}, at="x"),
         "parameters 'x.sources' and 'x.targets': targets must have one text, or one for each of 3 sources, found 2."),
        (lambda: parse(InterpolateConfig, {"starts": ["a"] * 3, "ends": ["b"]}, at="x"),
         "parameters 'x.starts' and 'x.ends': expected as many ends as starts, found 3 starts, 1 ends."),
        (lambda: parse(InterpolateConfig, {"steps": 1}, at="x"),
         "parameter 'x.steps': steps must be at least 2, which includes both ends, found 1."),
        (lambda: parse(UnconditionalConfig,
                       {**TOGETHER, "order": "latent_first", "latent": {"kind": "ddim", "draws": 3}}, at="x"),
         "parameters 'x.latent.draws' and 'x.order': latent.draws is 3, but in the order 'latent_first' each draw is "
         "the latent of a different sentence, and their mean is the latent of no sentence: set draws to 1."),
        (lambda: parse(UnconditionalConfig, {**TOGETHER, "text": {"kind": "ancestral", "steps": 4}}, at="x"),
         "parameters 'x.text.steps' and 'x.order': the order 'together' takes ancestral steps in the text and as many "
         "DDIM steps in the latent, without guidance: expected text.steps 9, found 4."),
        (lambda: parse(SamplingConfig, {**SAMPLERS, "unconditional": SAMPLERS, "tasks": ["l2t", "edit"]}, at="x"),
         "parameter 'x.tasks': task 'edit' has no input: set edit.sources."),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused_with_what_was_found(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        make()
    assert str(error.value) == message
