"""The adapter in external evaluators: sentence-transformers always, mteb if it is installed."""

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.adapters import EncoderAdapter
from mm_ldlm.evaluation.sts import score_encoder
from mm_ldlm.evaluation.sts_sets import from_pairs


@pytest.fixture
def adapter(model):
    """The tiny model's own one-step embeddings."""
    return EncoderAdapter(lambda texts: model.embed(list(texts), sampler="one_step").latents, name="tiny")


@pytest.fixture
def pairs():
    generator = np.random.default_rng(0)
    lines = []
    for i in range(30):
        words = generator.integers(0, 20, size=6)
        other = np.where(generator.random(6) < (i % 5) / 5, words, generator.integers(0, 20, size=6))
        lines.append((" ".join(f"w{k}" for k in words), " ".join(f"w{k}" for k in other), float(i % 5)))
    return from_pairs("tiny", lines)


def test_shapes_types_and_options(adapter):
    import torch

    texts = ["w1 w2", "w3", "w4 w5 w6"]
    vectors = adapter.encode(texts, batch_size=2, show_progress_bar=True, prompt_name=None)
    assert vectors.shape == (3, 6)
    assert vectors.dtype == np.float32
    assert np.array_equal(adapter.encode("w3"), adapter.encode(["w3"])[0])
    assert isinstance(adapter.encode(texts, convert_to_tensor=True), torch.Tensor)
    assert np.allclose(np.linalg.norm(adapter.encode(texts, normalize_embeddings=True), axis=1), 1)
    assert adapter.encode([{"text": ["w1 w2", "w3"]}, {"text": ["w4"]}]).shape == (3, 6), "mteb's batches"
    assert adapter.similarity(vectors, vectors).shape == (3, 3)
    with pytest.raises(EvaluationError, match="token_embeddings"):
        adapter.encode(texts, output_value="token_embeddings")


@pytest.mark.parametrize(
    ("options", "is_tensor"),
    [
        ({}, False), ({"convert_to_numpy": False}, True), ({"convert_to_tensor": True}, True),
        ({"convert_to_numpy": True, "convert_to_tensor": True}, True), ({"convert_to_tensor": False}, False),
    ],
)  # fmt: skip
def test_vectors_are_a_tensor_where_no_array_or_a_tensor_is_asked_for(options, is_tensor):
    import torch

    found = EncoderAdapter(lambda texts: np.array([[3.0, 4.0]])).encode(["a"], **options)
    assert isinstance(found, torch.Tensor) == is_tensor
    assert found.tolist() == [[3, 4]]


def test_vectors_are_truncated_before_they_are_normalised():
    adapter = EncoderAdapter(lambda texts: np.array([[3.0, 4.0, 12.0], [6.0, 8.0, 0.0]]))
    texts = ["a", "b"]
    assert adapter.encode(texts, truncate_dim=2).tolist() == [[3, 4], [6, 8]]
    assert np.allclose(adapter.encode(texts, truncate_dim=2, normalize_embeddings=True), [[0.6, 0.8]] * 2)
    assert np.allclose(adapter.encode(texts, normalize_embeddings=True), [[3 / 13, 4 / 13, 12 / 13], [0.6, 0.8, 0]])
    assert np.allclose(adapter.similarity([[1.0, 0], [0, 2]], [[3.0, 0], [3, 3], [0, -1]]),
                       [[1, 0.5**0.5, 0], [0, 0.5**0.5, -1]])  # fmt: skip
    assert np.allclose(adapter.similarity_pairwise([[1.0, 0], [0, 2]], [[3.0, 3], [0, -1]]), [0.5**0.5, -1])
    with pytest.raises(EvaluationError, match="Expected 1 vectors, one per text, found 2"):
        adapter.encode("a")


def bags(texts):
    """Sums of a vector per word: cosines that lie well apart, so that float32 and float64 order them alike."""
    words_Ve = np.random.default_rng(1).normal(size=(20, 32))
    return np.stack([sum(words_Ve[int(word[1:])] for word in text.split()) for text in texts]).astype(np.float32)


def test_sentence_transformers_evaluators_run_unchanged(pairs):
    apart = [row for row in zip(pairs.first, pairs.second, pairs.gold_N, strict=True) if row[0] != row[1]]
    pairs = from_pairs("apart", apart)  # a sentence and itself are a tie, which float32 breaks by its last bit
    adapter = EncoderAdapter(bags, name="bags")
    from sentence_transformers.sentence_transformer import evaluation as theirs

    similarity = theirs.EmbeddingSimilarityEvaluator(
        list(pairs.first), list(pairs.second), pairs.gold_N.tolist(), write_csv=False, show_progress_bar=False
    )(adapter)
    ours = score_encoder(pairs, adapter.encode, replicates=20)
    assert 100 * similarity["spearman_cosine"] == pytest.approx(ours.spearman["cosine"], abs=1e-4)
    labels = [int(gold >= 3) for gold in pairs.gold_N]
    classified = theirs.BinaryClassificationEvaluator(
        list(pairs.first), list(pairs.second), labels, write_csv=False, show_progress_bar=False
    )(adapter)
    assert 0 < classified["cosine_ap"] <= 1


def test_mteb_runs_unchanged(model, pairs):
    mteb = pytest.importorskip("mteb")
    from mteb.abstasks.sts import AbsTaskSTS

    import datasets

    class Tiny(AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="Tiny", description="-", reference=None, type="STS", category="t2t", modalities=["text"],
            dataset={"path": "local/tiny", "revision": "1"}, eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="cosine_spearman", date=None, domains=None, task_subtypes=None, license=None,
            annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
        )  # fmt: skip
        min_score, max_score = 0, 4

        def load_data(self, **_):
            table = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold_N}
            self.dataset = datasets.DatasetDict(
                {"test": datasets.Dataset.from_dict({k: list(v) for k, v in table.items()})}
            )
            self.data_loaded = True

    adapter = EncoderAdapter(model.encode, name="encoder")
    result = mteb.evaluate(adapter, Tiny(), cache=None)
    found = result.task_results[0].scores["test"][0]["cosine_spearman"]
    assert 100 * found == pytest.approx(
        score_encoder(pairs, adapter.encode, replicates=20).spearman["cosine"], abs=1e-3
    )
