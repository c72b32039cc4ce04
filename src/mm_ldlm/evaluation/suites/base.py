"""The interface of a suite, what it receives, and the results of a suite with their provenance."""

from __future__ import annotations

import abc
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from mm_ldlm.core import EvaluationError, to_dict
from mm_ldlm.data.held_out import Sentences, read_sentences, rows_of_ids
from mm_ldlm.evaluation.bootstrap import Bootstrap, Statistic
from mm_ldlm.training.checkpoints.provenance import MADE_BY, made_by, refuse_other

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.evaluation.config import EvaluationConfig
    from mm_ldlm.evaluation.report.inputs import ReportInputs
    from mm_ldlm.inference.api import MMLDLM

log = logging.getLogger(__name__)

Metrics = dict[str, Any]
Form = Literal["fraction", "cosine", "points", "cost", "perplexity", "plain"]
AGAIN = (
    "Run `kedro run --pipelines=sampling,evaluation,reporting`, with the same checkpoint and use_ema in the sections "
    "sampling and evaluation."
)


@dataclass(frozen=True)
class Evaluation:
    """Inputs of a suite.

    Attributes:
        samples: task → its table of samples.
        config: the section `evaluation` of the parameters, with the keys of extras.
        sections: the further sections that the suite names, typed.
    """

    model: MMLDLM
    dataset: Dataset
    samples: Mapping[str, pd.DataFrame]
    config: Any
    seed: int
    sections: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bootstrap(self) -> Bootstrap:
        """The resamples of every interval."""
        return self.config.bootstrap.seeded(self.seed)


@dataclass(frozen=True)
class Headline:
    """One number of metrics.json that the report and comparisons of runs show.

    Attributes:
        key: its key in metrics.json; KEY.low and KEY.high are the ends of its interval.
        form: how it is written: "fraction" as a percentage; "cosine", between 0 and 1; "points", 0 to 100; "cost", in
            nats, and "perplexity", which are exact or upper bounds; "plain".
        note: what it measures, below its card in the report; None: it has no card.
        beside: words, key and form of the numbers that the note adds.
        compared: whether a comparison of runs shows it.
        leading: whether it is among the few numbers that describe a run best.
    """

    key: str
    label: str
    form: Form
    note: str | None = None
    beside: tuple[tuple[str, str, Form], ...] = ()
    compared: bool = True
    leading: bool = False


