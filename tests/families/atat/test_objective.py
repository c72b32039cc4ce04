"""Adaptive masking beside plain masked diffusion, and the importance that it learns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tests.components import SHAPE, random_batch, root_of
from torch import Tensor

from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.held_out import held_out
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.atat.curriculum import Curriculum, CurriculumConfig, factors
from mm_ldlm.families.atat.masking_policies import mask_rates
from mm_ldlm.families.atat.objective import frequency_prior, rank_by_row
from mm_ldlm.inference.loading import load_run

ESTIMATOR = {"estimator": {"dim": 8, "depth": 1, "heads": 2}}


def losses_of(root: Any, *, training: bool, step: int = 50) -> dict[str, Any]:
    batch = random_batch()
    root.train(training)
    return dict(root(batch, RowGenerator(0, batch.position_B), root.objective.kinds[0], step))


@pytest.mark.parametrize("training", [True, False])
def test_it_is_masked_diffusion_in_evaluation_and_with_uniform_masks(training: bool) -> None:
    options: dict[str, Any] = {**ESTIMATOR, "curriculum": {}, "warmup_steps": 0}
    if training:
        options = {"importance": "none", "policy": "uniform"}
    found = losses_of(root_of("adaptive_masking", options), training=training)
    plain = losses_of(root_of("text_diffusion", {}), training=training)
    for name in ("text_loss", "text_nll"):
        torch.testing.assert_close(found[name], plain[name], msg=name)


@pytest.mark.parametrize("sharpening", [True, False])
def test_a_step_weighs_each_mask_by_its_rate_and_stage_and_ranks_the_masks_of_a_text(sharpening: bool) -> None:
    course = CurriculumConfig(steps=60)
    options = {"noised_inputs": 0.0, "warmup_steps": 0, "curriculum": course, "policy": "inverse", "temperature": 0.5}
    root, seen = root_of("adaptive_masking", {**ESTIMATOR, **options, "time_sharpening": sharpening}), list[Any]()
    objective, batch = root.objective, random_batch(examples=32)
    objective.estimator.output.weight.data *= 20  # so that tokens of every stage occur
    root.model.register_forward_hook(lambda *call: seen.append((*call[1], call[2], call[3].logits)), with_kwargs=True)
    found = dict(root(batch, RowGenerator(0, batch.position_B), "text", 50))
    ((noisy_BL, named, logits_MV),) = seen
    valid_BL, masked_BL, t_B = batch.valid_BL, noisy_BL != batch.tokens_BL, named["t_B"]
    importance_BL = objective.importance(batch.tokens_BL, valid_BL)
    rates = mask_rates(
        "inverse", importance_BL, valid_BL, t_B, schedule=objective.process.schedule, temperature=0.5,
        time_sharpening=sharpening,
    )  # fmt: skip
    assert bool((rates.probability_BL[masked_BL] > 0).all())
    expected = (rates.probability_BL.sum(), (rates.probability_BL * (1 - rates.probability_BL)).sum().sqrt())
    assert float((masked_BL.sum() - expected[0].detach()).abs() / expected[1].detach()) < 4
    nll_BL = torch.zeros(noisy_BL.shape).masked_scatter(
        masked_BL, -logits_MV.log_softmax(-1).gather(1, batch.tokens_BL[masked_BL][:, None])[:, 0]
    )
    weight_BL = rates.weight_BL * factors(importance_BL, valid_BL, Curriculum(course, 0, 60).fractions(50))
    torch.testing.assert_close(found["text_loss"][0], (nll_BL * weight_BL)[masked_BL].sum().float())
    several_BL = masked_BL & (masked_BL.sum(1, keepdim=True) > 1)
    assert bool((masked_BL != several_BL).any())
    error_BL = objective.estimator(batch.tokens_BL, valid_BL) - rank_by_row(nll_BL, masked_BL)
    torch.testing.assert_close(found["importance_loss"][0], error_BL[several_BL].square().sum())
    values = importance_BL[valid_BL]
    for name, value in zip(
        ("mean", "std", "min", "max"),
        (values.mean(), values.std(correction=0), values.min(), values.max()),
        strict=True,
    ):
        total, count = found[f"importance_{name}"]
        torch.testing.assert_close(total / count, value.detach(), check_dtype=False)
    denoiser = objective.generative_model(root.model).text_denoiser(None, RowGenerator(0, batch.position_B))
    power_B1 = 1 / (t_B + 0.1)[:, None] if sharpening else 1
    torch.testing.assert_close(denoiser.importance(batch.tokens_BL, t_B)[valid_BL], (importance_BL**power_B1)[valid_BL])


def test_the_estimator_learns_from_its_own_loss_alone_and_the_denoiser_from_the_other() -> None:
    root = root_of("adaptive_masking", ESTIMATOR)
    losses = losses_of(root, training=True)
    for name, learns in (("importance_loss", root.objective.estimator), ("text_loss", root.model)):
        root.zero_grad()
        losses[name][0].backward(retain_graph=True)
        moved = {id(each) for each in root.parameters() if each.grad is not None and each.grad.any()}
        assert moved
        assert moved <= {id(each) for each in learns.parameters()}
    block, x_BLE = root.objective.estimator.blocks[0], torch.randn(2, 3, 8)  # type: ignore[union-attr,index]
    block.out.forward = block.down.forward = lambda input: 0 * x_BLE
    assert torch.equal(block(x_BLE, None), x_BLE), "attention and MLP are added to the input"


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_fraction_of_the_texts_is_read_by_the_estimator_with_their_masks(fraction: float) -> None:
    root, read = root_of("adaptive_masking", {**ESTIMATOR, "noised_inputs": fraction}), list[Tensor]()
    root.objective.estimator.register_forward_pre_hook(lambda module, args: read.append(args[0]))  # type: ignore[union-attr]
    losses_of(root, training=True)
    clean_BL, seen_BL = read  # for the masks, then for the loss
    assert not bool((clean_BL == SHAPE.mask_id).any())
    assert bool((seen_BL == SHAPE.mask_id).any()) == (fraction == 1.0)


@given(st.lists(st.integers(0, 50), min_size=3, max_size=12))
def test_the_frequency_prior_grows_with_rarity_from_0_to_1(counts: list[int]) -> None:
    prior_V = frequency_prior(torch.tensor([*counts, 0]), mask_id=len(counts))
    assert bool(((prior_V >= 0) & (prior_V <= 1)).all())
    pairs = [(count, float(prior)) for count, prior in zip(counts, prior_V, strict=False)]
    assert all(a >= b for m, a in pairs for n, b in pairs if m <= n or n == 0 == m)
    if len({count for count in counts if count}) > 1:
        assert float(prior_V[counts.index(max(counts))]) == 0
        assert float(prior_V[counts.index(min(count for count in counts if count))]) == 1


def test_a_mask_has_the_mean_prior_of_the_corpus() -> None:
    counts_V = torch.tensor([6, 3, 1, 0])
    prior_V = frequency_prior(counts_V, mask_id=3)
    assert float(prior_V[3]) == pytest.approx(float((counts_V * prior_V).sum() / counts_V.sum()))


@given(st.lists(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=4, max_size=4), min_size=1, max_size=3))
def test_ranks_order_the_chosen_values_of_each_text(rows: list[list[tuple[float, bool]]]) -> None:
    value_BL, chosen_BL = (
        torch.tensor([[v for v, _ in row] for row in rows]),
        torch.tensor([[c for _, c in row] for row in rows]),
    )
    for values, chosen, ranks in zip(value_BL, chosen_BL, rank_by_row(value_BL, chosen_BL), strict=True):
        sorted_values = values[chosen][ranks[chosen].argsort()]
        assert torch.equal(sorted_values, values[chosen].sort().values)
        expected = torch.linspace(0, 1, int(chosen.sum())) if chosen.any() else torch.zeros(0)
        torch.testing.assert_close(ranks[chosen].sort().values, expected)


def test_importance_that_is_alike_for_all_tokens_is_reported_once() -> None:
    options = {**ESTIMATOR, "warmup_steps": 5, "curriculum": {"pace": "dynamic", "window": 4}}
    objective = root_of("adaptive_masking", options).objective

    def told(step: int, deviation: float) -> bool:
        return objective.observe({"text_nll": (6.0, 3.0), "importance_std": (deviation, 1.0)}, step=step) is not None

    assert [told(4, 0.0), told(5, 0.0), told(6, 0.0), told(7, 0.2), told(8, 0.0)] == [False, True, False, False, True]
    assert float(objective.plateau_4[3]) == 2.0, "the mean loss of the last window"


def test_the_pieces_of_importance_are_mixed_as_the_mode_says() -> None:
    tokens_BL = torch.tensor([[2, 3, 4]])

    def importance(mode: str) -> Tensor:
        options = {"importance": mode, **(ESTIMATOR if mode in ("full", "learned_only") else {})}
        objective = root_of("adaptive_masking", options).objective
        objective.set_token_counts(lambda: torch.arange(SHAPE.first_noise_id))
        assert objective.config.identity["importance"] == mode
        return objective.importance(tokens_BL, torch.ones_like(tokens_BL).bool())

    learned, prior = importance("learned_only"), importance("frequency_only")
    torch.testing.assert_close(importance("full"), 0.7 * learned + 0.3 * prior)
    torch.testing.assert_close(importance("none"), torch.full((1, 3), 0.5))


DRAWS = 16
ATAT = (
    "training.max_steps=240,training.launch.processes=1,training.batch.examples=32,training.optimizer.warmup_steps=20,"
    "training.log_every=10,objective.warmup_steps=60,model.dim=96,model.depth=3,model.heads=4,"
    "objective.estimator.dim=128,tracking.enabled=false"
)


@pytest.mark.slow
def test_importance_spreads_and_ranks_tokens_as_their_loss_does(run_kedro: Callable[..., Any], workshop: Path) -> None:
    run_kedro("run", "--env=atat", "--pipelines=ingestion,validation,training", f"--params={ATAT}")
    (run,) = (path.parent for path in (workshop / "data" / "atat" / "06_models").rglob("training_log.jsonl"))
    events = [json.loads(line) for line in (run / "training_log.jsonl").read_text().splitlines()]
    spread = [event["importance_std"] for event in events if event.get("step", 0) > 60 and "importance_std" in event]
    assert len(spread) > 10
    assert min(spread) > 0.1

    model = load_run(run).model
    sentences = held_out(
        Dataset.open(workshop / "data" / "atat" / "05_model_input" / "dataset"), count=200, seed=0, split="test"
    )
    longest = max(map(len, sentences.tokens))
    tokens_BL = torch.full((len(sentences), longest), model.shape.pad_id)
    for row, tokens in enumerate(sentences.tokens):
        tokens_BL[row, : len(tokens)] = torch.tensor(tokens)
    valid_BL = tokens_BL != model.shape.pad_id
    loss_BL, times_BL = torch.zeros(tokens_BL.shape), torch.zeros(tokens_BL.shape)
    generator = RowGenerator(0, torch.arange(len(sentences)))
    denoiser = model.text_denoiser(None, generator)
    with torch.no_grad():
        for draw in range(DRAWS):
            drawn = torch.Generator().manual_seed(draw)
            t_B = torch.rand(len(sentences), generator=drawn).clamp(0.02, 0.98)
            masked_BL = (torch.rand(tokens_BL.shape, generator=drawn) < t_B[:, None]) & valid_BL
            noisy_BL = tokens_BL.masked_fill(masked_BL, model.shape.mask_id)
            logits_NV = denoiser.logits(noisy_BL, t_B, torch.arange(len(sentences)), masked_BL)
            loss_BL[masked_BL] += torch.nn.functional.cross_entropy(
                logits_NV[:, : model.shape.vocab_size].float(), tokens_BL[masked_BL], reduction="none"
            )
            times_BL += masked_BL
        importance_BL = model.objective.importance(tokens_BL, valid_BL)
    counted_BL = valid_BL & (times_BL > 0)
    correlation = spearmanr(importance_BL[counted_BL], (loss_BL / times_BL)[counted_BL]).statistic
    print(f"standard deviation {np.min(spread):.3f} or more, rank correlation {correlation:.3f}")
    assert correlation > 0.5
