"""Each interval is that of its own statistic; costs of models without a start token; pictures beside their captions."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import bootstrap, compare, generative, likelihood, samples, sts
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation.sts_sets import from_pairs
from mm_ldlm.families.classification import metrics as classification
from mm_ldlm.families.images import suite as images

OPTIONS: dict[str, Any] = {"replicates": 60, "seed": 7, "level": 0.8}
COUNT = 24


def ends(statistic: Any, *, items: int = COUNT, seed: int = 7) -> tuple[float, float]:
    """Low and high of a statistic of the drawn rows, by an expression of its own."""
    (counts,) = bootstrap.count_blocks(items, replicates=60, seed=seed)
    drawn = [statistic(np.repeat(np.arange(items), row.astype(int))) for row in counts]
    return tuple(np.quantile(drawn, [0.1, 0.9]))  # type: ignore[return-value]


def test_every_interval_of_a_set_is_that_of_its_own_correlation() -> None:
    draw = np.random.default_rng(1)
    a, gold = draw.normal(size=(COUNT, 4)), draw.uniform(0, 5, COUNT)
    b = a + draw.normal(size=a.shape) * (6 - gold[:, None]) / 3
    labels = ["x", "y", "y"] * (COUNT // 3)
    pairs = from_pairs("mine", [(f"a{i}", f"b{i}", gold[i]) for i in range(COUNT)], subsets=labels)
    found = sts.score_vectors(pairs, a, b, **OPTIONS)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    for name, correlate in (("spearman", spearmanr), ("pearson", pearsonr)):
        interval = getattr(found, f"{name}_interval")
        expected = ends(lambda rows, by=correlate: 100 * by(cosine[rows], gold[rows]).statistic)
        assert (interval.low, interval.high) == pytest.approx(expected), name
        assert interval.value == pytest.approx(100 * correlate(cosine, gold).statistic)
    means = []
    for number, name in enumerate(("x", "y")):
        own = np.flatnonzero(np.array(labels) == name)
        (counts,) = bootstrap.count_blocks(len(own), replicates=60, seed=7 + number)
        rows = [np.repeat(own, row.astype(int)) for row in counts]
        means.append([100 * spearmanr(cosine[some], gold[some]).statistic for some in rows])
    expected = np.quantile(np.mean(means, axis=0), [0.1, 0.9])
    assert found.mean_interval is not None
    assert [found.mean_interval.low, found.mean_interval.high] == pytest.approx(expected.tolist())
    assert found.replicates_R == pytest.approx(100 * bootstrap.replicates_of(
        bootstrap.SpearmanOfCounts(cosine, gold), COUNT, replicates=60, seed=7
    ))  # fmt: skip


def test_a_ratio_divides_the_resamples_of_the_model_by_those_of_the_encoder() -> None:
    draw = np.random.default_rng(2)
    pairs = from_pairs("mine", [(f"a{i}", f"b{i}", float(i % 6)) for i in range(COUNT)])
    encoder, model = (
        sts.score_vectors(pairs, draw.normal(size=(COUNT, 3)) + np.arange(COUNT)[:, None] % 6, np.ones((COUNT, 3)) *
                          [[1, 2, k]], **OPTIONS)
        for k in (0, 5)
    )  # fmt: skip
    found = sts.ratio_to(encoder, model, level=0.8)
    quotient = model.replicates_R / encoder.replicates_R
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(quotient, [0.1, 0.9])))
    assert found.value == pytest.approx(model.spearman["cosine"] / encoder.spearman["cosine"])
    other = from_pairs("other", [(f"a{i}", f"b{i}", float(i % 6)) for i in range(COUNT)])
    with pytest.raises(EvaluationError, match="two scores of one STS set, found 'mine' and 'other'"):
        sts.ratio_to(encoder, sts.score_vectors(other, np.ones((COUNT, 3)) + draw.normal(size=(COUNT, 3)),
                                                np.ones((COUNT, 3)), **OPTIONS))  # fmt: skip


def test_every_interval_of_the_inversion_is_that_of_its_own_column() -> None:
    draw = np.random.default_rng(3)
    references = [tuple(draw.integers(0, 5, size=n).tolist()) for n in draw.integers(3, 8, COUNT)]
    outputs = [row if draw.random() < 0.4 else (*row[1:], int(draw.integers(0, 5))) for row in references]
    spell = [[" ".join(f"w{i}" for i in row) for row in some] for some in (references, outputs)]
    written = [text.upper() if i % 3 else text for i, text in enumerate(spell[0])]
    rows = inv.score_rows(*spell, reference_ids=references, hypothesis_ids=outputs, cosine=draw.uniform(size=COUNT),
                          written=written)  # fmt: skip
    found = inv.summarise(rows, **OPTIONS)
    matches, positions = rows["matches"].to_numpy(), rows["positions"].to_numpy()
    columns = {
        "exact_match": "exact", "token_set_f1": "set_f1", "rouge_l": "rouge_l", "cosine": "cosine",
        "exact_match_as_written": "as_written_exact", "token_set_f1_as_written": "as_written_set_f1",
    }  # fmt: skip
    statistics: dict[str, Any] = {
        name: lambda drawn, column=column: rows[column].to_numpy(float)[drawn].mean()
        for name, column in columns.items()
    }
    statistics |= {
        "token_accuracy": lambda drawn: matches[drawn].sum() / positions[drawn].sum(),
        "bleu": lambda drawn: inv.corpus_bleu(rows.iloc[drawn]),
        "bleu_as_written": lambda drawn: inv.corpus_bleu(rows.iloc[drawn], columns="as_written_"),
    }  # fmt: skip
    for name, statistic in statistics.items():
        assert (found[name].low, found[name].high) == pytest.approx(ends(statistic)), name
    assert (found["chrf"].low, found["chrf"].high) == (found["chrf"].value,) * 2
    assert {*found} == {*statistics, "chrf", "sentence_bleu"}


def test_every_interval_of_a_classifier_is_that_of_its_own_measure() -> None:
    draw = np.random.default_rng(4)
    true_n = draw.integers(0, 3, COUNT)
    probability = draw.dirichlet(np.ones(3), COUNT) + np.eye(3)[true_n] / 4
    probability /= probability.sum(1, keepdims=True)
    found = classification.measure(true_n, probability, names=["x", "y", "z"], bins=4, **OPTIONS)
    predicted, confidence = probability.argmax(1), probability.max(1)
    nll = -np.log(probability[np.arange(COUNT), true_n])

    def calibration(rows: Any) -> float:
        bins = np.clip(np.ceil(confidence[rows] * 4).astype(int) - 1, 0, 3)
        gaps = [abs((predicted[rows] == true_n[rows])[bins == b].sum() - confidence[rows][bins == b].sum())
                for b in range(4)]  # fmt: skip
        return float(sum(gaps) / len(rows))

    expected = {"accuracy": ends(lambda rows: (predicted[rows] == true_n[rows]).mean()), "ece": ends(calibration),
                "nll": ends(lambda rows: nll[rows].mean())}  # fmt: skip
    for name, both in expected.items():
        assert (found[name]["low"], found[name]["high"]) == pytest.approx(both), name
        assert found[name]["level"] == 0.8
    assert found["majority"] == np.bincount(true_n).max() / COUNT
    assert (found["examples"], found["classes"]) == (COUNT, ["x", "y", "z"])
    table = np.array(found["confusion"]["counts"])
    assert table[1, 2] == ((true_n == 1) & (predicted == 2)).sum(), "rows are true classes"


@pytest.mark.parametrize(("ours", "theirs"), [*itertools.product((None, 0.0, 1.0), repeat=2)])
def test_the_note_beside_a_difference_of_costs(ours: float | None, theirs: float | None) -> None:
    found = compare._likelihood_note(*({} if exact is None else {"nll.exact": exact} for exact in (ours, theirs)))
    expected = {
        (0.0, 1.0): "The cost of this run is an upper bound", (1.0, 0.0): "The cost of the other run is an upper bound",
        (0.0, 0.0): "Both costs are upper bounds (NELBO).",
    }  # fmt: skip
    assert found.startswith(expected.get((ours, theirs), "")) if (ours, theirs) in expected else found == ""  # type: ignore[arg-type]


# -- a causal model ----------------------------------------------------------------------------------------------------


class Bigrams:
    """p(next | token) of a table; asks for a mask of the padding and keeps the sizes of its batches."""

    config = SimpleNamespace(max_position_embeddings=None)
    table = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []

    def __call__(self, *, input_ids: Any, attention_mask: Any) -> Any:
        assert torch.equal(attention_mask.bool(), input_ids != 0), "padding is 0, and no word is"
        self.sizes.append(tuple(input_ids.shape))
        return SimpleNamespace(logits=self.table[input_ids])


def causal(start: int | None) -> Any:
    made: Any = generative.CausalModel.__new__(generative.CausalModel)
    made.model, made.name, made.device = Bigrams(), "toy", "cpu"

    class Tokenizer:
        bos_token_id = start

        def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
            assert not add_special_tokens
            return {"input_ids": [int(word) for word in text.split()]}

    made.tokenizer = Tokenizer()
    return made


@pytest.mark.parametrize("start", [None, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_the_first_token_is_scored_where_a_start_token_precedes_it(start: int | None, batch_size: int) -> None:
    texts = ["1 2 3 4", "3", "2 2", "4 1 3"]
    model = causal(start)
    nll, count = model.nll(texts, batch_size=batch_size)
    log_p = Bigrams.table.log_softmax(-1).double()
    for text, value, tokens in zip(texts, nll, count, strict=True):
        ids = [*([] if start is None else [start]), *map(int, text.split())]
        assert tokens == len(ids) - 1
        assert value == pytest.approx(-sum(float(log_p[a, b]) for a, b in itertools.pairwise(ids)), abs=1e-5)
    lengths = [size for _, size in model.model.sizes]
    assert lengths == sorted(lengths), "texts of similar length share a batch"
    assert sum(rows for rows, _ in model.model.sizes) == 4
    assert max(rows for rows, _ in model.model.sizes) == min(batch_size, 4)


def test_texts_without_a_scored_token_count_for_the_diversity_alone() -> None:
    texts = ["1 2", "3", "2 4"]
    found = generative.generative_score(texts, causal(None))
    nll, count = causal(None).nll(texts)
    assert count.tolist() == [1, 0, 1]
    assert found.nll_per_token == likelihood.per_token(nll[[0, 2]], count[[0, 2]])
    assert found.diversity.texts == 3
    rows = [[7, 7], [8], [9]]
    assert generative.generative_score(texts, causal(5), token_rows=rows).diversity == generative.diversity(rows)
    with pytest.raises(EvaluationError, match="None of the 2 generated texts has a token to score"):
        generative.generative_score(["1", "2"], causal(None))


def test_self_bleu_is_of_as_many_texts_as_are_asked_for_each_against_those() -> None:
    draw = np.random.default_rng(6)
    rows = [tuple(draw.integers(0, 3, 6).tolist()) for _ in range(12)]
    few = {seed: generative.self_bleu(rows, texts=4, seed=seed) for seed in range(6)}
    assert few[0] == generative.self_bleu(rows, texts=4, seed=0)
    assert len(set(few.values())) > 1, "the texts are drawn"
    picked = np.sort(np.random.default_rng([0, 0x5B]).choice(12, size=4, replace=False))
    assert few[0] == pytest.approx(generative.self_bleu([rows[i] for i in picked]))
    assert generative.self_bleu(rows, texts=12) == generative.self_bleu(rows, texts=99)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tokens_of_a_table_are_its_own_or_those_of_the_tokenizer() -> None:
    tokenizer = SimpleNamespace(encode=lambda texts: [tuple(map(int, text.split())) for text in texts])
    table = pd.DataFrame({"text": ["1 2", "3"], "tokens": [np.array([7, 8]), np.array([9])]})
    assert samples.token_rows(table, tokenizer) == [[7, 8], [9]]
    assert samples.token_rows(table.drop(columns="tokens"), tokenizer) == [[1, 2], [3]]


@pytest.mark.parametrize("size", [(2, 3, 1), (2, 3, 3)])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_each_picture_has_its_own_caption(size: tuple[int, ...], count: int) -> None:
    import base64
    import io

    from PIL import Image

    values = int(np.prod(size))
    vectors = np.linspace(0, 1, 3 * values, dtype=np.float32).reshape(3, values)
    found = images.pictures(vectors, ["a", "b", "c"], size, count=count)
    assert [picture["caption"] for picture in found] == ["a", "b", "c"][:count]
    for picture, vector in zip(found, vectors, strict=False):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["png"])))).reshape(size)
        np.testing.assert_array_equal(pixels, np.round(vector.reshape(size) * 255))