class Suite(abc.ABC):
    """One use of a run: its scores, headline numbers, figures and section of the report.

    Attributes:
        name: names its metrics (`metrics_NAME`), its rows (`NAME_rows`) and its node.
        title: heading of its section.
        use: the capability that it needs; None if it decides by itself.
        samples: tasks of sampling whose tables it reads.
        row_columns: columns of numbers of its table with one row per held-out sentence (besides `id`) that runs are
            compared by; () for a suite without such a table.
        sections: sections of the parameters that it reads besides `evaluation`.
        template: its section of the report, as "package/file" of a Jinja template.
        usual: whether most runs have it, so that the report says why it is left out.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    use: ClassVar[Any] = None
    samples: ClassVar[tuple[str, ...]] = ()
    row_columns: ClassVar[tuple[str, ...]] = ()
    sections: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str]
    usual: ClassVar[bool] = True

    def untrained(self, sections: Mapping[str, Any], *, seed: int) -> Mapping[str, Sequence[str]]:
        """Choose the texts, by the name of their set, that no run may be trained on."""
        return {}

    def skip_reason(self, given: Evaluation) -> str | None:
        """Explain why the run cannot be evaluated by this suite; None if it can."""
        return None if self.use is None else given.model.capabilities.refusal(self.use)

    @abc.abstractmethod
    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        """Score the run; return plain values for JSON, and the table of sentences of a suite with `row_columns`.

        Parts that the run cannot support are absent, and the list `left_out` has the reasons.
        """

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        """Choose the numbers of metrics.json: key → number, mapping with `value` and its interval, or None."""
        return {}

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        """List the headlines; `numbers` is a metrics.json."""
        return ()

    def figures(self, metrics: Metrics) -> dict[str, go.Figure | None]:
        """Draw its figures, by names that no other suite has; None for one without data."""
        return {}

    def section(self, page: ReportInputs) -> dict[str, Any]:
        """Make the values that the template needs besides `m`, the metrics."""
        return {}

    def files(self, metrics: Metrics) -> dict[str, Any]:
        """Choose the JSON files, by name, that are kept in the run folder with the result."""
        return {}

    def statistics(self, tables: Sequence[pd.DataFrame]) -> dict[str, Callable[[pd.DataFrame], Statistic]]:
        """Choose the statistics by which the tables of runs, all with the same ids, are compared in pairs."""
        return {}


def score(suite: Suite, given: Evaluation) -> tuple[Metrics, pd.DataFrame]:
    """Evaluate a suite, or skip it; sign its metrics and rows with the weights, the parameters and the seed.

    Raises:
        EvaluationError: a table of samples belongs to other weights than the model's.
    """
    weights = given.model.parts.weights
    about = made_by(weights, parameters=parameters_of(given.config, given.sections), seed=given.seed)
    about["dataset"] = given.dataset.fingerprint
    about["samples"] = {f"samples_{task}": table.attrs.get(MADE_BY) for task, table in given.samples.items()}
    for name, found in about["samples"].items():
        refuse_other(found, weights, what=name, remedy=AGAIN)
    metrics, rows = {"skipped": suite.skip_reason(given)}, None
    if metrics["skipped"] is None:
        log.info("evaluation · %s", suite.name)
        metrics, rows = suite.evaluate(given)
    rows = pd.DataFrame({"id": pd.Series(dtype="string")}) if rows is None else rows
    rows.attrs = {MADE_BY: about}
    return {**plain(metrics), MADE_BY: about}, rows


def parameters_of(config: EvaluationConfig, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the section `evaluation`, and others by name, to values for JSON."""
    return {**to_dict(config), **{name: to_dict(section) for name, section in sections.items()}}


def plain(value: Any) -> Any:
    """Convert nested mappings, sequences and numpy values to JSON types."""
    return json.loads(json.dumps(value, default=lambda item: item.tolist()))


# -- tables of samples -------------------------------------------------------------------------------------------------


def without_truth(samples: pd.DataFrame) -> str | None:
    """Explain why a table of samples has no held-out sentences to compare with; None if it has some."""
    reason = "sampling was configured without held-out sentences (sampling.tasks, sampling.rows)"
    return None if samples["id"].notna().any() else reason


def of_samples(samples: pd.DataFrame, *, dataset: Dataset) -> tuple[Sentences, pd.DataFrame]:
    """Read the held-out sentences of a table of samples, and select its rows for them, in the same order.

    Rows without an id (samples of a user's own `.npy` files or texts) have no held-out sentence and are left out. Of
    several texts for one latent the best one is read (column `best`).

    Raises:
        StoreError: the ids belong to another dataset.
    """
    samples = samples[samples["id"].notna() & samples.get("best", True)].reset_index(drop=True)
    return read_sentences(dataset, rows_of_ids(dataset, samples["id"].tolist())), samples


def token_rows(samples: pd.DataFrame) -> list[list[int]]:
    """Return the token ids of sampled texts."""
    return [[int(token) for token in row] for row in samples["tokens"]]


def unit(x_Nd: np.ndarray) -> np.ndarray:
    """Scale each row to length 1, in float64.

    Raises:
        EvaluationError: a row is zero or non-finite and has no direction.
    """
    x_Nd = np.asarray(x_Nd, dtype=np.float64)
    norm_N1 = np.linalg.norm(x_Nd, axis=1, keepdims=True)
    if wrong := int((~(np.isfinite(norm_N1) & (norm_N1 > 0))).sum()):
        raise EvaluationError(
            f"Expected vectors with a direction, found {wrong} of {len(x_Nd)} that are zero or non-finite. "
            "Check the checkpoint or the encoder that made them."
        )
    return x_Nd / norm_N1
