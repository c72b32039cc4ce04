"""The part of the engine `ray` that runs on the nodes of the cluster: one task, in a process that Ray keeps."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

from mm_ldlm.core import ConfigurationError

PACKAGES = ("torch", "numpy", "tokenizers", "transformers", "datasketch")
"""Packages whose version may change a result."""
INSTALL = "`pip install -c constraints.txt -e '.[ray]'` in the project's folder"

_functions: dict[str, Callable[[Any], Any]] = {}
"""Key of a run → its function. A process keeps it between tasks, with the encoder that it has loaded."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of `PACKAGES` in this process; a package that is missing is left out."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def call(key: str, function: list[Any], expected: Mapping[str, str], folder: str, task: Any) -> Any:
    """Compute one task: fetch the function of the run on first use, and call it.

    Args:
        key: name of the run.
        function: a reference to the function, in a list, so that Ray does not fetch it for every task.
        expected: the versions of the process that started the run.
        folder: the working folder of that process, which relative paths are read from where it exists.

    Raises:
        ConfigurationError: this node has other versions.
    """
    if key not in _functions:
        import ray

        found = versions()
        other = [f"{name} {found.get(name, 'missing')} (here {here})" for name, here in expected.items()
                 if found.get(name) != here]  # fmt: skip
        if other:
            raise ConfigurationError(
                "expected the same packages on every node of the Ray cluster, found on "
                f"{ray.util.get_node_ip_address()}: {', '.join(other)}. Install them from one file everywhere: "
                f"{INSTALL}."
            )
        if os.path.isdir(folder):
            os.chdir(folder)
        _functions.clear()
        _functions[key] = ray.get(function[0])
    return _functions[key](task)
