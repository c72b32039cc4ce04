"""Block diffusion: its limits MDLM and the autoregressive model, its bound by enumeration, and its cache."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from tests.components import SHAPE, random_batch, root_of, stir
from tests.families.bd3lm.uncached import Uncached
from tests.sampling.toys import agrees
from torch import Tensor

from mm_ldlm.core import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.bd3lm.model import BlockDiTConfig
from mm_ldlm.families.bd3lm.objective import BlockDiffusionConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.root import TrainableRoot, build_root
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.registry import text_sampler

TINY = DataShape(vocab_size=4, pad_id=0, mask_id=1, max_length=3)
TEXTS_SL = torch.tensor([*itertools.product((2, 3), repeat=3)])
"""Every text of three words"""


def tiny(block_length: int, **options: Any) -> TrainableRoot:
    model = BlockDiTConfig(dim=16, depth=2, heads=2, block_length=block_length)
    draw = torch.Generator().manual_seed(0)
    root = build_root(model, BlockDiffusionConfig(**options), TINY, generator=draw, stores={})
    return stir(root).eval().requires_grad_(False)


def rows(count: int, *, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def cost(root: TrainableRoot, noisy: list[int], text: list[int]) -> list[float]:
    """−log x_θ of each token of a text given x_t."""
    given = {"valid_BL": None, "clean_BL": torch.tensor([text])}
    logits_LV = root.model(torch.tensor([noisy]), **given).logits[0].double()
    logits_LV[:, [TINY.pad_id, TINY.mask_id]] = -torch.inf
    return [-float(logits_LV.log_softmax(-1)[place, token]) for place, token in enumerate(text)]


def bound(root: TrainableRoot, text: list[int]) -> float:
    """The NELBO of a text in closed form: in each block the mean cost over all orders in which it can be written."""
    total = 0.0
    for start in range(0, len(text), root.model.block_length):
        places = range(start, min(start + root.model.block_length, len(text)))
        orders = [*itertools.permutations(places)]
        for order in orders:
            for number, place in enumerate(order):
                noisy = [TINY.mask_id if each in order[number:] else text[each] for each in range(len(text))]
                total += cost(root, noisy, text)[place] / len(orders)
    return total


# -- the limits -----------------------------------------------------------------------------------------------------------


def test_one_block_is_masked_diffusion() -> None:
    """The same losses and the same NELBO on the same noise, with a model that does not read the length."""
    ours = root_of("block_diffusion", {"_model": {"block_length": SHAPE.max_length}})
    theirs = root_of("text_diffusion", {"_model": {"kind": "dit", "time_conditioning": False}})
    for root in (ours, theirs):
        root.model.time.inner.weight.data.zero_()
    batch = random_batch(filling=1)
    losses, expected = (root(batch, RowGenerator(3, batch.position_B), "text", 0) for root in (ours, theirs))
    assert losses.keys() == expected.keys()
    for name, pair in losses.items():
        torch.testing.assert_close(pair, expected[name], rtol=1e-5, atol=1e-6)
    found, wanted = (
        root.objective.generative_model(root.model).likelihood(
            batch.tokens_BL, latents_Bd=None, draws=3, generator=RowGenerator(0, batch.position_B)
        )
        for root in (ours, theirs)
    )
    torch.testing.assert_close(vars(found), vars(wanted), rtol=1e-5, atol=1e-6)


def test_blocks_of_one_token_are_an_autoregressive_model() -> None:
    """Its likelihoods are exact, sum to 1, and are the expectation of the training loss."""
    root = tiny(1, length_weight=0.0)
    generation = root.objective.generative_model(root.model)
    nll_S = generation.likelihood(TEXTS_SL, latents_Bd=None, draws=2, generator=rows(8)).nll_KB[1]
    torch.testing.assert_close(
        nll_S, torch.tensor([bound(root, text) for text in TEXTS_SL.tolist()]).double(), rtol=1e-5, atol=1e-5
    )
    assert float(nll_S.neg().exp().sum()) == pytest.approx(1, abs=1e-5)

    batch = random_batch(TINY, examples=6000)
    batch.tokens_BL[:], batch.valid_BL[:] = TEXTS_SL[5], True
    with torch.no_grad():
        loss = root(batch, rows(6000), "text", 0)["text_loss"][0] / 6000
    assert float(loss) == pytest.approx(float(nll_S[5]), rel=0.03)


def test_capabilities_name_the_kind_of_likelihood() -> None:
    kinds = {
        length: BlockDiffusionConfig(length_weight=weight).capabilities(BlockDiTConfig(block_length=length)).likelihood
        for length, weight in ((1, 0.1), (2, 0.1), (3, 0.0))
    }
    assert kinds == {1: "exact", 2: "bound", 3: "given_length"}


# -- the bound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_length", [2, 3])
def test_the_nelbo_is_the_mean_over_the_orders_within_each_block(block_length: int) -> None:
    root, count = tiny(block_length), 4000
    tokens_BL = TEXTS_SL[5].repeat(count, 1)
    found = root.objective.generative_model(root.model).likelihood(
        tokens_BL, latents_Bd=None, draws=2, generator=rows(count)
    )
    draws_B = found.nll_KB.mean(dim=0)
    error = float(draws_B.std()) / math.sqrt(count)
    assert abs(float(draws_B.mean()) - bound(root, TEXTS_SL[5].tolist())) < 4 * error


@pytest.mark.parametrize(("t_min", "t_max"), [(0.3, 0.8), (0.001, 1.0)])
def test_the_times_of_all_blocks_cover_the_clipped_interval_evenly(t_min: float, t_max: float) -> None:
    process = {"kind": "absorbing", "t_min": t_min}
    root = root_of("block_diffusion", {"t_max": t_max, "process": process, "_model": {"block_length": 3}})
    batch = random_batch(examples=50)
    times_BN = root.objective.corrupt(batch, RowGenerator(0, batch.position_B)).t_B[:, ::3]
    short = dataclasses.replace(batch, tokens_BL=batch.tokens_BL[:, :4], valid_BL=batch.valid_BL[:, :4])
    found_BL = root.objective.corrupt(short, RowGenerator(0, batch.position_B)).t_B
    assert torch.equal(found_BL[:, ::3], times_BN[:, :2]), "padding changes no time"
    assert t_min <= float(times_BN.min()) < float(times_BN.max()) <= t_max
    for times, count in ((times_BN.flatten(), 150), (times_BN, 3)):
        gaps = times.sort(dim=-1).values.diff(dim=-1)
        torch.testing.assert_close(gaps, torch.full_like(gaps, (t_max - t_min) / count), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("options", [{"process": {"kind": "uniform"}}, {"t_max": 1e-4}])
def test_other_noise_and_empty_intervals_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        root_of("block_diffusion", options)


# -- sampling -------------------------------------------------------------------------------------------------------------


def written(generation: Any, canvas_BL: Tensor, kind: str, **settings: Any) -> TextSample:
    with generation.evaluating():
        made: TextSample = generation.write(
            canvas_BL, canvas_BL == generation.shape.mask_id, latents_Bd=None,
            sampler=text_sampler(kind, **settings), generator=rows(len(canvas_BL)),
        )  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("kind", "settings"), [("ancestral", {"skip_idle": True}), ("confidence", {}), ("entropy", {})]
)
def test_the_cache_changes_no_text(kind: str, settings: dict[str, Any]) -> None:
    """Of texts of different lengths; without it every call reads the text from its beginning."""
    root = root_of("block_diffusion", {"_model": {"block_length": 3}})
    generation = root.objective.generative_model(root.model)
    canvas_BL = torch.where(random_batch(examples=12).valid_BL, SHAPE.mask_id, SHAPE.pad_id)
    cached = written(generation, canvas_BL, kind, **settings)
    generation.model = Uncached(root.model)
    plain = written(generation, canvas_BL, kind, **settings)
    assert torch.equal(plain.tokens, cached.tokens)
    torch.testing.assert_close(plain.log_probs, cached.log_probs, atol=1e-5, rtol=1e-4)


def test_a_cached_block_has_the_logits_of_training() -> None:
    root, batch = root_of("block_diffusion", {"_model": {"block_length": 3}}), random_batch()
    noisy_BL = torch.where(batch.valid_BL & (torch.arange(7) % 3 > 0), SHAPE.mask_id, batch.tokens_BL)
    expected = root.model(noisy_BL, valid_BL=batch.valid_BL, clean_BL=batch.tokens_BL).logits
    cache = root.model.start(batch.valid_BL.sum(dim=1))
    for at in (slice(3), slice(3, 6), slice(6, 7)):
        valid_Bl = batch.valid_BL[:, at]
        hidden, _ = root.model.read(noisy_BL[:, at], cache)
        found = root.model.logits(hidden, cache, at=valid_Bl)
        torch.testing.assert_close(found, expected[:, at][valid_Bl], atol=1e-5, rtol=1e-4)
        _, cache = root.model.read(batch.tokens_BL[:, at], cache)


@pytest.mark.parametrize("block_length", [1, 2])
def test_texts_follow_the_enumerated_distribution(block_length: int) -> None:
    """Written one token at a time in random order: the mean probability over the orders in each block."""
    root, count = tiny(block_length), 4000
    expected = []
    for text in TEXTS_SL.tolist():
        p = 1.0
        for start in range(0, 3, block_length):
            orders = [*itertools.permutations(range(start, min(start + block_length, 3)))]
            p *= sum(
                math.exp(-sum(
                    cost(root, [TINY.mask_id if each in order[number:] else text[each] for each in range(3)], text)[place]
                    for number, place in enumerate(order)
                )) for order in orders
            ) / len(orders)  # fmt: skip
        expected.append(p)
    canvas_BL = torch.full((count, 3), TINY.mask_id)
    made = written(root.objective.generative_model(root.model), canvas_BL, "random", steps=block_length)
    found = torch.tensor([(made.tokens == text).all(dim=1).double().mean() for text in TEXTS_SL])
    agrees(found, torch.tensor(expected).double(), count=count)
    assert made.model_calls == 3 + -(-3 // block_length) - 1, "one call for each token and one for each block to follow"
    canvas_BL[0, 1:] = TINY.pad_id
    made = written(root.objective.generative_model(root.model), canvas_BL[:2], "random", steps=block_length)
    assert int(made.calls_per_row[0]) == 1, "a text that has ended waits for the others"
