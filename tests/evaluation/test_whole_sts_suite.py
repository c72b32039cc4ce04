"""The whole result of the STS suite for one set, and what the model is asked for; scattered points of large sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.config import BootstrapConfig, StsConfig
from mm_ldlm.evaluation.sts import ratio_to, score_encoder
from mm_ldlm.evaluation.sts_sets import StsSet, StsSource, from_pairs
from mm_ldlm.evaluation.suites import sts

BOOTSTRAP = BootstrapConfig(replicates=25, level=0.7)
OPTIONS: dict[str, Any] = {"replicates": 25, "level": 0.7, "seed": 5}
SAMPLER: Any = object()


class Model:
    """Embeds "w3" as a function of 3, of the sampler and of the seed; "w3" has 3 tokens, one of them unknown."""

    max_length, no_encoder = 6, None
    capabilities = SimpleNamespace(refusal=lambda use: None, reads_latents=True)

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.tokenizer = SimpleNamespace(unk_id=-1, encode=self.tokens)

    @staticmethod
    def tokens(texts: Any) -> list[list[int]]:
        """As many tokens as the number has left modulo 9; multiples of 4 contain an unknown word."""
        return [[-1 if int(text[1:]) % 4 == 0 else 7] * (int(text[1:]) % 9 + 1) for text in texts]

    @staticmethod
    def vectors(texts: Any, *, by: float) -> Any:
        return np.array([[by, float(text[1:]) ** 0.5, np.sin(by * float(text[1:]))] for text in texts])

    def encode(self, texts: Any) -> Any:
        return self.vectors(texts, by=0.5)

    def embed_tokens(self, ids: Any, texts: Any, *, sampler: Any, seed: int) -> Any:
        assert ids == [row[: self.max_length] for row in self.tokens(texts)], "truncated, as encoders do"
        self.asked.append((list(texts), sampler, seed))
        return SimpleNamespace(latents=self.vectors(texts, by=seed + (2 if sampler == "one_step" else 1)))


def evaluated(pairs: StsSet, model: Any, monkeypatch: pytest.MonkeyPatch, **config: Any) -> dict[str, Any]:
    monkeypatch.setattr(sts, "load_sts", lambda source, *, seed: pairs)
    given = StsConfig(sets=(StsSource(format="stsb", name="mine", path="p"),), sampler=SAMPLER, **config)
    return sts.evaluate(model, config=given, bootstrap=BOOTSTRAP, seed=5, progress=False)


def some_pairs(count: int, *, subsets: list[str] | None = None) -> StsSet:
    rows = [(f"w{i}", f"w{(5 * i) % count + 1}", 5 * ((3 * i) % count) / count) for i in range(count)]
    return from_pairs("mine", rows, subsets=subsets)


def test_the_whole_entry_of_a_set_with_subsets(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = some_pairs(24, subsets=["z"] * 10 + ["a"] * 14)
    model = Model()
    found = evaluated(pairs, model, monkeypatch)
    assert list(found) == ["sets"]
    assert model.asked == [
        (pairs.sentences, SAMPLER, 5), (pairs.sentences, "one_step", 5)
    ]  # fmt: skip
    entry = found["sets"]["mine"]
    assert set(entry) == {"pairs", "subsets", "too_long", "unknown", "scores", "scatter"}
    assert (entry["pairs"], entry["subsets"]) == (24, ["z", "a"]), "in the order of the set"
    numbers = [int(text[1:]) for text in pairs.sentences]
    assert entry["too_long"] == sum(number % 9 + 1 > 6 for number in numbers)
    assert entry["unknown"] == sum(number % 4 == 0 for number in numbers) / len(numbers)
    bases = {"encoder": 0.5, "model": 6.0, "one_step": 7.0}
    made = {name: score_encoder(pairs, lambda texts, by=by: Model.vectors(texts, by=by), **OPTIONS)
            for name, by in bases.items()}  # fmt: skip
    assert set(entry["scores"]) == set(entry["scatter"]) - {"gold"} == set(bases)
    for name, by in bases.items():
        a, b = Model.vectors(pairs.first, by=by), Model.vectors(pairs.second, by=by)
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        similar = {"cosine": cosine, "dot": (a * b).sum(1), "manhattan": -np.abs(a - b).sum(1),
                   "euclidean": -np.sqrt(((a - b) ** 2).sum(1))}  # fmt: skip
        score = dict(entry["scores"][name])
        assert score.pop("by_similarity") == {
            kind: {"spearman": pytest.approx(100 * spearmanr(values, pairs.gold_N).statistic),
                   "pearson": pytest.approx(100 * pearsonr(values, pairs.gold_N).statistic)}
            for kind, values in similar.items()
        }  # fmt: skip
        parts = {"z": slice(0, 10), "a": slice(10, 24)}
        own = {by_name: {part: pytest.approx(100 * correlate(cosine[rows], pairs.gold_N[rows]).statistic)
                         for part, rows in parts.items()}
               for by_name, correlate in (("spearman", spearmanr), ("pearson", pearsonr))}  # fmt: skip
        for kind in ("spearman", "pearson"):
            assert score.pop(f"subset_{kind}") == own[kind]
            z, x = (own[kind][part].expected for part in ("z", "a"))
            assert score.pop(f"mean_{kind}") == pytest.approx((z + x) / 2)
            assert score.pop(f"weighted_mean_{kind}") == pytest.approx((10 * z + 14 * x) / 24)
            assert score.pop(kind) == getattr(made[name], f"{kind}_interval").as_dict()
        interval = made[name].mean_interval
        assert interval is not None
        assert score.pop("mean_interval") == interval.as_dict()
        ratio = {"ratio": ratio_to(made["encoder"], made[name], level=0.7).as_dict()}
        assert score == ({} if name == "encoder" else ratio)
        assert entry["scatter"][name] == [round(float(value), 4) for value in cosine]
    assert entry["scatter"]["gold"] == [round(value, 4) for value in pairs.gold_N]


@pytest.mark.parametrize("count", [499, 500, 501, 640])
def test_at_most_five_hundred_points_of_a_large_set_are_shown_in_its_order(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gold scores increase, and each cosine is a function of its own; the draw is that of the seed."""
    rows = [(f"w{i}", f"w{2 * i + 1}", 5 * i / count) for i in range(count)]
    pairs = from_pairs("mine", rows)
    scores = {"model": SimpleNamespace(cosine_N=np.arange(count) * 2.0)}
    found = sts._scatter(pairs, scores, seed=3)  # type: ignore[arg-type]
    assert len(found["gold"]) == min(count, 500)
    assert found["gold"] == sorted(set(found["gold"]))
    assert found["model"] == pytest.approx([2 * gold * count / 5 for gold in found["gold"]], abs=0.1)
    again, other = (sts._scatter(pairs, scores, seed=seed) for seed in (3, 4))  # type: ignore[arg-type]
    assert found == again
    assert (found != other) == (count > 500)


@pytest.mark.parametrize(("longest", "long"), [(6, 0), (7, 1), (9, 3)])
def test_a_sentence_that_fills_the_model_is_not_too_long(longest: int, long: int) -> None:
    pairs = some_pairs(longest)
    model = Model()
    model.tokenizer.encode = lambda texts: [[7] * int(text[1:]) for text in texts]
    for too_long in ("truncate", "refuse"):
        if too_long == "refuse" and long:
            with pytest.raises(
                EvaluationError, match=rf"STS set 'mine': .* at most 6 tokens, found {long} that are lo"
            ):
                sts.count_long(pairs, model, too_long=too_long)
        else:
            assert sts.count_long(pairs, model, too_long=too_long) == long
