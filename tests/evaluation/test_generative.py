"""Generative perplexity is always reported with diversity, and diversity falls when texts collapse."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import generative as gen

VARIED = [[i, i + 1, i + 2, i + 3, i + 4] for i in range(0, 50, 5)]
COLLAPSED = [[1, 2, 3, 4, 5]] * 10


def test_pitfall_26_perplexity_has_no_constructor_without_diversity():
    fields = {field.name for field in dataclasses.fields(gen.GenerativeScore)}
    assert {"nll_per_token", "diversity"} == fields
    with pytest.raises(TypeError):
        gen.GenerativeScore(nll_per_token=None)


def test_pitfall_26_collapse_shows_in_every_figure_of_diversity():
    varied, collapsed = gen.diversity(VARIED), gen.diversity(COLLAPSED)
    assert varied.unique == 1
    assert collapsed.unique == pytest.approx(0.1)
    assert collapsed.self_bleu == pytest.approx(100)
    assert varied.self_bleu == pytest.approx(0)
    assert collapsed.entropy_corpus < varied.entropy_corpus
    assert all(collapsed.distinct[n] < varied.distinct[n] for n in range(1, 5))


def test_entropy_of_a_text_is_of_its_own_histogram():
    found = gen.diversity([[1, 1, 2, 2], [3, 3, 4, 4]])
    assert found.entropy_sample == pytest.approx(math.log(2))
    assert found.entropy_corpus == pytest.approx(math.log(4))


def test_self_bleu_equals_sacrebleu_against_the_others():
    from sacrebleu.metrics import BLEU

    generator = np.random.default_rng(0)
    rows = [[f"w{k}" for k in generator.integers(0, 6, size=generator.integers(4, 9))] for _ in range(12)]
    texts = [" ".join(row) for row in rows]
    scorer = BLEU(tokenize="none", effective_order=True)
    expected = np.mean([scorer.sentence_score(t, texts[:i] + texts[i + 1 :]).score for i, t in enumerate(texts)])
    assert gen.self_bleu(rows) == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def tiny_gpt2(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("gpt2")
    vocabulary = {word: i for i, word in enumerate(["<s>", "<unk>", "a", "b", "c", "d"])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", unk_token="<unk>").save_pretrained(folder)
    GPT2LMHeadModel(GPT2Config(vocab_size=6, n_positions=16, n_embd=8, n_layer=1, n_head=2)).save_pretrained(folder)
    return gen.CausalModel(str(folder))


def test_causal_model_prices_each_text_alone(tiny_gpt2):
    import torch

    texts = ["a b c d", "d", "c c"]
    nll, count = tiny_gpt2.nll(texts, batch_size=2)
    assert count.tolist() == [4, 1, 2]
    for text, value in zip(texts, nll, strict=True):
        ids = torch.tensor([[0, *tiny_gpt2.tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            log_p = tiny_gpt2.model(ids).logits[0].log_softmax(-1)
        assert value == pytest.approx(-sum(float(log_p[i, t]) for i, t in enumerate(ids[0, 1:])), abs=1e-4)


def test_generative_score_carries_both(tiny_gpt2):
    score = gen.generative_score(["a b c d", "d c b", "a a"], tiny_gpt2)
    assert score.perplexity > 1
    assert score.diversity.texts == 3


def test_a_text_longer_than_the_window_is_refused(tiny_gpt2):
    with pytest.raises(EvaluationError, match="reads 16 tokens"):
        tiny_gpt2.nll(["a " * 30])


def test_a_missing_model_and_a_missing_library_say_what_to_do(tmp_path):
    with pytest.raises(EvaluationError, match="local folder"):
        gen.CausalModel(str(tmp_path / "nothing"))
    try:
        import mauve  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(EvaluationError, match="pip install mauve-text"):
            gen.mauve(["a"], ["b"], featurizer="gpt2")


def test_the_revision_is_that_of_the_model_and_of_its_tokenizer(monkeypatch):
    import transformers

    asked = []

    def load(name, *, revision):
        asked.append((name, revision))
        return SimpleNamespace(to=lambda device: SimpleNamespace(eval=lambda: ("evaluating on", device)))

    for kind in ("AutoTokenizer", "AutoModelForCausalLM"):
        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", load)
    made = gen.CausalModel("gpt", revision="r", device="cuda:3")
    assert asked == [("gpt", "r")] * 2
    assert (made.model, made.device, made.name) == (("evaluating on", "cuda:3"), "cuda:3", "gpt")


def test_a_text_that_fills_the_window_is_scored(tiny_gpt2):
    nll, count = tiny_gpt2.nll(["a " * 15])
    assert (count.tolist(), bool(np.isfinite(nll).all())) == ([15], True)
    with pytest.raises(EvaluationError, match="reads 16 tokens, found a text of 17"):
        tiny_gpt2.nll(["a", "a " * 16])
