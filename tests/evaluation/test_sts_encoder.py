"""The STS suite on the starter set with the real default encoder, compared with sentence-transformers' evaluator."""

import pytest

from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.encoders.base import load_encoder
from mm_ldlm.evaluation.adapters import EncoderAdapter
from mm_ldlm.evaluation.sts import score_encoder
from mm_ldlm.evaluation.sts_sets import StsSource, load_sts


def test_starter_set_scores_equal_sentence_transformers():
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    pairs = load_sts(StsSource(format="starter", name="starter"))
    encoder = load_encoder(LocalEncoderConfig(name="minilm"), device="cpu")
    known = dict(zip(pairs.sentences, encoder.encode(pairs.sentences), strict=True))  # embedded once for both

    def encode(sentences):
        import numpy as np

        return np.stack([known[sentence] for sentence in sentences])

    ours = score_encoder(pairs, encode, replicates=100)
    evaluator = EmbeddingSimilarityEvaluator(
        list(pairs.first), list(pairs.second), pairs.gold_N.tolist(), show_progress_bar=False, write_csv=False
    )
    theirs = evaluator(EncoderAdapter(encode))
    assert ours.spearman["cosine"] == pytest.approx(100 * theirs["spearman_cosine"], abs=1e-4)
    assert ours.pearson["cosine"] == pytest.approx(100 * theirs["pearson_cosine"], abs=1e-3)
    assert ours.spearman["cosine"] > 90, "the gold of the starter set follows what an encoder sees"
    assert len(pairs) >= 400
