"""A run of nodes with the hooks, catalog and parameters of the project, in this process and without a session's start."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kedro.framework.hooks.manager import _create_hook_manager
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner
from tests.environments import CONF, configured, parameters

from mm_ldlm.app.catalog import Catalog
from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.settings import CONFIG_LOADER_ARGS, HOOKS

ROOT = "/ROOT"
"""Stands for the folder of the artifacts in the entries that all sessions share"""


@functools.cache
def _entries(run: str | None) -> str:
    given = {"data": ROOT} | ({} if run is None else {"run": run})
    return json.dumps(LayeredConfigLoader(CONF, env="test", runtime_params=given, **CONFIG_LOADER_ARGS)["catalog"])


class Session:
    """Runs pipelines in the environment `test`, with all artifacts in the folder `root`."""

    def __init__(self, root: Path, **given: Any) -> None:
        configured()
        self.entries: dict[str, Any] = json.loads(_entries(given.get("run")).replace(ROOT, str(root)))
        self.parameters = merge(parameters("test"), {"tracking": {"enabled": False}, **given})
        self.manager = _create_hook_manager()
        for hooks in HOOKS:
            self.manager.register(type(hooks)())
        self.manager.hook.after_context_created(context=SimpleNamespace(project_path=root))

    def run(self, pipeline: Pipeline) -> Catalog:
        catalog = Catalog.from_config(self.entries)
        catalog["parameters"] = self.parameters
        for name, value in self.parameters.items():
            catalog[f"params:{name}"] = value
        hook = self.manager.hook
        hook.after_catalog_created(
            catalog=catalog, conf_catalog=self.entries, conf_creds={}, parameters=self.parameters, save_version=None,
            load_versions=None,
        )  # fmt: skip
        about = {"run_params": {"run_id": "now", "env": "test"}, "pipeline": pipeline, "catalog": catalog}
        hook.before_pipeline_run(**about)
        try:
            result = SequentialRunner().run(pipeline, catalog, self.manager)
        except Exception as error:
            hook.on_pipeline_error(error=error, **about)
            raise
        hook.after_pipeline_run(run_result=result, **about)
        return catalog
