"""Configuration loader for several environments at once: `--env=tatoeba+mdlm` layers base, then tatoeba, then mdlm.

Kedro builds this loader for every command (`run`, `viz`, `ipython`, `catalog`, `%reload_kedro`), because `settings.py`
names it as `CONFIG_LOADER_CLASS`. docs/configuration.md explains the layers to users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import click
from kedro.config import OmegaConfigLoader
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError, load

from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.messages import escape, nearest, shorten, show

SEPARATOR = "+"
"""Separator of the layers of an environment."""
_STEMS = ("catalog", "parameters", "credentials")
"""Beginnings of the names of files, or of their folder, that Kedro reads."""
_GLOBALS = "globals.yml"
_SUFFIXES = (".yml", ".yaml", ".json")
_IGNORED = (".md", "~", ".bak", ".orig", ".swp")
"""Ends of the names of files that hold no configuration."""


class UnreadableConfiguration(ConfigurationError, click.ClickException):
    """An error of the loader. Every Kedro command prints its message instead of a traceback."""


class LayeredConfigLoader(OmegaConfigLoader):
    """Kedro's loader, with an environment of one or several layers above base.

    Layers are merged before `${...}` is resolved, so that a reference uses the value of the last layer. Configuration
    types with the merge strategy "soft" are merged by `merge`; for other types a layer replaces whole top-level keys.

    Raises:
        ConfigurationError: (at construction) a layer is empty or repeated, or it is not a folder of the configuration.
    """

    @staticmethod
    def combine(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
        """How a layer of parameters changes those below it (`merge`)."""
        return merge(lower, upper)

    def layers(self) -> tuple[str, ...]:
        """List the folders to read, lowest first: base, then the layers of the environment."""
        names = self._environments()
        if self.env:
            chosen = parse_environment(self.env, base=self.base_env, known=names, source=str(self.conf_source))
            return (self.base_env, *chosen)
        # The default environment may be absent: it is the user's own, and git ignores its files.
        return (self.base_env, self.default_run_env) if self.default_run_env in names else (self.base_env,)

    def __getitem__(self, key: str) -> dict[str, Any]:
        """Read one type of configuration from all layers.

        Raises:
            UnreadableConfiguration: the environment is not known; a file is not YAML, sets a key twice or is not a
                mapping; or a reference `${...}` cannot be resolved.
            MissingConfigException: (as in Kedro) there is no file for this type.
        """
        try:
            if key == "parameters":
                self.refuse_unknown_files()
            return super().__getitem__(key)
        except UnreadableConfiguration:
            raise
        except ConfigurationError as error:
            raise UnreadableConfiguration(mask(str(error))) from None
        except (OmegaConfBaseException, YAMLError, ValueError, RecursionError, AttributeError) as error:
            reason = "a reference leads to itself" if isinstance(error, RecursionError) else str(error).rstrip(".")
            if isinstance(error, AttributeError):  # Kedro reads every top-level key as a text
                reason = "a top-level key is no text"
            reason = shorten(escape(mask(" ".join(reason.split()))))
            raise UnreadableConfiguration(
                f"the configuration '{key}' of the environment '{self.env or self.default_run_env}' in "
                f"{self.conf_source} cannot be read: {reason}. Correct the file that it names."
            ) from error

    def refuse_unknown_files(self) -> None:
        """Refuse files that no type of configuration reads, such as `params.yml`, in the layers of the environment.

        Raises:
            ConfigurationError: there is such a file; the message names it and the name that may have been meant.
        """
        for layer in self.layers():
            folder = str(self._get_conf_env_path(layer)).strip("/")
            for file in sorted(map(str, self._fs.find(self._get_conf_env_path(layer)))):
                name = file.partition(f"{folder}/")[2] or Path(file).name
                hidden = any(part.startswith((".", "_")) for part in Path(name).parts)
                if hidden or name.endswith(_IGNORED) or _is_read(name):
                    continue
                stem = Path(name).parts[0].split(".")[0]
                known = (*_STEMS, "globals")
                hint = f" Did you mean '{stem}'?" if stem in known else nearest(stem, known, cutoff=0.4)
                hint = hint.replace("'?", ".yml'?")
                raise ConfigurationError(
                    f"environment '{layer}': no command reads its file {show(name)}.{hint} Expected {_GLOBALS}, or "
                    "YAML or JSON whose name or folder begins with parameters, catalog or credentials. Rename it, or "
                    "remove it."
                )

    def _environments(self) -> list[str]:
        root = self._get_conf_env_path("")
        try:
            paths = self._fs.ls(root, detail=False)
        except FileNotFoundError:
            raise ConfigurationError(
                f"expected the folder of the configuration at {root}, found none. Run the command in the folder of the "
                "project, or name the folder with --conf-source."
            ) from None
        folders = [str(path).rstrip("/") for path in paths if self._fs.isdir(path)]
        names = {Path(folder).name for folder in folders}
        return sorted(name for name in names if name != self.base_env and not name.startswith("."))

    def _read_raw_config(self, key: str) -> tuple[dict[Path, DictConfig], dict[Path, DictConfig], str, str, set[Path]]:
        # Kedro reads base and one environment here, then resolves and merges the two. All layers and the runtime
        # parameters are merged here instead and returned as base, with nothing left to merge above it.
        files: set[Path] = set()
        folders = [self._get_conf_env_path(name) for name in self.layers()]
        layers = [self._read_layer(folder, key, files) for folder in folders]
        if key == "parameters" and any(layers):  # without a parameters file Kedro warns and takes these alone
            layers.append(OmegaConf.to_container(OmegaConf.create(self.runtime_params), resolve=False))
        combine = merge if self.merge_strategy.get(key) == "soft" else _replace_keys
        merged: Mapping[str, Any] = reduce(combine, layers)
        return {Path(folders[0]): OmegaConf.create(dict(merged))}, {}, folders[0], ", ".join(folders[1:]), files

    def _read_layer(self, folder: str, key: str, files: set[Path]) -> Any:
        try:
            configs: Iterable[DictConfig] = self._read_dir_configs(
                folder, self.config_patterns[key], key, files, key == "credentials"
            ).values()
        except (AttributeError, TypeError, YAMLError, ValueError):  # Kedro does not name every file, nor the right line
            self._refuse_unreadable(folder, key)
            raise
        return OmegaConf.to_container(OmegaConf.unsafe_merge({}, *configs), resolve=False)

    def _refuse_unreadable(self, folder: str, key: str) -> None:
        """Refuse the first file of a layer that is no YAML or no mapping; the message has the file and the line."""
        for pattern in self.config_patterns[key]:
            for file in sorted(map(str, self._fs.glob(f"{folder}/{pattern}"))):
                if Path(file).suffix not in _SUFFIXES or self._is_hidden(file) or self._fs.isdir(file):
                    continue
                found = parse_yaml(self._fs.cat_file(file), file=file)
                if found is not None and not isinstance(found, Mapping):
                    raise UnreadableConfiguration(
                        f"{file}: expected a mapping of keys to values, found {show(found)}. Correct or remove it."
                    )


def parse_yaml(content: bytes, *, file: str) -> Any:
    """Parse YAML, with the numbers of OmegaConf (1e-3 is one); the types are those of YAML's core, without Python's.

    Raises:
        UnreadableConfiguration: it is no YAML in UTF-8, or repeats a key; the message has the file and the line.
    """
    try:
        return load(content.decode("utf-8"), Loader=get_yaml_loader())
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        reason = f"byte {content[error.start]:#04x} is not UTF-8"
    except (YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        position = content.count(b"\n") + 1 if mark is None else mark.line + 1
        if isinstance(getattr(error, "position", None), int):  # a character that YAML does not allow
            position = content.decode("utf-8")[: error.position].count("\n") + 1  # type: ignore[union-attr]
        line, reason = position, str(getattr(error, "problem", None) or error).splitlines()[0]
    raise UnreadableConfiguration(
        f"{file}, line {line}: cannot be read as YAML: {shorten(escape(mask(reason)), 200)}. Correct this line, or the "
        "one before."
    ) from None


def _is_read(name: str) -> bool:
    """Return whether Kedro reads a file of a layer; `name` is relative to the layer."""
    parts = Path(name).parts
    return name == _GLOBALS or (
        Path(name).suffix in _SUFFIXES and any(part.startswith(_STEMS) for part in (parts[0], parts[-1]))
    )


def parse_environment(environment: str, *, base: str, known: Iterable[str], source: str) -> tuple[str, ...]:
    """Parse an environment such as "tatoeba+mdlm" to its layers above `base`, lowest first.

    Args:
        environment: layers separated by `+`, or `base` alone for none.
        known: names of the layers that exist.
        source: the folder that contains them, for messages.

    Raises:
        ConfigurationError: a layer is empty, unknown or repeated.
    """
    if environment == base:
        return ()
    known = list(known)
    layers = tuple(environment.split(SEPARATOR))
    within = f" (in --env={environment})" if len(layers) > 1 else ""
    for position, layer in enumerate(layers, start=1):
        if not layer.strip():
            raise ConfigurationError(
                f"environment '{environment}': expected a name on each side of '{SEPARATOR}', found an empty layer at "
                f"position {position}. Remove the extra '{SEPARATOR}', or name a layer: {', '.join(known)}."
            )
        if layer == base:
            raise ConfigurationError(
                f"environment '{environment}': '{base}' is always the lowest layer. Leave it out of a combination."
            )
        if layer not in known:
            hint = nearest(layer, known)
            raise ConfigurationError(
                f"environment '{layer}' is not known{within}.{hint} Environments in {source}: {base}, "
                f"{', '.join(known)}. Combine several with '{SEPARATOR}'."
            )
        if layer in layers[: position - 1]:
            raise ConfigurationError(
                f"environment '{environment}': expected each layer once, found '{layer}' repeated. Keep it at one "
                "position; a later layer overrides an earlier one."
            )
    return layers


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers of configuration without changing them; `upper` overrides `lower`.

    Mappings are merged key by key; all other values, including lists, are replaced. If `upper` changes the `kind` of a
    mapping, it replaces the whole mapping, because a kind has exactly the keys that it reads and would refuse those of
    the other kind.
    """
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and not _changes_kind(below, value):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def _changes_kind(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> bool:
    return "kind" in lower and "kind" in upper and lower["kind"] != upper["kind"]


def _replace_keys(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    return {**lower, **upper}
