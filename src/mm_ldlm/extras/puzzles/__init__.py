"""Puzzles with one answer each, as texts: sources, and the score of their completion."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sources": {
        "star_graphs": "mm_ldlm.extras.puzzles.sources:StarGraphsConfig",
        "sudoku": "mm_ldlm.extras.puzzles.sources:SudokuConfig",
    },
    "checks": {"puzzles": "mm_ldlm.extras.puzzles.config:problems"},
    "sections": {"completion": "mm_ldlm.extras.puzzles.config:CompletionConfig"},
    "suites": {"completion": "mm_ldlm.extras.puzzles.suite:Completion"},
}
