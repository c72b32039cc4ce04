"""What every registered sampler promises, whatever family it comes from."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
import torch
from tests.sampling.toys import PROCESSES, build, canvas, conforms, context, on, overfit, rebuilds

from mm_ldlm.core import ConfigurationError, SamplingError, to_dict
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, default_text_sampler, latent_sampler, text_sampler

RESULTS = ("tokens", "log_probs", "steps", "calls_per_row")
INNER = {"blocks": {"block_length": 3, "inner": {"kind": "confidence", "steps": 2, "temperature": 1.0}}}


def made(kind: str, **settings: Any) -> Any:
    return text_sampler(kind, **{**INNER.get(kind, {}), **settings})


def fitting(kind: str) -> list[Any]:
    """The processes of texts that a sampler fits; none for samplers of other models, which their families test."""
    sampler = made(kind)
    if getattr(sampler, "denoises", None) is not None:
        return []
    processes = [build(name) for name in PROCESSES]
    return [process for process in processes if sampler.refusal(process.traits) is None]


PAIRS = [(kind, process) for kind in TEXT_SAMPLERS for process in fitting(kind)]
PAIRS_BY_NAME = [f"{kind}-{process.traits.kind}" for kind, process in PAIRS]


@pytest.mark.parametrize(("kind", "process"), PAIRS, ids=PAIRS_BY_NAME)
def test_a_text_sampler_writes_what_is_open_row_by_row_and_counts_its_calls(kind: str, process: Any) -> None:
    conforms(made(kind), context(), process)


@pytest.mark.parametrize(("kind", "process"), PAIRS, ids=PAIRS_BY_NAME)
def test_a_text_sampler_rebuilds_what_the_model_is_certain_of(kind: str, process: Any) -> None:
    rebuilds(made(kind), process)


@pytest.mark.parametrize("kind", [*TEXT_SAMPLERS])
@pytest.mark.parametrize("process", [None, *PROCESSES])
def test_a_text_sampler_refuses_in_the_words_of_its_refusal(kind: str, process: str | None) -> None:
    sampler, found = made(kind), None if process is None else build(process)
    reason = sampler.refusal(None if found is None else found.traits)
    if reason is not None:
        assert kind in reason
        with pytest.raises(SamplingError) as raised:
            sampler.sample(on(context(), canvas(3), found))
        assert str(raised.value) == reason


@pytest.mark.parametrize("kind", [*TEXT_SAMPLERS])
def test_guidance_needs_a_condition_and_counts_twice(kind: str) -> None:
    sampler = made(kind)
    if not (processes := fitting(kind)) or "guidance" not in to_dict(sampler):
        return
    guided, plain = made(kind, guidance=2.0), context()
    with pytest.raises(SamplingError, match=r"guidance 2\.0"):
        guided.sample(on(plain, canvas(5), processes[0]))
    both = replace(plain, unconditional=context(sharpness=0.5).logits)
    one = sampler.sample(on(both, canvas(5), processes[0]))
    two = guided.sample(on(both, canvas(5), processes[0]))
    assert two.model_calls % 2 == 0
    assert int(two.calls_per_row.max()) <= guided.most_calls(5)
    assert guided.most_calls(5) >= 2 * sampler.most_calls(5) - getattr(sampler, "checks", 0)
    if kind != "entropy_bounded" and kind != "threshold":  # which take more or fewer calls of a sharper distribution
        assert two.calls_per_row.tolist() != one.calls_per_row.tolist()


@pytest.mark.parametrize("kind", [*TEXT_SAMPLERS])
def test_every_setting_of_a_text_sampler_can_be_overridden_or_refused(kind: str) -> None:
    sampler = made(kind)
    colder = sampler.override(temperature=0.25)
    assert getattr(colder, "inner", colder).temperature == 0.25
    try:
        assert getattr(sampler.override(steps=3), "inner", sampler.override(steps=3)).steps == 3
    except ConfigurationError:
        assert "steps" not in to_dict(sampler)
    with pytest.raises(ConfigurationError):
        sampler.override(temperature=1e-9)


SETTINGS = [(kind, process, name) for kind, process in PAIRS for name, value in vars(made(kind)).items()
            if name != "kind" and (value is None or isinstance(value, (int, float, str)))]  # fmt: skip


@pytest.mark.parametrize(("kind", "process", "name"), SETTINGS)
def test_pitfall_01_a_setting_of_a_text_sampler_changes_a_sample_or_its_cost_or_is_refused(
    kind: str, process: Any, name: str
) -> None:
    """By a model of the time, or by one of the tokens only where the sampler needs it."""
    value, hint = getattr(made(kind), name), get_type_hints(type(made(kind)))[name]
    words = [word for word in get_args(hint) if isinstance(word, str) and word != value]
    others = words or ([not value] if isinstance(value, bool) else [0.01, 0.5, 2.0, 1])
    found = list[Any]()
    for timed, other in product((True, False), others):
        denoise = replace(context(timed=timed), unconditional=context(sharpness=0.5).logits)
        with suppress(SamplingError, ConfigurationError):
            found += [
                made(kind, **changed).sample(on(denoise, canvas(50, 1), process)) for changed in ({}, {name: other})
            ]
            if any(not torch.equal(getattr(found[-2], each), getattr(found[-1], each)) for each in RESULTS):
                return
    assert not found


@pytest.mark.parametrize("kind", [*LATENT_SAMPLERS])
def test_every_setting_of_a_latent_sampler_can_be_overridden_or_refused(kind: str) -> None:
    sampler = latent_sampler(kind)
    assert sampler.override(draws=3).draws == 3
    if to_dict(sampler)["steps"] > 1:
        assert sampler.override(steps=3).steps == 3
    for wrong in ({"t_max": 0.0}, {"t_max": 1.5}, {"draws": 0}, {"guidance": -1.0}, {"nothing": 1}):
        with pytest.raises(ConfigurationError):
            latent_sampler(kind, **wrong)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_default_sampler_of_a_process_fits_it(name: str) -> None:
    process = build(name)
    for conditional in (True, False):
        sampler = default_text_sampler(process, conditional=conditional)
        assert sampler.refusal(process.traits) is None
        assert (sampler.temperature == 0) is conditional
    texts_BL = torch.arange(8)[None].repeat(2, 1)
    sample = default_text_sampler(process, conditional=True).sample(on(overfit(texts_BL), canvas(8, 8), process))
    assert torch.equal(sample.tokens, texts_BL)
