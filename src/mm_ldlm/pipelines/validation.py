"""`validation`: stores → report, quarantine, plots, index, normalisers, and a dataset that names them.

The work is done in `mm_ldlm.data.validation` and `mm_ldlm.data`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from mm_ldlm.core.files import new_directory
from mm_ldlm.data.example_index import write_index, write_quarantine
from mm_ldlm.data.features import Inputs, fit_all, open_all, planned, sections
from mm_ldlm.data.store import NOT_NEEDED, Manifest, NotNeeded, ShardStore
from mm_ldlm.data.validation.checks import plots, validate
from mm_ldlm.data.validation.findings import enforce
from mm_ldlm.evaluation.suites import sections_of_suites, suites

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer


def validate_data(
    records: ShardStore,
    tokens: ShardStore,
    latents: ShardStore | None,
    features: Path,
    tokenizer: TextTokenizer,
    workspace: Path,
    **sections: Any,
) -> dict[str, Any]:
    """Check everything that objective and model read; return the report, the failed rows and the plots.

    The report contains failed contracts; `index_valid_examples` raises them after the report was saved.
    """
    from mm_ldlm.evaluation.report import figures, theme

    plan = planned(sections)
    report, failing, plotted = validate(
        plan,
        Inputs(records, tokens, tokenizer, open_all(plan, latents=latents, folder=features)),
        sections=sections,
        evaluation_sets={
            name: texts
            for suite in suites().values()
            for name, texts in suite.untrained(sections, seed=sections["seed"]).items()
        },
    )
    return {
        "report": report,
        "quarantine": write_quarantine(records, failing, workspace),
        **dict.fromkeys(plots(), theme.chart([], x={}, y={})),
        "plot_lengths": figures.lengths(tokens.gather("length", slice(None)).to_numpy()),
        **plotted,
    }


def index_valid_examples(
    report: dict[str, Any],
    records: ShardStore,
    tokens: ShardStore,
    latents: ShardStore | None,
    quarantine: ShardStore,
    objective: Any,
    workspace: Path,
) -> Manifest:
    """Index the examples that are not in quarantine; raise ValidationError if the report has a failed contract."""
    enforce(report)
    return write_index(records, tokens, latents if "latents" in objective.fields else None, quarantine, workspace)


def fit_normalisers(
    tokens: ShardStore, latents: ShardStore | None, features: Path, index: ShardStore, workspace: Path, **sections: Any
) -> NotNeeded:
    """Fit the normalisers of the features that have one, on the valid training examples; write a folder for each."""
    plan = planned(sections)
    fitted = fit_all(plan, open_all(plan, latents=latents, folder=features), tokens=tokens, index=index)
    for name, normaliser in fitted.items():
        with new_directory(workspace / name) as folder:
            normaliser.save(folder)
    return NOT_NEEDED


def commit_dataset(
    records: ShardStore,
    tokens: ShardStore,
    index: ShardStore,
    tokenizer: TextTokenizer,
    latents: ShardStore | None,
    features: Path,
    normalisers: Path,
    **sections: Any,
) -> dict[str, Path | None]:
    """Name the folders of the stores that objective and model need; the catalog entry `dataset` commits them."""
    plan = planned(sections)
    opened = open_all(plan, latents=latents, folder=features)
    stores = {"records": records, "tokens": tokens, "index": index, **opened}
    folders = {name: store.directory for name, store in stores.items()}
    own = {name: normalisers / name for feature in plan.values() if (name := feature.normaliser_folder) is not None}
    return {**folders, "tokenizer": tokenizer.directory, **own}


def create_pipeline() -> Pipeline:
    parameters = {section: f"params:{section}" for section in sections()}
    stores = {name: name for name in ("records", "tokens", "latents", "features")}
    return Pipeline(
        [
            node(
                validate_data,
                inputs={
                    **stores,
                    "tokenizer": "tokenizer_files",
                    "validation": "params:validation",
                    **{name: f"params:{name}" for name in ("evaluation", *sections_of_suites())},
                    "workspace": "params:quarantine_validation_workspace",
                    **parameters,
                    "encoder": "params:encoder",
                    "seed": "params:seed",
                },
                outputs={
                    "report": "validation_report",
                    "quarantine": "quarantine_validation",
                    **{name: name for name in plots()},
                },
                name="validate_data",
            ),
            node(
                index_valid_examples,
                inputs=[
                    "validation_report",
                    "records",
                    "tokens",
                    "latents",
                    "quarantine_validation",
                    "params:objective",
                    "params:index_workspace",
                ],
                outputs="index",
                name="index_valid_examples",
            ),
            node(
                fit_normalisers,
                inputs={
                    **{name: name for name in ("tokens", "latents", "features", "index")},
                    "workspace": "params:normalisers_workspace",
                    **parameters,
                },
                outputs="normalisers",
                name="fit_normalisers",
            ),
            node(
                commit_dataset,
                inputs={
                    **stores,
                    "index": "index",
                    "tokenizer": "tokenizer_files",
                    "normalisers": "normalisers",
                    **parameters,
                },
                outputs="dataset",
                name="commit_dataset",
            ),
        ],
        tags="validation",
        namespace="validation",
        prefix_datasets_with_namespace=False,
    )
