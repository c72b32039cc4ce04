"""Star graphs and small Sudokus as lines of text: a question, "=", and its only answer."""

from collections.abc import Iterator
from functools import cache
from itertools import permutations, product
from string import ascii_lowercase
from typing import Any

import numpy as np

from mm_ldlm.core import PositiveInt, Rows, RowsOrNone, config, refuse_if
from mm_ldlm.data.corpus.sources import Opening, Row, SourceConfig


@config
class PuzzlesConfig(SourceConfig):
    """Generated puzzles with their own splits.

    Attributes:
        num_train, num_validation, num_test: number of puzzles to generate.
    """

    num_train: Rows = 100_000
    num_validation: RowsOrNone = 500
    num_test: RowsOrNone = 500

    def puzzle(self, draw: np.random.Generator) -> str:
        """Write one puzzle with its answer."""
        raise NotImplementedError

    def rows(self, opening: Opening) -> Iterator[Row]:
        draw = np.random.default_rng(opening.seed)
        counts = {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}
        splits = [split for split, count in counts.items() for _ in range(count)]
        for number, split in enumerate(splits, start=1):
            yield Row(self.puzzle(draw), self.kind, number, split)

    def describe(self, opening: Opening) -> Any:
        return {"seed": opening.seed}


@config
class StarGraphsConfig(PuzzlesConfig):
    """Paths from the centre of a star to the end of one of its branches (arXiv:2403.06963).

    `ab,bc,ad,de|ac=abc`: the edges in any order, the centre and the goal, and the path. From left to right the first
    step is hard, because it depends on the entire path; from the goal backwards every step is easy.

    Attributes:
        branches: number of branches of the centre.
        length: number of nodes of a path, both ends included.
    """

    kind: str = "star_graphs"
    branches: PositiveInt = 2
    length: PositiveInt = 5

    def __post_init__(self) -> None:
        nodes = 1 + self.branches * (self.length - 1)
        refuse_if(
            self.length < 2 or nodes > len(ascii_lowercase),
            f"expected paths of at least two nodes and stars of at most {len(ascii_lowercase)}, found {self.branches} "
            f"branches of {self.length}: {nodes} nodes",
            "branches",
            "length",
        )

    def puzzle(self, draw: np.random.Generator) -> str:
        steps = self.length - 1
        centre, *others = draw.permutation(list(ascii_lowercase))[: 1 + self.branches * steps]
        paths = [centre + "".join(others[start : start + steps]) for start in range(0, len(others), steps)]
        edges = draw.permutation([path[i : i + 2] for path in paths for i in range(steps)])
        answer = paths[draw.integers(self.branches)]
        return f"{','.join(edges)}|{answer[0]}{answer[-1]}={answer}"


@config
class SudokuConfig(PuzzlesConfig):
    """Sudokus of four rows, columns and boxes with the numbers 1 to 4, of which the clues leave one solution.

    `1...2.4.....3...=` and the 16 numbers of the solution.

    Attributes:
        clues: number of cells that are given.
    """

    kind: str = "sudoku"
    clues: PositiveInt = 6

    def __post_init__(self) -> None:
        refuse_if(not 4 <= self.clues <= 16, f"expected 4 to 16 clues, found {self.clues}", "clues")

    def puzzle(self, draw: np.random.Generator) -> str:
        solutions = sudoku_solutions()
        while True:
            solution = solutions[draw.integers(len(solutions))]
            given = draw.permutation(16)[: self.clues]
            if (solutions[:, given] == solution[given]).all(axis=1).sum() == 1:
                question = np.full(16, ".")
                question[given] = solution[given]
                return f"{''.join(question)}={''.join(solution)}"


@cache
def sudoku_solutions() -> np.ndarray:
    """List all 288 solved Sudokus of four rows, (288, 16) characters, row by row."""
    rows = list(permutations("1234"))
    found = []
    for upper in product(rows, rows):
        if len({*upper[0][:2], *upper[1][:2]}) == 4 == len({*upper[0][2:], *upper[1][2:]}):
            for lower in product(rows, rows):
                # The lower boxes are right as well: their columns lack what those of the upper boxes have.
                if all(len({*column}) == 4 for column in zip(*upper, *lower, strict=True)):
                    found.append([*upper[0], *upper[1], *lower[0], *lower[1]])
    return np.array(found)
