"""The autoregressive sampler: the enumerated distribution of a small model, and an effect of every key."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from tests.inference.runs import make

from mm_ldlm.core import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.autoregressive.model import CausalConfig, CausalTransformer
from mm_ldlm.families.autoregressive.objective import AutoregressiveSampler
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.denoising import Canvas

N, PAD, WORDS, END = 3, 0, (2, 3, 4), 5
SHAPE = DataShape(vocab_size=5, pad_id=PAD, mask_id=1, max_length=N)
DRAWS = 6000


@pytest.fixture(scope="module")
def model() -> CausalTransformer:
    made = CausalConfig(dim=16, depth=2, heads=2).build(SHAPE, generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=noise))
    return made.requires_grad_(False).eval()


def rows(count: int, *, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def draw(model: CausalTransformer, generator: RowGenerator, *, width: int = N, **keys):
    canvas = torch.full((len(generator), width), SHAPE.mask_id)
    return AutoregressiveSampler(**keys).sample(Canvas(denoise=model, tokens=canvas, process=None, generator=generator))


def texts(tokens_BN: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(x for x in row if x != PAD) for row in tokens_BN.tolist()]


def conditional(model: CausalTransformer, prefix: tuple[int, ...]) -> list[float]:
    """p(next symbol | prefix), from a full forward pass."""
    return model(torch.tensor([prefix], dtype=torch.long))[0, -1].double().softmax(-1).tolist()


def distribution(model: CausalTransformer, change=lambda probs: probs) -> dict[tuple[int, ...], float]:
    """Probability of every text that can be drawn; `change` filters each conditional distribution."""
    found = {}
    for length in range(1, N + 1):
        for text in itertools.product(WORDS, repeat=length):
            p = math.prod(change(conditional(model, text[:i]))[x] for i, x in enumerate(text))
            found[text] = p * (change(conditional(model, text))[END] if length < N else 1.0)
    return found


def compare(model: CausalTransformer, keys: dict[str, float], expected: dict[tuple[int, ...], float]) -> float:
    """The p-value of a chi-square test of the sampler's texts against a distribution."""
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    found = Counter(texts(draw(model, rows(DRAWS), **keys).tokens))
    assert all(expected.get(text, 0) > 0 for text in found)
    common = [text for text in expected if expected[text] * DRAWS >= 5]
    observed = [found[text] for text in common]
    wanted = [expected[text] * DRAWS for text in common]
    rest, rest_wanted = DRAWS - sum(observed), DRAWS - sum(wanted)
    if rest_wanted > 1e-6:
        observed, wanted = [*observed, rest], [*wanted, rest_wanted]
    return float(chisquare(observed, [x * DRAWS / sum(wanted) for x in wanted]).pvalue)


def tempered(temperature: float):
    def change(probs):
        raised = [p ** (1 / temperature) for p in probs]
        return [p / sum(raised) for p in raised]

    return change


def best(k: int):
    def change(probs):
        floor = sorted(probs, reverse=True)[k - 1]
        kept = [p if p >= floor else 0.0 for p in probs]
        return [p / sum(kept) for p in kept]

    return change


def nucleus(mass: float):
    def change(probs):
        kept, total = [0.0] * len(probs), 0.0
        for i in sorted(range(len(probs)), key=lambda i: -probs[i]):
            if total < mass:
                kept[i] = probs[i]
            total += probs[i]
        return [p / sum(kept) for p in kept]

    return change


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({}, lambda probs: probs),
        ({"temperature": 0.5}, tempered(0.5)),
        ({"top_k": 2}, best(2)),
        ({"top_p": 0.6}, nucleus(0.6)),
    ],
)
def test_texts_follow_the_enumerated_distribution(model, keys, change):
    assert compare(model, keys, distribution(model, change)) > 1e-3


def test_log_probabilities_steps_and_calls(model):
    sample = draw(model, rows(50), temperature=0.7)
    lengths = [len(text) for text in texts(sample.tokens)]
    assert set(lengths) == {1, 2, 3}
    for row, text in enumerate(texts(sample.tokens)):
        for i, token in enumerate(text):  # before temperature
            assert float(sample.log_probs[row, i]) == pytest.approx(
                math.log(conditional(model, text[:i])[token]), abs=1e-4
            )
        assert sample.steps[row].tolist() == [*range(len(text)), *[-1] * (N - len(text))]
        assert bool((sample.log_probs[row, len(text) :] == 0).all())
    assert sample.calls_per_row.tolist() == [min(length + 1, N) for length in lengths]
    assert sample.model_calls == N


def on(model, canvas: torch.Tensor):
    how = {"process": None, "generator": rows(len(canvas)), "open": canvas == SHAPE.mask_id}
    return AutoregressiveSampler().sample(Canvas(denoise=model, tokens=canvas, **how))


def test_a_beginning_is_continued_with_the_conditional_distribution(model):
    """Up to the pads of its canvas, where there are some."""
    begun, open_ = WORDS[1], SHAPE.mask_id
    sample = on(model, torch.tensor([[begun, open_, open_], [begun, open_, PAD]]).repeat(DRAWS, 1))
    everything = distribution(model)
    whole = sum(p for text, p in everything.items() if text[0] == begun)
    expected = {text: p / whole for text, p in everything.items() if text[0] == begun}
    found = Counter(texts(sample.tokens[::2]))
    assert found.keys() <= expected.keys()
    assert chisquare(*zip(*[(found[text], DRAWS * p) for text, p in expected.items()], strict=True)).pvalue > 1e-3
    assert {len(text) for text in texts(sample.tokens[1::2])} == {1, 2}
    assert bool((sample.steps[:, 0] == -1).all())
    assert bool((sample.log_probs[:, 0] == 0).all())


def test_a_gap_is_filled_at_the_end_of_a_text_only(refuses):
    run = make({"kind": "causal", "dim": 16, "depth": 2, "heads": 2}, {"kind": "autoregressive"})
    found = run.infill(["w1 w2 [MASK]", "w3 [MASK]"], temperature=1.0).texts
    assert [text.split()[:given] for text, given in zip(found, (2, 1), strict=True)] == [["w1", "w2"], ["w3"]]
    assert any(len(text.split()) > 3 for text in found)
    with refuses(SamplingError, "autoregressive", 2):
        run.infill("w1 [MASK] w2 w3")
