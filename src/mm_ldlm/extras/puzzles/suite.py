"""Completion of held-out texts: the model reads the beginning and writes the rest, which has one right answer."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core import EvaluationError
from mm_ldlm.data.held_out import held_out
from mm_ldlm.evaluation.bootstrap import mean_of_counts
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Metrics, Suite


class Completion(Suite):
    """Complete held-out texts after a mark, such as "=".

    The table of texts has id, `exact` (whether all tokens after the mark are right), and `right`, their fraction.
    """

    name, title = "completion", "Completion"
    row_columns = ("exact",)
    sections = ("completion",)
    template = "mm_ldlm.extras.puzzles/report.html.j2"
    usual = False

    def skip_reason(self, given: Evaluation) -> str | None:
        capabilities = given.model.capabilities
        unset = "completion.after is not set" if given.sections["completion"].after is None else None
        return capabilities.refusal(capabilities.filling()) or unset

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame]:
        model, own = given.model, given.sections["completion"]
        held = held_out(given.dataset, count=own.texts, seed=given.seed, split="test")
        (mark,) = model.tokenizer.encode([own.after])
        if len(mark) != 1 or any(mark[0] not in row[:-1] for row in held.tokens):
            raise EvaluationError(
                f"completion.after: expected one token that every text has before its last one, found '{own.after}'. "
                "Set it to such a token, or to null."
            )
        starts = [row.index(mark[0]) + 1 for row in held.tokens]
        canvases = [
            [*row[:start], *[model.model.shape.mask_id] * (len(row) - start)]
            for row, start in zip(held.tokens, starts, strict=True)
        ]
        sampler = own.sampler or model.text_sampler(None, None, None)
        written = model.writer.write(canvases, latents_nd=None, sampler=sampler, seed=given.seed)
        right = [
            float(np.mean([a == b for a, b in zip_longest(row[start:], made[start:])]))
            for row, made, start in zip(held.tokens, written.tokens, starts, strict=True)
        ]
        rows = pd.DataFrame({"id": held.ids, "right": right, "exact": np.equal(right, 1.0)})
        found: Metrics = {
            "after": own.after,
            "texts": len(rows),
            "exact": given.bootstrap.proportion(rows["exact"]),
            "right": given.bootstrap.mean(rows["right"]),
            "model_calls": written.model_calls.mean(),
        }
        return found, rows

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        return {f"completion.{name}": metrics[name] for name in ("exact", "right", "model_calls")}

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        note = "of held-out texts whose rest is written without an error"
        return (Headline("completion.exact", "Completed correctly", "fraction", note, leading=True),)

    def statistics(self, tables: Sequence[pd.DataFrame]) -> dict[str, Any]:
        return {"exact": lambda rows: mean_of_counts(rows["exact"])}
