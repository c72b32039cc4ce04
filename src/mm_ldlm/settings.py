"""Kedro's settings: hooks, how configuration is merged, and silence towards every telemetry service."""

import logging
import os

# Before any import of the tools themselves: each reads its variable when it starts.
os.environ["KEDRO_DISABLE_TELEMETRY"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Tokenizer threads survive no fork; data workers and the launcher fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from mm_ldlm.hooks import ProjectHooks

HOOKS = (ProjectHooks(),)

# Kedro's default replaces base's parameters per top-level key; soft merge changes only what an environment names.
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    "merge_strategy": {"parameters": "soft", "globals": "soft"},
}

# Parameters are checked by mm_ldlm.parameters (docs/decisions/0001); Kedro's own check warns about names that only type
# checkers import. Said here, and not in conf/logging.yml, because notebooks run elsewhere.
logging.getLogger("kedro.validation").setLevel(logging.ERROR)
