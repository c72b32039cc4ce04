"""External evaluators accept the adapter and get our scores."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.sts_sets import from_pairs
from mm_ldlm.evaluation.suites.sts import score_encoder
from mm_ldlm.extras.sts.adapters import EncoderAdapter

PAIRS = [(f"sentence {i}", f"other {i % 7}", float(i % 6)) for i in range(40)]


def encode(texts: Sequence[str]) -> np.ndarray:
    return np.stack([np.random.default_rng(sum(map(ord, text))).normal(size=12) for text in texts])


def test_sentence_transformers_computes_our_correlations() -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    first, second, gold = zip(*PAIRS, strict=True)
    names = ["cosine", "dot", "manhattan", "euclidean"]
    evaluator = EmbeddingSimilarityEvaluator(first, second, gold, similarity_fn_names=names)
    theirs = evaluator(EncoderAdapter(encode))
    ours = score_encoder(from_pairs("set", PAIRS), encode)
    for name in names:
        for kind in ("spearman", "pearson"):
            assert ours.numbers["by_similarity"][name][kind] == pytest.approx(100 * theirs[f"{kind}_{name}"], abs=1e-4)


def test_texts_and_batches_of_texts_give_the_same_vectors() -> None:
    adapter, texts = EncoderAdapter(encode), ["a", "b", "c"]
    whole = adapter.encode(texts, batch_size=2, show_progress_bar=True)
    batches: list[dict[str, Any]] = [{"text": texts[:2]}, {"text": texts[2:]}]
    assert whole.dtype == np.float32
    assert (adapter.encode(batches, task_metadata=None) == whole).all()
    assert (adapter.encode("b") == whole[1]).all()
    assert torch.equal(adapter.encode(texts, convert_to_tensor=True), torch.from_numpy(whole))


@pytest.mark.parametrize(
    "option", [{"output_value": "token_embeddings"}, {"truncate_dim": 4}, {"normalize_embeddings": True}]
)
def test_options_that_change_the_vectors_are_refused(option: dict[str, Any], refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, *option):
        EncoderAdapter(encode).encode(["a"], **option)


def test_mteb_runs_it() -> None:
    pytest.importorskip("mteb")
    assert EncoderAdapter(encode, name="run").mteb_model_meta.name == "mm-ldlm/run"
