"""Kedro's settings: the hooks, the context, the configuration loader, and every telemetry service switched off."""

import functools
import logging
import os
from typing import Any

# Set before the tools are imported: each reads its variable when it is imported.
os.environ |= {
    "KEDRO_DISABLE_TELEMETRY": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}  # fmt: skip
# MLflow retries each request to a server seven times and waits two minutes for each. A run does not wait that long for
# its tracking; the variables of the same names override these values.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")  # seconds
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
# The threads of a tokenizer do not survive a fork, and the data workers and the launcher fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# NumPy multiplies small matrices only, and its threads would compete with torch's.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from kedro.framework.context import KedroContext

from mm_ldlm.app.catalog import Catalog
from mm_ldlm.app.config_loader import LayeredConfigLoader
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.core import Registry
from mm_ldlm.training.checkpoints.reference import results_of, runs_of

_CONTRIBUTED = Registry("group of hooks", {}, group="hooks")
# Kedro calls the last ones first: the parameters are checked before anything else happens.
HOOKS = (*(_CONTRIBUTED.load(name)() for name in reversed([*_CONTRIBUTED])), ProjectHooks())

DATA_CATALOG_CLASS = Catalog

# An environment may have several layers (--env=tatoeba+mdlm). Kedro's default merge replaces whole top-level keys; the
# soft merge of parameters and globals changes only the keys that a layer sets (docs/configuration.md).
CONFIG_LOADER_CLASS = LayeredConfigLoader
CONFIG_LOADER_ARGS: dict[str, Any] = {
    "base_env": "base",
    "default_run_env": "local",
    "merge_strategy": {"parameters": "soft", "globals": "soft"},
    # Paths of a run that is chosen by `--params run=PATH` (conf/base/catalog/root.yml).
    "custom_resolvers": {"results_of": results_of, "runs_of": runs_of},
}


class Context(KedroContext):
    """Leaves the parameters as the loader reads them: `mm_ldlm.app.parameters` checks them (docs/decisions/0001).

    Kedro would make a configuration of each section whose node it can read the annotation of, with other errors.
    """

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """The parameters as mappings."""
        return self.config_loader["parameters"]


CONTEXT_CLASS = Context

# The hook replaces the parameters in the catalog by their types (mm_ldlm.app.hooks), with a warning for each.
logging.getLogger("kedro.io.data_catalog").setLevel(logging.ERROR)
