"""Every number that a suite returns, against an expression of its own: all inputs differ, none is of unit norm."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.data.sentences import Sentences
from mm_ldlm.evaluation import bootstrap, generative
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation import retrieval as ret
from mm_ldlm.evaluation.config import (
    BootstrapConfig,
    GenerationConfig,
    InversionConfig,
    LatentsConfig,
    LikelihoodConfig,
    StsConfig,
    SweepPoint,
    TextFile,
)
from mm_ldlm.evaluation.overlap import attested_bigrams
from mm_ldlm.evaluation.sts_sets import StsSet, StsSource
from mm_ldlm.evaluation.suites import generation, inversion, latents, likelihood, sts
from mm_ldlm.inference.results import Scores
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.sampling.config import SearchConfig
from mm_ldlm.sampling.registry import text_sampler

OPTIONS = {"replicates": 40, "seed": 7, "level": 0.8}
BOOTSTRAP = BootstrapConfig(replicates=40, level=0.8)
RNG = np.random.default_rng(3)
DIM = 3


class Words:
    """A tokenizer whose word w5 has the id 5; 99 is the unknown word."""

    unk_id = 99

    def encode(self, texts: Any) -> list[list[int]]:
        return [[int(word[1:]) if word.startswith("w") else self.unk_id for word in text.split()] for text in texts]

    def decode_batch(self, rows: Any) -> list[str]:
        return [" ".join(f"w{i}" for i in row) for row in rows]


def some(tokens: list[tuple[int, ...]], latents_nd: Any, *, texts: list[str] | None = None) -> Sentences:
    texts = texts or Words().decode_batch(tokens)
    ids = tuple(f"id{place}" for place in range(len(tokens)))
    return Sentences(ids=ids, texts=tuple(texts), tokens=tuple(tokens), latents_nd=np.asarray(latents_nd))


def vectors(count: int, *, scale: float = 3.0) -> Any:
    return RNG.standard_normal((count, DIM)) * scale + np.arange(DIM)


# -- latents ---------------------------------------------------------------------------------------------------------


class Embedder:
    """A model that embeds texts as given vectors and records how it was asked."""

    def __init__(self, one_step_nd: Any, draws_KNd: Any) -> None:
        self.one_step_nd, self.draws_KNd, self.asked = one_step_nd, draws_KNd, []  # type: ignore[var-annotated]

    def embed(self, texts: list[str], **how: Any) -> Any:
        self.asked.append((texts, how))
        return SimpleNamespace(latents=self.one_step_nd, draws=self.draws_KNd)


def test_the_latents_suite() -> None:
    real, generated, one_step, free = vectors(12), vectors(12), vectors(12), vectors(5)
    distractors, draws = vectors(20), RNG.standard_normal((4, 6, DIM)) * 2
    sentences = some([(place,) for place in range(12)], real)
    model = Embedder(one_step, draws)
    config = LatentsConfig(neighbourhood_sentences=9, calibration_sentences=6, calibration_samples=4)
    found = latents.evaluate(
        model, sentences, generated, distractors_md=distractors, unconditional_nd=free, sampler="sampler",
        config=config, bootstrap=BOOTSTRAP, seed=7,
    )  # fmt: skip
    part = sentences.some(6, seed=7)
    assert model.asked == [
        (list(sentences.texts), {"sampler": "one_step", "seed": 7}),
        (list(part.texts), {"sampler": "sampler", "draws": 4, "seed": 7}),
    ]
    assert (found["sentences"], set(found["samplers"])) == (12, {"model", "one_step"})
    for name, made in (("model", generated), ("one_step", one_step)):
        entry = found["samplers"][name]
        cosine = np.array([a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in zip(made, real, strict=True)])
        assert entry["cosine"] == pytest.approx(bootstrap.mean_interval(cosine, **OPTIONS).as_dict())
        quantiles = {f"{q:g}": np.quantile(cosine, q) for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95)}
        assert entry["cosine_quantiles"] == pytest.approx(quantiles)
        assert entry["cosines"] == [round(value, 4) for value in cosine]
        error = ((made - real) ** 2).mean(1) / real.var(0).mean()
        expected = bootstrap.mean_interval(error, **OPTIONS).as_dict()
        assert entry["squared_error_fraction"] == pytest.approx(expected)
        similar = 1 - cdist(made, np.concatenate([real, distractors]), "cosine")
        rank = 1 + (similar > similar[np.arange(12), np.arange(12)][:, None] + 1e-12).sum(1)
        assert entry["retrieval"]["candidates"] == 32
        for k in (1, 5, 10):
            expected = bootstrap.proportion_interval((rank <= k).astype(float), **OPTIONS).as_dict()
            assert entry["retrieval"][f"at_{k}"] == pytest.approx(expected)
        expected = bootstrap.mean_interval(1 / rank, **OPTIONS).as_dict()
        assert entry["retrieval"]["mean_reciprocal_rank"] == pytest.approx(expected)
        near = ret.neighbourhoods(made, real, limit=9)
        assert entry["neighbourhoods"]["overlap"] == {str(k): value for k, value in near.overlap_at.items()}
        assert len(near.rank_correlation_N) == 9
        expected = bootstrap.mean_interval(near.rank_correlation_N, **OPTIONS).as_dict()
        assert entry["neighbourhoods"]["rank_correlation"] == pytest.approx(expected)
        assert entry["frechet"] == pytest.approx(ret.frechet_distance(made, real))
    assert len({found["samplers"][name]["frechet"] for name in ("model", "one_step")}) == 2
    for name, vectors_nd in (("real", real), ("model", generated), ("one_step", one_step), ("unconditional", free)):
        entry = found["spectrum"][name]
        values = np.sort(np.linalg.eigvalsh(np.cov(vectors_nd.T)))[::-1]
        fraction = values / values.sum()
        assert entry["rows"] == len(vectors_nd)
        np.testing.assert_allclose(entry["eigenvalues"], values, rtol=1e-3)
        assert entry["effective_rank"] == pytest.approx(math.exp(-(fraction * np.log(fraction)).sum()))
    assert found["unconditional_frechet"] == pytest.approx(ret.frechet_distance(free, real))
    expected = ret.calibration(draws, part.latents)
    assert found["calibration"] == {
        "sentences": 6, "samples": 4, "cosine_single": expected.cosine_single, "cosine_mean": expected.cosine_mean,
        "spread_to_error": expected.spread_to_error, "rank_fraction": expected.rank_fraction.tolist(),
    }  # fmt: skip
    config = LatentsConfig(calibration_sentences=0)
    less = latents.evaluate(
        Embedder(one_step[:2], None), some([(1,), (2,)], real[:2]), generated[:2], distractors_md=distractors,
        unconditional_nd=None, sampler="sampler", config=config, bootstrap=BOOTSTRAP, seed=7,
    )  # fmt: skip
    assert not {"calibration", "unconditional_frechet", "real_frechet"} & less.keys()
    assert less["samplers"]["model"]["neighbourhoods"] is None, "two texts have no neighbourhoods"


def test_real_latents_are_compared_in_the_number_of_the_generated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(ret, "frechet_distance", lambda a, b: seen.append((len(a), len(b))) or 1.0)
    latents.evaluate(
        Embedder(vectors(12), None), some([(i,) for i in range(12)], vectors(12)), vectors(12),
        distractors_md=vectors(20), unconditional_nd=vectors(5), sampler=None,
        config=LatentsConfig(calibration_sentences=0), bootstrap=BOOTSTRAP, seed=7,
    )  # fmt: skip
    assert seen == [(12, 12), (12, 12), (5, 12), (5, 12)]


def test_calibration_by_hand() -> None:
    samples = np.array([[[1.0, 5.0]], [[3.0, 1.0]]])  # two samples of one text
    found = ret.calibration(samples, np.array([[4.0, 2.0]]))
    assert found.samples == 2
    single = [(1 * 4 + 5 * 2) / math.sqrt(26 * 20), (3 * 4 + 1 * 2) / math.sqrt(10 * 20)]
    assert found.cosine_single == pytest.approx(np.mean(single))
    assert found.cosine_mean == pytest.approx((2 * 4 + 3 * 2) / math.sqrt(13 * 20))
    spread, error = math.sqrt((2 + 8) / 2 * 1.5), math.sqrt((4 + 1) / 2)
    assert found.spread_to_error == pytest.approx(spread / error)
    assert found.rank_fraction.tolist() == [0, 0.5, 0.5], "below 4 lie both samples, below 2 one"


def test_neighbourhoods_by_hand() -> None:
    a, b = vectors(8), vectors(8)
    found = ret.neighbourhoods(a, b, ks=(1, 3, 8))
    cosines = [1 - cdist(x, x, "cosine") for x in (a, b)]
    expected, shared = [], {1: [], 3: []}  # type: ignore[var-annotated]
    for row in range(8):
        others = [place for place in range(8) if place != row]
        one, two = (side[row, others] for side in cosines)
        expected.append(spearmanr(one, two).statistic)
        for k, held in shared.items():
            held.append(len(set(np.argsort(-one)[:k]) & set(np.argsort(-two)[:k])) / k)
    np.testing.assert_allclose(found.rank_correlation_N, expected)
    assert found.overlap_at == {k: pytest.approx(np.mean(held)) for k, held in shared.items()}, "8 of 7 are no number"


# -- inversion -------------------------------------------------------------------------------------------------------

REFERENCES = [(1, 2, 3), (4, 5), (6, 7, 8, 9), (1, 3)]
OUTPUTS = [(1, 2, 3), (4, 6, 5), (6, 7, 9), (3, 1)]


def test_every_column_of_the_scored_rows() -> None:
    spell = Words().decode_batch
    written = ["w1 w2 w3", "W4 w5", "w6 w7 w9", "w1 w3"]
    rows = inv.score_rows(
        spell(REFERENCES), spell(OUTPUTS), reference_ids=REFERENCES, hypothesis_ids=OUTPUTS,
        cosine=np.array([0.9, 0.7, 0.5, 0.2]), ids=["a", "b", "c", "d"], written=written,
    )  # fmt: skip
    assert rows["id"].tolist() == ["a", "b", "c", "d"]
    assert (rows["reference"].tolist(), rows["hypothesis"].tolist()) == (spell(REFERENCES), spell(OUTPUTS))
    assert rows["exact"].tolist() == [True, False, False, False]
    assert rows["matches"].tolist() == [3, 1, 2, 0]
    assert rows["positions"].tolist() == [3, 3, 4, 2]
    assert rows["length"].tolist() == [3, 2, 4, 2]
    assert rows["set_f1"].tolist() == pytest.approx([1, 4 / 5, 6 / 7, 1])
    assert rows["rouge_l"].tolist() == pytest.approx([1, 4 / 5, 6 / 7, 1 / 2]), "the order counts"
    assert rows["bleu_sys"].tolist() == [3, 3, 3, 2]
    assert rows["bleu_ref"].tolist() == [3, 2, 4, 2]
    assert rows[["bleu_c1", "bleu_c2", "bleu_c3", "bleu_c4"]].to_numpy().tolist() == [
        [3, 2, 1, 0], [2, 0, 0, 0], [3, 1, 0, 0], [2, 0, 0, 0]
    ]  # fmt: skip
    assert rows[["bleu_t1", "bleu_t2", "bleu_t3", "bleu_t4"]].to_numpy().tolist() == [
        [3, 2, 1, 0], [3, 2, 1, 0], [3, 2, 1, 0], [2, 1, 0, 0]
    ]  # fmt: skip
    assert rows["as_written_exact"].tolist() == [True, False, True, False]
    assert rows["as_written_bleu_ref"].tolist() == [3, 2, 3, 2]
    assert rows["cosine"].tolist() == [0.9, 0.7, 0.5, 0.2]
    found = inv.summarise(rows, replicates=40, seed=7, level=0.8)
    values = {
        "exact_match": 1 / 4, "token_accuracy": 6 / 12, "token_set_f1": np.mean([1, 4 / 5, 6 / 7, 1]),
        "rouge_l": np.mean([1, 4 / 5, 6 / 7, 1 / 2]), "cosine": 2.3 / 4, "bleu": inv.corpus_bleu(rows),
        "sentence_bleu": np.mean([inv.corpus_bleu(rows[i : i + 1]) for i in range(4)]),
        "chrf": inv.chrf(spell(REFERENCES), spell(OUTPUTS)), "exact_match_as_written": 1 / 2,
        "token_set_f1_as_written": rows["as_written_set_f1"].mean(),
        "bleu_as_written": inv.corpus_bleu(rows, columns="as_written_"),
    }  # fmt: skip
    assert {name: entry.value for name, entry in found.items()} == pytest.approx(values)
    assert {entry.level for entry in found.values()} == {0.8}


def test_every_number_by_length() -> None:
    spell = Words().decode_batch
    lengths = [1, 2, 2, 3, 5, 5, 7]
    references = [tuple(range(10 * i, 10 * i + length)) for i, length in enumerate(lengths)]
    outputs = [row if i in (0, 2, 3) else (*row[:-1], 9) for i, row in enumerate(references)]
    rows = inv.score_rows(
        spell(references), spell(outputs), reference_ids=references, hypothesis_ids=outputs,
        cosine=np.linspace(0.1, 0.7, 7),
    )  # fmt: skip
    table = inv.by_length(rows, edges=[2, 3, 4], **OPTIONS)
    assert table["tokens"].tolist() == ["1–2", "3", "5–7"], "no text has 4 tokens"
    for line, places in zip(table.to_dict(orient="records"), ([0, 1, 2], [3], [4, 5, 6]), strict=True):
        part = rows.iloc[places]
        assert line["rows"] == len(part)
        assert line["exact_match"] == pytest.approx(part["exact"].mean())
        assert line["token_accuracy"] == pytest.approx(part["matches"].sum() / part["positions"].sum())
        assert line["token_set_f1"] == pytest.approx(part["set_f1"].mean())
        assert line["bleu"] == pytest.approx(inv.corpus_bleu(part))
        assert line["chrf"] == pytest.approx(inv.chrf(part["reference"].tolist(), part["hypothesis"].tolist()))
        assert line["rouge_l"] == pytest.approx(part["rouge_l"].mean())
        assert line["cosine"] == pytest.approx(part["cosine"].mean())
        exact = bootstrap.proportion_interval(part["exact"].to_numpy(float), **OPTIONS)
        assert (line["low"], line["high"]) == pytest.approx((exact.low, exact.high))


class Inverter:
    """A model that writes given texts for each sampler, and whose encoder has a vector for each word."""

    tokenizer = Words()
    capabilities = SimpleNamespace(refusal=lambda use: None)

    def __init__(self, outputs: dict[int, list[tuple[int, ...]]], *, no_encoder: str | None = None) -> None:
        self.outputs, self.no_encoder = outputs, no_encoder
        self.asked: list[Any] = []
        self.encoded: list[str] = []

    def invert(self, latents_nd: Any, **how: Any) -> Any:
        self.asked.append((latents_nd, how))
        steps = how["sampler"].steps
        tokens = self.outputs[steps]
        count = len(tokens)
        return SimpleNamespace(
            tokens=tokens, texts=Words().decode_batch(tokens), model_calls=np.arange(count) + steps,
            encoder_calls=np.arange(count) + 10 * steps,
        )  # fmt: skip

    def encode(self, texts: Any) -> Any:
        self.encoded += texts
        return np.array([[1.0 + len(text), 2.0, float(text[-1])] for text in texts])


def test_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 20.0, 28.0])
    monkeypatch.setattr(inversion.time, "perf_counter", lambda: next(clock))
    count = 20
    references = [(1 + i % 3, 2, i % 7) for i in range(count)]
    half = [row if i % 2 else (8, 8) for i, row in enumerate(references)]
    most = [row if i % 5 else (8, 8) for i, row in enumerate(references)]
    sentences = some(references, vectors(count))
    points = tuple(
        SweepPoint(label=label, sampler=text_sampler("confidence", steps=steps), length=length, search=search)
        for label, steps, length, search in (
            ("half", 2, 5, None), ("most", 3, "argmax", SearchConfig(candidates=2)),
        )
    )  # fmt: skip
    model = Inverter({2: half, 3: most})
    config = InversionConfig(sweep=points, reference="half")
    lines = inversion.sweep(model, sentences, config=config, bootstrap=BOOTSTRAP, seed=7, progress=False)
    assert sorted(model.encoded) == sorted(set(Words().decode_batch([*half, *most]))), "each distinct text once"
    for (given, how), point in zip(model.asked, points, strict=True):
        assert given is sentences.latents
        assert how == {"sampler": point.sampler, "length": point.length, "search": point.search, "seed": 7}
    for line, outputs, seconds, steps in zip(lines, (half, most), (2.0, 8.0), (2, 3), strict=True):
        assert (line["model_calls"], line["encoder_calls"]) == (9.5 + steps, 9.5 + 10 * steps)
        assert (line["seconds"], line["sentences_per_second"]) == (seconds, count / seconds)
        assert line["sampler"]["steps"] == steps
        rows = inv.score_rows(
            Words().decode_batch(references), Words().decode_batch(outputs), reference_ids=references,
            hypothesis_ids=outputs,
            cosine=inversion.reembedding_cosine(model, Words().decode_batch(outputs), sentences.latents),
        )  # fmt: skip
        for name, entry in inv.summarise(rows, **OPTIONS).items():
            assert line[name] == pytest.approx(entry.as_dict()), name
        assert line["reference"] == "half"
    assert lines[0]["exact_ratio"]["value"] == 1
    assert lines[1]["exact_ratio"]["value"] == pytest.approx(16 / 10), "ours, divided by the reference"
    assert lines[1]["exact_ratio"]["level"] == 0.8
    clock = iter([0.0, 1.0])
    alone = Inverter({2: half, 3: most}, no_encoder="gone")
    config = InversionConfig(sweep=points, reference="most")
    (line,) = inversion.sweep(alone, sentences, config=config, bootstrap=BOOTSTRAP, seed=7, progress=False)
    assert (line["label"], line["reference"]) == ("half", "half"), "without an encoder no search, and another reference"
    assert "cosine" not in line


@pytest.mark.parametrize(("exact", "given"), [(7, False), (8, True)])
def test_the_ratio_needs_eight_exact_matches_of_the_reference(exact: int, given: bool) -> None:
    rows, reference = pd.DataFrame({"exact": [True] * 20}), pd.DataFrame({"exact": [i < exact for i in range(20)]})
    found = inversion.exact_ratio(rows, reference, bootstrap=BOOTSTRAP, seed=7)
    assert (found is not None) == given
    assert found is None or found.value == 2.5


def test_the_baselines() -> None:
    train = some([(1, 2), (3, 4), (5,)], [[5.0, 0, 0], [0, 0.1, 0], [0, 0, 2.0]])
    held = some([(3, 4), (5,), (1, 2), (5, 1)], [[0, 9.0, 1], [0.1, 0, 0.2], [1.0, 0.2, 0.1], [0.3, 0, 1]])
    found = inversion.baselines(Inverter({}), held, train, bootstrap=BOOTSTRAP, seed=7)
    nearest = [(3, 4), (5,), (1, 2), (5,)]
    from mm_ldlm.evaluation.baselines import BagOfWords

    bag = BagOfWords.fit(train.latents, train.tokens).predict(held.latents)
    for name, outputs in (("nearest_training_sentence", nearest), ("bag_of_words", bag)):
        texts = Words().decode_batch(outputs)
        cosine = inversion.reembedding_cosine(Inverter({}), texts, held.latents)
        rows = inv.score_rows(
            list(held.texts), texts, reference_ids=held.tokens, hypothesis_ids=outputs, cosine=cosine, ids=held.ids
        )
        expected = {key: entry.as_dict() for key, entry in inv.summarise(rows, **OPTIONS).items()}
        assert found[name] == {"training_sentences": 3, "metrics": expected}
    assert found["nearest_training_sentence"]["metrics"]["exact_match"]["value"] == 0.75


def test_memorised_outputs_and_wrong_outputs() -> None:
    outputs, references = ["A a", "b", "c", "d"], ["a  A", "x", "c", "y"]
    found = inversion.memorisation(outputs, references, ["a a", "b", "x", "z"])
    assert found == {"outputs": 2 / 4, "wrong_outputs": 1 / 2, "wrong": 2, "references": 2 / 4}
    found = inversion.memorisation(["a", "b", "c"], ["a", "B", "q"], ["q", "a"])
    assert found == {"outputs": 1 / 3, "wrong_outputs": 0.0, "wrong": 1, "references": 2 / 3}
    assert inversion.memorisation(["a"], ["a"], [])["wrong_outputs"] == 0.0


@pytest.mark.parametrize("given", ["all", "one is missing", "none"])
def test_scored_samples_keep_the_cosines_that_sampling_measured(given: str) -> None:
    sentences = some(REFERENCES, vectors(4), texts=["w1 w2 w3", "W4 w5", "w6 w7 w8 w9", "w1 w3"])
    columns: dict[str, Any] = {"text": Words().decode_batch(OUTPUTS), "tokens": OUTPUTS}
    cosines = [0.9, 0.8, 0.7, 0.6]
    if given != "none":
        columns["cosine"] = cosines if given == "all" else [*cosines[:3], None]
    model = Inverter({})
    rows = inversion.score(model, sentences, pd.DataFrame(columns))
    again = inversion.reembedding_cosine(model, columns["text"], sentences.latents)
    assert rows["cosine"].tolist() == pytest.approx(cosines if given == "all" else again)
    assert rows["id"].tolist() == list(sentences.ids)
    assert rows["exact"].tolist() == [True, False, False, False]
    assert rows["as_written_exact"].tolist() == [True, False, False, False]
    assert rows["reference"].tolist()[1] == "w4 w5", "decoded"
    found = inversion.headline(rows, config=InversionConfig(length_edges=(2, 3)), bootstrap=BOOTSTRAP, seed=7)
    assert found["sentences"] == 4
    assert found["by_length"] == inv.by_length(rows, edges=(2, 3), **OPTIONS).to_dict(orient="records")
    assert [line["tokens"] for line in found["by_length"]] == ["1–2", "3", "4"]
    summary = inv.summarise(rows, **OPTIONS)
    assert found["metrics"] == {name: entry.as_dict() for name, entry in summary.items()}


# -- generation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [None, "gpt"])
def test_the_generation_suite(causal: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Causal:
        def __init__(self, name: str, **how: Any) -> None:
            asked.append((name, how))

        def nll(self, texts: Any, *, batch_size: int) -> Any:
            asked.append((list(texts), batch_size))
            sizes = np.array([len(text.split()) for text in texts], float)
            return sizes * np.log(sizes + 1), sizes

    monkeypatch.setattr(generative, "CausalModel", Causal)
    monkeypatch.setattr(generative, "mauve", lambda made, real, **how: asked.append((made, real, how)) or 0.625)
    texts, tokens = ["a b", "a b c", " ", "d"], [(1, 2), (1, 2, 3), (), (4,)]
    real, real_tokens = ["b c d", "e f", "e f"], [(2, 3, 4), (5, 6), (5, 6)]
    training = ["A  b c", "e f g"]
    config = GenerationConfig(
        causal_model=causal, revision="r", batch_size=3, self_bleu_texts=2, mauve=causal is not None
    )
    found = generation.evaluate(
        texts, tokens, real_texts=real, real_tokens=real_tokens, training_texts=lambda: iter(training), config=config,
        bootstrap=BOOTSTRAP, device="cuda:1", seed=7,
    )  # fmt: skip
    kept, kept_tokens = ["a b", "a b c", "d"], [(1, 2), (1, 2, 3), (4,)]
    assert (found["texts"], found["empty"], found["memorised"]) == (4, 0.25, pytest.approx(1 / 3))
    for name, some_texts, rows in (("generated", kept, kept_tokens), ("real", real, real_tokens)):
        entry, expected = found[name], generative.diversity(rows, self_bleu_texts=2, seed=7)
        attested = attested_bigrams(some_texts, training)
        interval = bootstrap.proportion_interval(attested, **OPTIONS)
        assert entry["attested_bigrams"] == pytest.approx(interval.as_dict())
        assert {key: entry[key] for key in ("entropy_sample", "entropy_corpus", "self_bleu", "unique")} == {
            key: getattr(expected, key) for key in ("entropy_sample", "entropy_corpus", "self_bleu", "unique")
        }
        assert entry["distinct"] == {str(n): expected.distinct[n] for n in (1, 2, 3, 4)}
        if causal is not None:
            sizes = np.array([len(text.split()) for text in some_texts], float)
            rate = (sizes * np.log(sizes + 1)).sum() / sizes.sum()
            assert entry["nll_per_token"]["value"] == pytest.approx(rate)
            assert entry["perplexity"] == pytest.approx(math.exp(rate))
            assert entry["causal_model"] == "gpt"
    if causal is None:
        assert asked == []
        assert "mauve" not in found
    else:
        assert asked == [
            ("gpt", {"revision": "r", "device": "cuda:1"}), (kept, 3), (real, 3),
            (kept, real, {"featurizer": "gpt2-large", "seed": 7}),
        ]  # fmt: skip
        assert found["mauve"] == 0.625


def test_distinct_n_grams_and_edges() -> None:
    assert generative.distinct_n([(1, 2, 1, 2)], 2) == 2 / 3
    assert generative.distinct_n([(1, 2), (1, 2)], 2) == 1 / 2
    assert generative.distinct_n([(1,)], 2) == 0.0
    assert generative.distinct_n([(1, 2)], 2) == 1.0


@pytest.mark.parametrize(("texts", "able"), [(["a", " "], False), (["a", "b"], True), (["a", "b", ""], True)])
def test_two_texts_are_enough(texts: list[str], able: bool) -> None:
    model = SimpleNamespace(capabilities=SimpleNamespace(refusal=lambda use: None))
    assert (generation.skip_reason(model, texts) is None) == able


# -- likelihood ------------------------------------------------------------------------------------------------------


def scores(texts: Any, tokens: Any, *, shift: float) -> Scores:
    count = len(texts)
    token_nll = np.linspace(1.0, 4.0, count) + shift
    return Scores(
        texts=tuple(texts), tokens=np.array([len(row) for row in tokens]), likelihood="bound",
        length_nll=np.linspace(0.5, 0.25, count), token_nll=token_nll, standard_errors=np.zeros(count),
        draw_nll=np.stack([token_nll * 0.5, token_nll * 1.5]),
        draw_mask_ratio=np.stack([np.full(count, 0.25), np.linspace(0.3, 1.0, count)]),
        draw_masked=np.arange(1.0, 2 * count + 1).reshape(2, count), draw_correct=np.ones((2, count)),
        draw_cross_entropy=np.arange(2.0, 2 * count + 2).reshape(2, count),
    )  # fmt: skip


class Scorer:
    """A model whose costs with and without the latent differ, and which records how it was asked."""

    tokenizer, max_length = Words(), 4
    capabilities = Capabilities(uses=frozenset({"score", "score_given_latent"}), reads_latents=True, trained_as="toy")

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def score_tokens(self, ids: Any, texts: Any, *, latents: Any, draws: int, seed: int) -> Scores:
        self.asked.append((list(ids), list(texts), latents, draws, seed))
        return scores(texts, ids, shift=3.0 if latents is None else 0.0)

    def encode(self, texts: Any) -> Any:
        return [f"vector of {text}" for text in texts]


def test_the_likelihood_suite(tmp_path: Path) -> None:
    lines = ["w1 w2", "", "w1 w2 w3 w4 w5", "w3 news", "w4", "w5 w6", "w1 w2 w3 w4"]
    (tmp_path / "other.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    other = TextFile(name="other", path=str(tmp_path / "other.txt.gz"), limit=3)
    sentences = some(REFERENCES, vectors(4))
    model = Scorer()
    config = LikelihoodConfig(draws=5, buckets=4, other_texts=(other,))
    rows, found = likelihood.evaluate(model, sentences, config=config, seed=7)
    kept = ["w1 w2", "w3 news", "w4"]
    ids = Words().encode(kept)
    assert model.asked[0] == (REFERENCES, list(sentences.texts), None, 5, 7)
    assert model.asked[1][2] is sentences.latents
    assert model.asked[2:] == [(ids, kept, None, 5, 7), (ids, kept, model.encode(kept), 5, 7)]
    assert (found["likelihood"], found["sentences"], found["draws"], found["left_out"]) == ("bound", 4, 5, [])
    lengths = np.array([3, 2, 4, 2])
    length_nll = np.linspace(0.5, 0.25, 4)
    for name, column, shift in (("unconditional", "nll", 3.0), ("given_latent", "nll_given_latent", 0.0)):
        token_nll = np.linspace(1.0, 4.0, 4) + shift
        nll = token_nll + length_nll
        np.testing.assert_allclose(rows[column], nll)
        part = found[name]
        assert part["per_token"]["value"] == pytest.approx(nll.sum() / lengths.sum())
        assert part["tokens_only_per_token"]["value"] == pytest.approx(token_nll.sum() / lengths.sum())
        assert part["length_per_sentence"]["value"] == pytest.approx(length_nll.mean())
        for end in ("value", "low", "high"):
            assert part["perplexity"][end] == pytest.approx(math.exp(part["per_token"][end]))
        table = part["by_mask_ratio"]
        assert [(line["low"], line["high"]) for line in table] == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]
        ratios = np.concatenate([np.full(4, 0.25), np.linspace(0.3, 1.0, 4)])
        masked, crossed = np.arange(1.0, 9.0), np.arange(2.0, 10.0)
        drawn = np.concatenate([token_nll * 0.5, token_nll * 1.5])
        for line in table:
            here = (ratios > line["low"]) & (ratios <= line["high"])
            assert line["draws"] == here.sum(), "a bucket includes its upper end"
            if here.any():
                assert line["masked_tokens"] == masked[here].sum()
                assert line["cross_entropy"] == pytest.approx(crossed[here].sum() / masked[here].sum())
                assert line["accuracy"] == pytest.approx(here.sum() / masked[here].sum())
            assert line["nats_per_token"] == pytest.approx(drawn[here].sum() / (2 * lengths.sum()))
    bits = 3.0 * 4 / math.log(2)
    assert found["latent_bits"]["per_token"]["value"] == pytest.approx(bits / lengths.sum())
    assert found["latent_bits"]["per_sentence"]["value"] == pytest.approx(bits / 4)
    zero = found["zero_shot"]["other"]
    assert (zero["sentences"], zero["outside_length"]) == (3, 1)
    assert zero["unknown_fraction"] == pytest.approx(1 / 5)
    assert zero["unconditional"]["per_token"]["value"] > zero["given_latent"]["per_token"]["value"]
    assert rows["tokens"].tolist() == lengths.tolist()


def test_other_texts_of_another_encoding_or_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_bytes("é".encode("latin-1"))
    with pytest.raises(EvaluationError, match=r"expected UTF-8 .* at byte 0"):
        likelihood.read_lines(TextFile(name="x", path=str(path)))
    path.write_text("w1 w2 w3 w4 w5\n")
    config = LikelihoodConfig(other_texts=(TextFile(name="x", path=str(path)),))
    with pytest.raises(EvaluationError, match=r"Expected lines of 1 to 4 tokens .* found none among 1 lines"):
        likelihood.evaluate(Scorer(), some(REFERENCES, vectors(4)), config=config, seed=7)


# -- STS -------------------------------------------------------------------------------------------------------------


class Similar:
    """Three different embeddings of words: by the encoder, by the sampler and by one step."""

    tokenizer, max_length, no_encoder = Words(), 2, None
    capabilities = SimpleNamespace(refusal=lambda use: None, reads_latents=True)
    table = np.random.default_rng(0).standard_normal((3, 30, DIM)) * 5 + 1

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def _of(self, kind: int, texts: Any) -> Any:
        return np.array([sum(self.table[kind, int(word[1:])] for word in text.split()) for text in texts])

    def encode(self, texts: Any) -> Any:
        return self._of(0, texts)

    def embed_tokens(self, ids: Any, texts: Any, *, sampler: Any, seed: int) -> Any:
        assert ids == [row[:2] for row in self.tokenizer.encode(texts)], "truncated to what the model reads"
        self.asked.append((sampler, seed))
        return SimpleNamespace(latents=self._of(2 if sampler == "one_step" else 1, texts))


def test_the_sts_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tuple(f"w{i}" for i in range(12)), tuple(f"w{29 - i} w{i}" for i in range(12))
    gold = np.array([0.12344, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5.0])
    pairs = StsSet("mine", first, (*second[:11], "w1 w2 w3"), gold, ("x",) * 6 + ("y",) * 6)
    monkeypatch.setattr(sts, "load_sts", lambda source, *, seed: pairs)
    model, config = Similar(), StsConfig(sets=(StsSource(format="stsb", name="mine", path="p"),))
    entry = sts.evaluate(model, config=config, bootstrap=BOOTSTRAP, seed=7, progress=False)["sets"]["mine"]
    assert set(model.asked) == {(config.sampler, 7), ("one_step", 7)}
    assert (entry["pairs"], entry["too_long"], entry["unknown"]) == (12, 1, 0.0)
    assert sorted(set(entry["subsets"])) == ["x", "y"]
    spearman = {}
    for name, kind in (("encoder", 0), ("model", 1), ("one_step", 2)):
        a, b = model._of(kind, pairs.first), model._of(kind, pairs.second)
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        spearman[name] = 100 * spearmanr(cosine, gold).statistic
        score = entry["scores"][name]
        assert score["spearman"]["value"] == pytest.approx(spearman[name])
        assert score["spearman"]["level"] == 0.8
        assert score["pearson"]["value"] == pytest.approx(100 * np.corrcoef(cosine, gold)[0, 1])
        by_subset = {key: 100 * spearmanr(cosine[part], gold[part]).statistic
                     for key, part in (("x", slice(0, 6)), ("y", slice(6, 12)))}  # fmt: skip
        assert score["subset_spearman"] == pytest.approx(by_subset)
        assert score["mean_spearman"] == pytest.approx(np.mean(list(by_subset.values())))
        assert entry["scatter"][name] == pytest.approx(cosine.tolist(), abs=1e-4)
    assert entry["scatter"]["gold"] == [0.1234, *gold[1:]]
    assert "ratio" not in entry["scores"]["encoder"]
    for name in ("model", "one_step"):
        assert entry["scores"][name]["ratio"]["value"] == pytest.approx(spearman[name] / spearman["encoder"])


def test_the_scatter_shows_pairs_of_the_whole_set() -> None:
    """Scores are numbers of the pair, so that every point shows which pair it is."""
    count = 3000
    texts = tuple(f"w{i}" for i in range(count))
    pairs = StsSet("mine", texts, texts, np.arange(count) / 1000, ("",) * count)
    scores: Any = {
        name: SimpleNamespace(cosine_N=np.arange(count) / 1000 + shift) for name, shift in (("a", 5), ("b", 7))
    }
    found = sts._scatter(pairs, scores, seed=1)
    shown = np.array(found["gold"])
    assert len(set(shown)) == 500
    np.testing.assert_allclose(found["a"], shown + 5)
    np.testing.assert_allclose(found["b"], shown + 7)
    assert 1.3 < shown.mean() < 1.7, "of the beginning and of the end"
    assert sts._scatter(pairs, scores, seed=1) == found != sts._scatter(pairs, scores, seed=2)
