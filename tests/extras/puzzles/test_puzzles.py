"""Each puzzle has one answer, which its text contains, and the suite counts the answers that a model finds."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.data.corpus.examples import described, read
from tests.environments import sections

from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.core import ConfigurationError, EvaluationError, parse
from mm_ldlm.data.corpus.sources import Row
from mm_ldlm.data.held_out import Sentences
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.extras.puzzles import suite
from mm_ldlm.extras.puzzles.config import CompletionConfig
from mm_ldlm.extras.puzzles.sources import sudoku_solutions
from mm_ldlm.inference.writer import Written

FEW = {"num_train": 30, "num_validation": 5, "num_test": 5}


def puzzles(**source: Any) -> list[list[str]]:
    keys = {**FEW, **source}
    rows, other = ([row for row in read(keys, seed=seed) if isinstance(row, Row)] for seed in (0, 1))
    assert [row.split for row in rows] == ["train"] * 30 + ["validation"] * 5 + ["test"] * 5
    assert (
        ([row.text for row in rows] == [row.text for row in other])
        is (described(keys) == described(keys, seed=1))
        is False
    )
    return [row.text.split("=") for row in rows]


@given(branches=st.integers(1, 4), length=st.integers(2, 7))
@example(branches=5, length=6)  # all letters
def test_only_the_answer_leads_from_the_centre_to_the_goal(branches: int, length: int) -> None:
    found = puzzles(kind="star_graphs", branches=branches, length=length)
    assert length == 2 or any(question[0] != question.partition("|")[2][0] for question, _ in found), "in any order"
    for question, answer in found:
        edges, ends = question.split("|")
        before = {edge[1]: edge[0] for edge in edges.split(",")}  # one edge leads to each node: one path to the goal
        assert len(before) == branches * (length - 1) == len(edges.split(","))
        path = ends[1]
        while path[0] in before:
            path = before[path[0]] + path
        assert path == answer
        assert len(path) == length
        assert path[0] == ends[0]


@given(clues=st.integers(4, 16))
def test_the_answer_is_the_only_sudoku_with_these_clues(clues: int) -> None:
    solutions = sudoku_solutions()
    assert len(np.unique(solutions, axis=0)) == 288
    grids = solutions.reshape(-1, 4, 4)
    boxes = grids.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 4)
    for lines in (grids, grids.swapaxes(1, 2), boxes):
        assert (np.sort(lines, axis=2) == list("1234")).all()
    for question, answer in puzzles(kind="sudoku", clues=clues):
        given_n = np.array(list(question)) != "."
        assert given_n.sum() == clues
        fits = (solutions[:, given_n] == np.array(list(question))[given_n]).all(axis=1)
        assert ["".join(row) for row in solutions[fits]] == [answer]


def test_a_text_counts_only_if_its_whole_rest_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token 9 is the mark; the model writes the first text right, the second half right, and the third too short."""
    texts = (1, 2, 9, 3, 8), (1, 9, 5, 8), (9, 7, 8)
    held = Sentences(ids=("a", "b", "c"), texts=("",) * 3, sources=("",) * 3, tokens=texts, latents_nd=None)
    monkeypatch.setattr(
        suite, "held_out", lambda _, *, count, seed, split: {(400, 3, "test"): held}[count, seed, split]
    )
    asked: list[Any] = []

    def write(canvases: Any, **how: Any) -> Written:
        asked.extend({("confidence", 3): canvases}[how["sampler"].kind, how["seed"]])
        return Written(tokens=[texts[0], (1, 9, 5, 5), (9, 7)], model_calls=np.array([2, 3, 4]))

    given: Any = SimpleNamespace(
        model=SimpleNamespace(
            tokenizer=SimpleNamespace(encode=lambda texts: [[9]] if texts == ["="] else [[8]]),
            model=SimpleNamespace(shape=SimpleNamespace(mask_id=0)),
            writer=SimpleNamespace(write=write),
            text_sampler=lambda *_: None,
        ),
        dataset=None, seed=3, bootstrap=Bootstrap(20, 0.95, 0),
        sections={"completion": parse(CompletionConfig, {"after": "=", "texts": 400, "sampler": {"kind": "confidence"}}, at="completion")},
    )  # fmt: skip
    metrics, rows = suite.Completion().evaluate(given)
    assert asked == [[1, 2, 9, 0, 0], [1, 9, 0, 0], [9, 0, 0]]
    assert rows["exact"].tolist() == [True, False, False]
    assert rows["right"].tolist() == [1.0, 0.5, 0.5]
    assert metrics["exact"]["value"] == pytest.approx(1 / 3)
    assert metrics["model_calls"] == 3
    given.sections["completion"] = parse(CompletionConfig, {"after": "?", "texts": 400}, at="completion")  # only last
    with pytest.raises(EvaluationError, match="completion"):
        suite.Completion().evaluate(given)


def test_a_sampler_that_does_not_fit_the_run_is_refused_before_it() -> None:
    fitting = {**sections("base"), "seed": 0, "completion": {"sampler": {"kind": "confidence", "steps": 2}}}
    assert check_parameters(fitting)["completion"].sampler.steps == 2
    with pytest.raises(ConfigurationError, match=r"completion\.sampler"):
        check_parameters(fitting | {"completion": {"sampler": {"kind": "confidence", "guidance": 2.0}}})
    unread = {
        "completion": {"sampler": {"kind": "confidence", "guidance": 2.0}},
        "objective": {"kind": "multimodal", "mode": "t2l"},
    }
    assert check_parameters(fitting | unread), "a run that completes no texts"
