"""The environments of conf/, read once for all tests."""

import functools
from pathlib import Path
from typing import Any

import yaml
from kedro.framework.project import configure_project
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mm_ldlm.app.config_loader import LayeredConfigLoader, merge, parse_yaml
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.settings import CONFIG_LOADER_ARGS

CONF = Path(__file__).resolve().parents[1] / "conf"
ENVIRONMENTS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name != "local")


@functools.cache
def configured() -> None:
    """Make Kedro read `settings.py` and the pipelines; half a second, so once in a process."""
    configure_project("mm_ldlm")


bootstrapped = functools.cache(bootstrap_project)
"""Once per project: Kedro's settings loader takes half a second."""


def run_in_process(root: Path, pipelines: list[str], nodes: list[str] | None = None, **runtime: Any) -> None:
    """Run pipelines of the project in `root` with `--env=test`, by Kedro, but in this process."""
    bootstrapped(root)
    runtime = {"tracking": {"enabled": False}, **runtime}
    with KedroSession.create(root, env="test", runtime_params=runtime) as session:
        session.run(pipeline_names=pipelines, node_names=nodes)


@functools.cache
def _content(file: str) -> dict[str, Any]:
    return parse_yaml(Path(file).read_bytes(), file=file) or {}


class _Loader(LayeredConfigLoader):
    """The loader of the project, which reads each file once for all environments."""

    def _read_file(self, file: str) -> dict[str, Any]:
        return _content(file)


@functools.cache
def loader(environment: str) -> LayeredConfigLoader:
    return _Loader(CONF, env=environment, **CONFIG_LOADER_ARGS)


@functools.cache
def parameters(environment: str) -> dict[str, Any]:
    """The resolved parameters of an environment, as the files have them."""
    return loader(environment)["parameters"]


@functools.cache
def layer(environment: str) -> dict[str, Any]:
    """The parameters that the files of an environment set."""
    found: dict[str, Any] = {}
    for file in sorted((CONF / environment).rglob("*.yml")):
        if "parameters" in file.relative_to(CONF / environment).as_posix():
            found = merge(found, parse_yaml(file.read_bytes(), file=str(file)) or {})
    return found


def combined(environment: str, above: str) -> dict[str, Any]:
    """The typed sections of an environment with a layer above it."""
    return check_parameters(merge(parameters(environment), layer(above)))


@functools.cache
def sections(environment: str) -> dict[str, Any]:
    """The typed sections of an environment by name."""
    return check_parameters(parameters(environment))


@functools.cache
def paths(environment: str) -> dict[str, str]:
    """The parts of the artifacts' paths that an environment itself sets."""
    file = CONF / environment / "globals.yml"
    found = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {key: found[key] for key in ("data", "features", "results") if key in found}
