"""Configuration loader for several environments at once: `--env=tatoeba+mdlm` layers base, then tatoeba, then mdlm.

Kedro builds this loader for every command (`run`, `viz`, `ipython`, `catalog`, `%reload_kedro`), because `settings.py`
names it as `CONFIG_LOADER_CLASS`. docs/configuration.md explains the layers to users.
"""

import functools
import logging
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import click
import yaml
from kedro.config import OmegaConfigLoader
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from mm_ldlm.core import ConfigurationError, mask, nearest, reason_of, show

log = logging.getLogger(__name__)

SEPARATOR = "+"
"""Separator of the layers of an environment."""
TYPES = ("parameters", "catalog", "credentials")
"""Types of configuration; the name of a file, or of its folder, begins with its type."""
_GLOBALS = "globals.yml"
_SUFFIXES = (".yml", ".yaml", ".json")
_IGNORED = (".md", "~", ".bak", ".orig", ".swp")
"""Ends of the names of files that hold no configuration."""
MOST_BYTES, MOST_VALUES = 200_000, 5_000
"""Size of a file, and number of its values once every alias is replaced by what it stands for"""


class UnreadableConfiguration(ConfigurationError, click.ClickException):
    """An error of the loader. Every Kedro command prints its message instead of a traceback."""


class LayeredConfigLoader(OmegaConfigLoader):
    """Kedro's loader, with an environment of one or several layers above base.

    Layers are merged before `${...}` is resolved, so that a reference uses the value of the last layer. Configuration
    types with the merge strategy "soft" are merged by `merge`; for other types a layer replaces whole top-level keys.
    """

    def for_environment(self, env: str, params: dict[str, Any]) -> Self:
        """Make the loader of another environment of the same configuration."""
        return type(self)(
            self.conf_source, env=env, runtime_params=params, base_env=self.base_env,
            default_run_env=self.default_run_env, merge_strategy=self.merge_strategy,
            custom_resolvers=self._custom_resolvers,
        )  # fmt: skip

    def layers(self) -> tuple[str, ...]:
        """List the folders to read, lowest first: base, then the layers of the environment."""
        root = self._get_conf_env_path("")
        if not self._fs.isdir(root):
            raise ConfigurationError(
                f"expected the folder of the configuration at {root}, found none. Run the command in the folder of the "
                "project, or name the folder with --conf-source."
            )
        folders = [str(path).rstrip("/") for path in self._fs.ls(root, detail=False) if self._fs.isdir(path)]
        names = sorted({Path(folder).name for folder in folders} - {self.base_env})
        names = [name for name in names if not name.startswith(".")]
        if self.env:
            chosen = parse_environment(self.env, base=self.base_env, known=names, source=str(self.conf_source))
            return (self.base_env, *chosen)
        # The default environment may be absent: it is the user's own, and git ignores its files.
        return (self.base_env, *(name for name in names if name == self.default_run_env))

    def __getitem__(self, key: str) -> dict[str, Any]:
        """Read one type of configuration from all layers.

        Raises:
            UnreadableConfiguration: the environment is not known; a file is not YAML, sets a key twice or is not a
                mapping; a reference `${...}` cannot be resolved; or the folder of the data is not a folder.
            MissingConfigException: (as in Kedro) there is no file for this type.
        """
        try:
            if key == "catalog":
                refuse_other_folders({**self._globals, **(self.runtime_params or {})})
            self._register_globals_resolver()  # OmegaConf has one for all loaders: Kedro leaves the newest loader's
            return super().__getitem__(key)
        except ConfigurationError as error:
            reason = str(error)
        except (OmegaConfBaseException, ValueError, RecursionError, TypeError, AttributeError, OSError) as error:
            reason = (
                f"the configuration '{key}' of the environment '{self.env or self.default_run_env}' in "
                f"{self.conf_source} cannot be read: {reason_of(error, 1000)}. Correct the file that it names."
            )
        raise UnreadableConfiguration(mask(reason))

    def _read_raw_config(self, key: str) -> tuple[dict[Path, DictConfig], dict[Path, DictConfig], str, str, set[Path]]:
        # Kedro reads base and one environment here, then resolves and merges the two. All layers and the runtime
        # parameters are merged here instead and returned as base, with nothing left to merge above it.
        layers: list[Any] = []
        files: set[Path] = set()
        for layer in self.layers():
            found = dict(self._read_layer(layer, key))
            leaves = {file: dict.fromkeys(self._get_all_keys(content)) for file, content in found.items()}
            self._check_duplicates("", leaves if key == "parameters" else found)
            layers.append(functools.reduce(merge, found.values(), dict[str, Any]()))
            files |= found.keys()
        if key == "parameters" and files:  # without a parameters file Kedro warns and uses only these
            layers.append(self.runtime_params or {})
            for line in replacements([*self.layers(), "--params"], layers):
                _log_once(line)
        combine = merge if self.merge_strategy.get(key) == "soft" else operator.or_
        merged: Mapping[str, Any] = functools.reduce(combine, layers)
        return {Path(self.base_env): OmegaConf.create(dict(merged))}, {}, self.base_env, str(self.env), files

    def _read_layer(self, layer: str, key: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Read the files of one type in a layer; refuse files that no type of configuration reads."""
        folder = str(self._get_conf_env_path(layer)).strip("/")
        for file in sorted(map(str, self._fs.find(self._get_conf_env_path(layer)))):
            name = file.partition(f"{folder}/")[2] or Path(file).name
            parts = Path(name).parts
            if any(part.startswith((".", "_")) for part in parts) or name.endswith(_IGNORED):
                continue
            kinds = [kind for kind in TYPES if any(part.startswith(kind) for part in (parts[0], parts[-1]))]
            kinds = ["globals"] if name == _GLOBALS else kinds if Path(name).suffix in _SUFFIXES else []
            if not kinds:
                hint = nearest(parts[0].split(".")[0] + ".yml", [f"{kind}.yml" for kind in (*TYPES, "globals")])
                raise ConfigurationError(
                    f"environment '{layer}': no command reads its file {show(name)}.{hint} Expected {_GLOBALS}, or "
                    "YAML or JSON whose name or folder begins with parameters, catalog or credentials. Rename it, or "
                    "remove it."
                )
            if key in kinds:
                content: Any = self._read_file(file)
                if key == "credentials":
                    credentials = OmegaConf.create(content)
                    self._resolve_environment_variables(credentials)
                    content = OmegaConf.to_container(credentials)
                yield Path(file), content

    def _read_file(self, file: str) -> dict[str, Any]:
        found: Any = "another one"
        if self._fs.isfile(file) and self._fs.size(file) <= MOST_BYTES:
            found = _parsed(self._fs.cat_file(file), file=file) or {}
        if not (isinstance(found, dict) and all(isinstance(key, str) for key in found)):
            raise UnreadableConfiguration(
                f"{file}: expected a file of at most {MOST_BYTES:,} bytes with a mapping of texts to values, found "
                f"{show(found)}. Correct or remove it."
            )
        return found


def refuse_other_folders(values: Mapping[str, Any]) -> None:
    """Refuse values of `data`, `features`, `results` and `run` that are not paths on this machine."""
    for name in ("data", "features", "results", "run"):
        value = values.get(name, "")
        if not isinstance(value, str) or "://" in value or "\0" in value:
            raise ConfigurationError(
                f"parameter '{name}': expected the path of a folder on this machine, found {show(value)}. Mount other "
                "storage, and give its folder."
            )


def parse_environment(environment: str, *, base: str, known: list[str], source: str) -> tuple[str, ...]:
    """Parse an environment such as "tatoeba+mdlm" to its layers above `base`, lowest first.

    Args:
        environment: layers separated by `+`, or `base` alone for none.
        known: names of the layers that exist.
        source: the folder that contains them, for messages.

    Raises:
        ConfigurationError: a layer is empty, unknown or repeated.
    """
    layers = () if environment == base else tuple(environment.split(SEPARATOR))
    for position, layer in enumerate(layers):
        if layer not in known or layer in layers[:position]:
            fault = "repeated" if layer in known else "not known"
            within = f" (in --env={environment})" if len(layers) > 1 else ""
            raise ConfigurationError(
                f"environment '{layer}' is {fault}{within}.{nearest(layer, known)} Environments in {source}: {base}, "
                f"which is always the lowest layer, {', '.join(known)}. Combine several with '{SEPARATOR}', each once."
            )
    return layers


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers of configuration without changing them; `upper` overrides `lower`.

    Mappings are merged key by key; all other values, including lists, are replaced. If `upper` changes the `kind` of a
    mapping, it replaces the entire mapping, because a kind has exactly the keys that it reads and would refuse
    the others.
    """
    merged = dict(lower)
    for key, value in upper.items():
        below: Any = merged.get(key)
        mappings = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if mappings and not _is_other(below, value) else value
    return merged


def replacements(names: list[str], layers: list[dict[str, Any]]) -> Iterator[str]:
    """Describe, for each layer, the sections of lower layers above base that it replaces by another kind."""
    merged, above = layers[0], set[str]()
    for name, layer in zip(names[1:], layers[1:], strict=True):
        lost = [
            f"{key} ({merged[key]['kind']})" for key in layer if key in above and _is_other(merged[key], layer[key])
        ]
        if lost:
            yield f"{name} sets other kinds; dropped: {', '.join(lost)}"
        merged, above = merge(merged, layer), above | layer.keys()


def _is_other(below: Any, value: Any) -> bool:
    """Return whether two values are mappings of different kinds."""
    both = isinstance(below, Mapping) and isinstance(value, Mapping) and "kind" in below.keys() & value.keys()
    return both and below["kind"] != value["kind"]


@functools.cache
def _log_once(line: str) -> None:  # Kedro reads the parameters several times in a run
    log.info("%s", line)


# --- texts ------------------------------------------------------------------------------------------------------------


def parse_yaml(content: bytes, *, file: str) -> Any:
    """Parse YAML, with the numbers of OmegaConf (1e-3 is one); the types are as in the YAML core schema.

    Raises:
        UnreadableConfiguration: it is not YAML in UTF-8, repeats a key, or has too many values once every alias is
            replaced by what it stands for; the message has the file and the place.
    """
    try:
        loader = get_yaml_loader()(content.decode("utf-8"))
        node = loader.get_single_node()  # not yet constructed: merge keys (<<) copy what they name
        if _size(node, {}) <= MOST_VALUES:
            return None if node is None else loader.construct_document(node)
        fault = f"expected at most {MOST_VALUES:,} values, found more"
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError) as error:
        fault = reason_of(error, 1000)
    raise UnreadableConfiguration(f"{file} cannot be read as YAML: {fault}. Correct this place, or the line before.")


_parsed = functools.lru_cache(maxsize=512)(parse_yaml)  # a comparison reads the same files for each of its members


def _size(node: Any, known: dict[int, int]) -> int:
    """Count the values in a tree, repeated for each alias; `known` has the counts of mappings and lists by id."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1  # of a value that contains itself
        inner = [each[1] for each in node.value] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(item, known) for item in inner)
    return known[id(node)]
