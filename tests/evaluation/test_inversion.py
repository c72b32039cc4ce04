"""Metrics of inversion against their definitions and against sacrebleu's command line."""

import subprocess
import sys

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation.suites.inversion import reembedding_cosine

REFERENCES = [
    "the cat sat on the mat .",
    "a dog ran through the wet grass , happily .",
    "two children are playing chess in the park",
    "it rained all day",
]
HYPOTHESES = [
    "the cat sat on the mat .",
    "a dog ran through the tall grass happily .",
    "two kids are playing chess in a park",
    "nothing happened here",
]


def rows_of(references, hypotheses, **options):
    ids = {}

    def number(text):
        return [ids.setdefault(word, len(ids)) for word in text.split()]

    return inv.score_rows(
        references,
        hypotheses,
        reference_ids=[number(t) for t in references],
        hypothesis_ids=[number(t) for t in hypotheses],
        **options,
    )


def test_token_accuracy_counts_every_missing_and_surplus_token_as_an_error():
    assert inv.position_matches([1, 2, 3], [1, 2, 3]) == (3, 3)
    assert inv.position_matches([1, 2, 3], [1, 2]) == (2, 3)
    assert inv.position_matches([1, 2, 3], [1, 2, 3, 4]) == (3, 4)
    assert inv.position_matches([1, 2, 3], [9, 1, 2, 3]) == (0, 4)


def test_metrics_as_written_compare_with_the_author_s_own_letters():
    """Sentence 0 is exact, 1 differs by a capital, 2 by a space; the token metrics see no error in them."""
    written = [HYPOTHESES[0], "A dog ran", "two  kids", "it rained all day"]
    references = [HYPOTHESES[0], "a dog ran", "two kids", "it rained all day"]
    outputs = [HYPOTHESES[0], "a dog ran", "two kids", "nothing happened here"]
    rows = rows_of(references, outputs, written=written)
    found = inv.summarise(rows, replicates=50)
    assert found["exact_match"].value == 0.75
    assert found["exact_match_as_written"].value == 0.25
    f1 = [inv.token_set_f1(*pair) for pair in zip(written, outputs, strict=True)]
    assert f1 == [1, pytest.approx(2 / 3), 1, 0]
    assert found["token_set_f1_as_written"].value == pytest.approx(np.mean(f1))
    assert found["bleu_as_written"].value == pytest.approx(inv.corpus_bleu(rows_of(written, outputs)))
    assert found["bleu_as_written"].low < found["bleu_as_written"].value < found["bleu"].value
    assert not any("as_written" in name for name in inv.summarise(rows_of(references, outputs), replicates=5))
    with pytest.raises(EvaluationError, match="written"):
        rows_of(references, outputs, written=written[:2])


def test_token_set_f1_is_of_sets_of_words():
    assert inv.token_set_f1("a b c", "c b a") == 1.0
    assert inv.token_set_f1("the the the cat", "the cat") == 1.0
    assert inv.token_set_f1("a b", "a c") == pytest.approx(0.5)
    assert inv.token_set_f1("a b", "") == 0.0


def test_bleu_equals_the_command_line(tmp_path):
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n")
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(tmp_path / "ref"),
        "-i",
        str(tmp_path / "hyp"),
        "-m",
        "bleu",
        "chrf",
        "-b",
        "-w",
        "6",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bleu, chrf = (float(word) for word in printed.replace("[", " ").replace("]", " ").replace(",", " ").split())
    rows = rows_of(REFERENCES, HYPOTHESES)
    assert inv.corpus_bleu(rows) == pytest.approx(bleu, abs=1e-6)
    assert inv.chrf(REFERENCES, HYPOTHESES) == pytest.approx(chrf, abs=1e-6)


def test_summary_has_every_metric_with_an_interval_around_it():
    rows = rows_of(REFERENCES * 20, HYPOTHESES * 20, cosine=np.full(80, 0.9))
    found = inv.summarise(rows, replicates=100)
    assert set(found) == {
        "exact_match",
        "token_accuracy",
        "token_set_f1",
        "bleu",
        "sentence_bleu",
        "chrf",
        "rouge_l",
        "cosine",
    }
    assert found["exact_match"].value == 0.25
    for value in found.values():
        assert value.low - 1e-9 <= value.value <= value.high + 1e-9
    assert found["bleu"].low < found["bleu"].high


def test_perfect_output_scores_the_maximum():
    found = inv.summarise(rows_of(REFERENCES, REFERENCES), replicates=20)
    assert found["exact_match"].value == found["token_accuracy"].value == found["rouge_l"].value == 1
    assert found["bleu"].value == pytest.approx(100)


def test_by_length_covers_every_row_once():
    rows = rows_of(REFERENCES, HYPOTHESES)
    table = inv.by_length(rows, edges=[4, 8])
    assert table["rows"].sum() == len(rows)
    assert list(table["tokens"]) == ["1–4", "5–8", "9–10"]


def test_an_output_that_is_embedded_again_is_compared_with_its_own_latent(model):
    """Empty outputs score 0, before and after others; a repeated output is compared with the latent of each place."""
    texts = ["", "w1 w2", " ", "w3", "w1 w2", "w4 w5", ""]
    latents = np.ones((len(texts), model.encoder.dim))
    for place in (1, 3, 5):
        latents[place] = 7 * model.encode([texts[place]])[0]
    latents[4] = -latents[1]
    assert reembedding_cosine(model, texts, latents) == pytest.approx([0, 1, 0, 1, -1, 1, 0], abs=1e-6)
    assert reembedding_cosine(model, ["", " "], latents[:2]).tolist() == [0, 0]


def test_an_output_too_few_is_refused():
    with pytest.raises(EvaluationError, match="exactly one output"):
        inv.score_rows(["a", "b"], ["a"], reference_ids=[[1], [2]], hypothesis_ids=[[1]])
    with pytest.raises(EvaluationError, match="not finite"):
        rows_of(REFERENCES, HYPOTHESES, cosine=np.array([1, np.nan, 1, 1]))
