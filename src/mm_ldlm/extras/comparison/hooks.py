"""Hook of the pipeline `comparison`: its plan is made before the first node, where configurations can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

PLAN = "comparison_plan"


class ComparisonHooks:
    """Saves the sessions of a comparison to the catalog, with the parameters of all members resolved and checked."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        self._context = context

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        if PLAN in pipeline.inputs():
            catalog.save(PLAN, self._plan(catalog.load("params:comparison")))

    def _plan(self, comparison: Any) -> dict[str, Any]:
        from kedro.framework.project import settings

        from mm_ldlm.app.config_loader import merge
        from mm_ldlm.app.parameters import check_machine, check_parameters
        from mm_ldlm.extras.comparison.members import sessions_of

        loader: Any = self._context.config_loader
        project = self._context.project_path
        entries = loader["catalog"]

        def load(environment: str, params: Mapping[str, Any]) -> Any:
            return settings.CONFIG_LOADER_CLASS(
                loader.conf_source, env=environment, runtime_params=dict(params), **settings.CONFIG_LOADER_ARGS
            )

        def check(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            typed = check_parameters(parameters)
            check_machine(typed, read=typed.keys(), unused={"training", "encoder"})
            return typed

        sessions = sessions_of(
            comparison,
            current=loader.layers()[1:],
            base=loader.base_env,
            params=loader.runtime_params or {},
            folder=project / entries["comparison_runs"]["filepath"],
            project=project,
            load=load,
            check=check,
            merge=merge,
        )
        return {
            "project": str(project),
            "conf_source": str(loader.conf_source),
            "reports": str(Path(project / entries["comparison_report"]["filepath"]).parent),
            "sessions": [session.to_dict() for session in sessions],
        }
