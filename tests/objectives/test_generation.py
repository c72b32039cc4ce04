"""Generative models: every run does what its capabilities say, row by row, and nothing that it was not trained for."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.components import OBJECTIVES_AND_OPTIONS, PROCESSES, SHAPE, configs_of, labelled, random_batch, root_of
from tests.sampling.toys import build, recorded
from torch import Tensor

from mm_ldlm.core import ConfigurationError, SamplingError, config
from mm_ldlm.diffusion.process import TEXT_PROCESSES
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.precision import in_precision
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.orders import ConfidenceConfig
from mm_ldlm.sampling.registry import latent_sampler, text_sampler
from mm_ldlm.sampling.traces import Recorder

each_objective = pytest.mark.parametrize(("kind", "options"), **labelled(OBJECTIVES_AND_OPTIONS))
DDIM = latent_sampler("ddim", steps=2)
SCORES = {"score", "score_given_latent"}


@contextmanager
def drawing_each_number_once() -> Iterator[None]:
    """Check that no random number decides two things."""
    drawn, real = set[tuple[int, int, int]](), RowGenerator._bits

    def bits(generator: RowGenerator, shape: tuple[int, ...]) -> Tensor:
        numbers = {(generator._key, generator._draws, row) for row in generator.rows.tolist()}
        assert not numbers & drawn
        drawn.update(numbers)
        return real(generator, shape)

    with mock.patch.object(RowGenerator, "_bits", bits):
        yield


class Requests:
    """What can be asked of a run about the texts and values of a batch; the answers have a row for each."""

    def __init__(self, made: Any, batch: Batch, rows: Tensor) -> None:
        self.made, self.generator = made, RowGenerator(0, rows)
        self.tokens_BL = batch.tokens_BL
        self.values_Bd = batch.fields.get(made.field)
        canvas_BL = torch.where(batch.valid_BL, SHAPE.mask_id, SHAPE.pad_id)
        longest = torch.full((len(canvas_BL), SHAPE.max_length), SHAPE.mask_id)
        self.canvas_BL = canvas_BL if made.has_length else longest

    def written(self, *, given: bool, infill: bool = False) -> Tensor:
        open_BL = self.canvas_BL == SHAPE.mask_id
        canvas_BL = self.canvas_BL
        if infill:
            open_BL = open_BL & (torch.arange(open_BL.shape[1]) % 2 == 0)
            missing = (0, canvas_BL.shape[1] - self.tokens_BL.shape[1])
            given_BL = torch.nn.functional.pad(self.tokens_BL, missing, value=SHAPE.pad_id)
            canvas_BL = torch.where(open_BL, canvas_BL, given_BL)
        sampler = self.made.default_sampler(conditional=given or infill)
        sampler = type(sampler)(**{**vars(sampler), "steps": 2}) if "steps" in vars(sampler) else sampler
        recorder = Recorder(sampler, len(canvas_BL), pad_id=SHAPE.pad_id)
        how = {"latents_Bd": self.values_Bd if given else None, "generator": self.generator}
        with drawing_each_number_once():
            made = self.made.write(canvas_BL, open_BL, sampler=sampler, **how)
        recorded(recorder, made, self.made.write(canvas_BL, open_BL, sampler=recorder, **how))
        found: Tensor = made.tokens
        if self.made.has_length:
            assert torch.equal(found[~open_BL], canvas_BL[~open_BL])
            assert bool(torch.isin(found[open_BL], torch.tensor(SHAPE.word_ids)).all())
        return found

    def likelihood(self, *, given: bool) -> Tensor:
        found = self.made.likelihood(
            self.tokens_BL, latents_Bd=self.values_Bd if given else None, draws=2, generator=self.generator
        )
        assert found.nll_KB.dtype == torch.float64
        assert bool(found.nll_KB.isfinite().all())
        process = self.made.process
        if process is None or process.traits.fixed_length:  # a draw of an insertion can be below its mean
            assert bool((found.nll_KB > -1e-6).all())
        return found.nll_KB.T

    def values(self) -> Tensor:
        drawn = self.made.latents_given_texts(self.tokens_BL, sampler=DDIM, generator=self.generator)
        assert drawn.latents.shape == (len(self.tokens_BL), self.made.dim)
        return drawn.latents

    def generated(self, orders: tuple[str, ...]) -> list[Tensor]:
        found = []
        if "together" in orders:
            sampler = text_sampler("ancestral", steps=2)
            recorder = Recorder(sampler, len(self.canvas_BL), pad_id=SHAPE.pad_id)
            (text, latent), (traced, _) = (
                self.made.both(self.canvas_BL, text=each, latent=DDIM, generator=self.generator)
                for each in (sampler, recorder)
            )
            recorder.close(traced.tokens)
            recorded(recorder, text, traced)
            found += [text.tokens, latent.latents]
        if "latent_first" in orders:
            drawn = self.made.latents_given_lengths(self.canvas_BL, sampler=DDIM, generator=self.generator)
            found.append(drawn.latents)
        if "text_first" in orders or not orders:
            found.append(self.written(given=False))
        return found

    def answers(self, capabilities: Any) -> dict[str, list[Tensor]]:
        """The answer to every use of the core that the run has."""
        requests = {
            "l2t": lambda: [self.written(given=True)],
            "t2l": lambda: [self.values()],
            "unconditional": lambda: self.generated(capabilities.joint_orders),
            "infill": lambda: [self.written(given=False, infill=True)],
            "infill_given_latent": lambda: [self.written(given=True, infill=True)],
            "score": lambda: [self.likelihood(given=False)],
            "score_given_latent": lambda: [self.likelihood(given=True)],
            "edit": lambda: [self.made.token_log_probs(
                self.tokens_BL, latents_Bd=self.values_Bd, generator=self.generator
            )[0]],
        }  # fmt: skip
        return {use: ask() for use, ask in requests.items() if use in capabilities}


@each_objective
def test_a_run_answers_every_use_that_it_promises_and_each_row_alone(kind: str, options: dict[str, Any]) -> None:
    root, batch = root_of(kind, options), random_batch()
    config, model = configs_of(kind, options)
    capabilities, made = config.capabilities(model), root.objective.generative_model(root.model)
    rows = torch.arange(4)
    with made.evaluating():
        whole = Requests(made, batch, rows).answers(capabilities)
        row = int(batch.valid_BL.sum(1).argmin())
        one, length = slice(row, row + 1), int(batch.valid_BL[row].sum())
        single = Batch(
            batch.tokens_BL[one, :length], batch.valid_BL[one, :length],
            {name: value[one, :length] if value.shape[1] == SHAPE.max_length else value[one]  # values of tokens
             for name, value in batch.fields.items()},
            rows[one], rows[one], global_size=1, global_tokens=length,
        )  # fmt: skip
        alone = Requests(made, single, rows[one]).answers(capabilities)
        near = Requests(in_precision(made, "bf16"), batch, rows).answers(capabilities)
    for use in near.keys() & SCORES:
        torch.testing.assert_close(near[use], whole[use], atol=0.1, rtol=0.05, msg=use)
    for use, answers in alone.items():
        for mine, all_rows in zip(answers, whole[use], strict=True):
            expected = all_rows[one, : mine.shape[1]]
            torch.testing.assert_close(mine.double(), expected.double(), atol=1e-4, rtol=1e-4, msg=use)


@each_objective
def test_lengths_are_distributions_where_they_were_trained(kind: str, options: dict[str, Any]) -> None:
    batch, orders = random_batch(), (("together", False), ("text_first", False))
    for changed in ({}, {"length_weight": 0.0}, {"condition_dropout": 0.0}, {"condition_dropout": 1.0}):
        try:
            root, (config, model) = (make(kind, {**options, **changed}) for make in (root_of, configs_of))  # type: ignore[operator, misc]
        except ConfigurationError:
            continue
        made, able = root.objective.generative_model(root.model), config.capabilities(model)
        assert able.likelihood == "given_length" or changed != {"length_weight": 0.0} or not able.uses & SCORES
        losses = root(batch, RowGenerator(0, batch.position_B), root.objective.kinds[-1], 50)
        assert changed != {"length_weight": 0.0} or "length_loss" not in losses
        first = "latent_first", not made.latents_need_lengths  # else the lengths come before the latents
        for use, conditional in (("l2t", True), ("interpolate", True), ("unconditional", False), *orders, first):
            if use in able.untrained_lengths:
                refused = able.untrained_lengths[use] is not None
                with pytest.raises(SamplingError) if refused else nullcontext():
                    found = made.length_log_probs(batch.fields[made.field] if conditional else None, rows=4)
                    assert found.shape == (4, SHAPE.max_length)
                    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_answers_without_dropout_and_gradients_and_is_then_as_before(training: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).train(training)
    made = GenerativeModel(model, SHAPE)
    with made.evaluating():
        assert not model[1].training
        assert not model(torch.ones(1, 2)).requires_grad
    assert model[1].training == training
    with pytest.raises(ZeroDivisionError), made.evaluating():
        raise ZeroDivisionError
    assert model[1].training == training


@torch.no_grad()
def test_every_way_to_draw_latents_gives_a_model_with_self_conditioning_its_estimate() -> None:
    root, received = root_of("multimodal", {"self_condition": True, "_model": {"self_condition": True}}), list[Any]()
    root.model.register_forward_pre_hook(lambda *call: received.append(call[2]["self_condition_Bd"]), with_kwargs=True)
    asked = Requests(root.objective.generative_model(root.model), random_batch(), torch.arange(4))
    for draw in (asked.values, lambda: asked.generated(("together",)), lambda: asked.generated(("latent_first",))):
        draw()
        assert [received[0], type(received[-1])] == [None, Tensor]
        received.clear()


def test_every_token_is_predicted_from_the_other_half_of_its_text() -> None:
    options = {"process": {"kind": "absorbing", "schedule": {"kind": "cosine"}}}
    root, batch, seen, times = root_of("multimodal", options, stirred=False), random_batch(), [], []
    made = root.objective.generative_model(root.model)

    def see(module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.append((given[0], options["logits_at"]))
        times.append(options["t_text_B"])

    root.model.register_forward_pre_hook(see, with_kwargs=True)
    with made.evaluating():
        found_BL, calls = made.token_log_probs(
            batch.tokens_BL, latents_Bd=batch.fields["latents"], generator=RowGenerator(0, torch.arange(4))
        )
    assert calls == len(seen)
    half = root.objective.process.mask_probability(torch.stack(times))
    torch.testing.assert_close(half, torch.full_like(half, 0.5))
    asked = torch.stack([asked_BL.int() for _, asked_BL in seen]).sum(0)
    assert torch.equal(asked, batch.valid_BL.int() * calls // 2), "every token as often as the others"
    assert all(bool((noisy_BL[asked_BL] == SHAPE.mask_id).all()) for noisy_BL, asked_BL in seen)
    assert all(torch.equal(noisy_BL[~asked_BL], batch.tokens_BL[~asked_BL]) for noisy_BL, asked_BL in seen)
    assert not torch.equal(seen[0][1], seen[2][1]), "by several divisions"
    equal = torch.where(batch.valid_BL, -math.log(len(SHAPE.word_ids)), 0.0)  # at initial weights all words are
    torch.testing.assert_close(found_BL, equal, check_dtype=False)


@pytest.mark.parametrize(
    ("kind", "options"), **labelled(case for case in PROCESSES if not TEXT_PROCESSES.find(case[0], at="").stores)
)
def test_every_token_has_a_finite_log_probability_under_every_process(kind: str, options: dict[str, Any]) -> None:
    root, batch = root_of("multimodal", {"process": {"kind": kind, **options}}), random_batch(examples=16)
    made = root.objective.generative_model(root.model)
    with made.evaluating():
        found_BL, _ = made.token_log_probs(
            batch.tokens_BL, latents_Bd=batch.fields["latents"], generator=RowGenerator(0, torch.arange(16))
        )
    assert bool(found_BL.isfinite().all())


@config
class ShortScores(ConfidenceConfig):
    kind: str = "mine"

    def score(self, *given: Any) -> Tensor:
        return super().score(*given)[:, 1:]


def returning(made: Callable[[Tensor], Any]) -> Any:
    return SimpleNamespace(kind="mine", sample=lambda canvas: made(canvas.tokens))


@pytest.mark.parametrize(
    "sampler",
    [
        returning(lambda tokens_BL: tokens_BL),
        returning(lambda tokens_BL: TextSample.start(tokens_BL[:, 1:])),
        returning(lambda tokens_BL: replace(TextSample.start(tokens_BL), calls_per_row=torch.ones(()))),
        ShortScores(),
    ],
)
@torch.no_grad()
def test_a_sampler_that_returns_anything_but_a_sample_of_its_canvas_is_refused(sampler: Any, refuses: Any) -> None:
    made = root_of("text_diffusion", {}).objective.generative_model(root_of("text_diffusion", {}).model)
    canvas_BL = torch.full((2, 5), SHAPE.mask_id)
    with refuses(SamplingError, "mine", (2, 5)):
        made.write(
            canvas_BL,
            canvas_BL == SHAPE.mask_id,
            latents_Bd=None,
            sampler=sampler,
            generator=RowGenerator(0, torch.arange(2)),
        )


def test_guidance_is_for_guided_uses_given_a_condition_and_gaps_are_filled_given_a_latent() -> None:
    uses = frozenset({"l2t", "edit", "continue"})
    run = Capabilities(uses=uses, process=build().traits, guided=frozenset({"l2t"}), trained_as="a toy")
    sampler = text_sampler("confidence", guidance=2.0)
    found = [
        run.sampler_refusal(sampler, use, given_latent=given)
        for use, given in (("l2t", True), ("l2t", False), ("edit", True))
    ]
    assert [reason is None for reason in found] == [True, False, False]
    config, model = configs_of("multimodal", {"mode": "l2t", "condition_dropout": 0.0})
    assert not config.capabilities(model).uses & {"infill", "score", "unconditional", "t2l"}
    assert [run.filling(given_latent=given) for given in (True, False)] == ["infill_given_latent", "continue"]


def test_a_use_that_nobody_knows_is_refused(refuses: Any) -> None:
    with refuses(ConfigurationError, "infil.", "'infill'"):
        Capabilities(uses=frozenset({"infil", "score"}), trained_as="a toy")


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_number_beyond_the_model_is_for_samplers_that_exceed_its_window(length: int, longest: int) -> None:
    run = Capabilities(uses=frozenset({"l2t"}), process=build().traits, trained_as="a toy")
    blocks, plain = text_sampler("blocks", inner={"kind": "confidence"}), text_sampler("confidence")
    for sampler in (None, plain):
        reason = run.length_refusal(length, "l2t", max_length=longest, sampler=sampler)
        assert (reason is None) == (length <= longest)
        assert reason is None or (str(length) in reason and str(longest) in reason and "'blocks'" in reason)
    assert run.length_refusal(length, "l2t", max_length=longest, sampler=blocks) is None
    for word in (None, "argmax", "sample"):
        assert run.length_refusal(word, "l2t", max_length=1) is None
