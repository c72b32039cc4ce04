"""Registries of named components, and kinds: the configurations that the key `kind` of a parameter can choose.

`mm_ldlm.core.typed` turns mappings into configurations; here the component of a name is found, imported and checked.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import signal
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, distributions
from typing import Any, Protocol

from mm_ldlm.core.errors import ConfigurationError, MMLDLMError
from mm_ldlm.core.messages import nearest, reason_of, show

MARK = "_made_by_mm_ldlm_config"
"""Attribute of the classes that the decorator `config` made; a subclass without the decorator is not one of them."""
CONTRIBUTORS = ("families", "extras")
"""Folders of this package whose subpackages contribute components, listed in `COMPONENTS` of their `__init__.py`"""


@functools.cache
def contributed(group: str) -> dict[str, str]:
    """Collect what the installed families and extras contribute to a registry: name → "module:Name".

    Each of them lists its components as `COMPONENTS = {group: {name: "module:Name"}}`, without importing them.
    """
    found: dict[str, str] = {}
    for folder in CONTRIBUTORS:
        package = importlib.import_module(f"mm_ldlm.{folder}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            found |= importlib.import_module(module.name).COMPONENTS.get(group, {})
    return found


@functools.cache
def registered() -> list[EntryPoint]:
    """List what other packages register, of all groups. The installed packages are read once."""
    points = (point for distribution in distributions() for point in distribution.entry_points)
    return [point for point in points if point.group.startswith("mm_ldlm.")]


@dataclasses.dataclass(frozen=True)
class Registry:
    """Named components of one group: from the core, the families and extras, and other packages.

    A component is imported when it is used. Another package registers its own under the entry-point group
    `mm_ldlm.GROUP`.

    Attributes:
        what: the component in words ("text sampler"), for messages.
        core: name → "module:Name" of the components outside families and extras.
        group: name of the group.
    """

    what: str
    core: Mapping[str, str] = dataclasses.field(hash=False)  # `Annotated[Any, KINDS] | None` hashes its metadata
    group: str

    @property
    def known(self) -> dict[str, str]:
        """Name → "module:Name" of every component of this package."""
        return {**self.core, **contributed(self.group)}

    @property
    def external(self) -> dict[str, str]:
        """The same for the components that other packages registered."""
        return {point.name: point.value for point in registered() if point.group == f"mm_ldlm.{self.group}"}

    def __iter__(self) -> Iterator[str]:
        return iter(self.known | self.external)

    def load(self, name: str) -> Any:
        """Import the component of a name.

        Raises:
            KeyError: there is none.
            ConfigurationError: it cannot be imported.
        """
        return import_object(self.known.get(name) or self.external[name], f"{self.what} '{name}'")


@dataclasses.dataclass(frozen=True)
class Kinds(Registry):
    """Registry of the configurations that a parameter with the key `kind` can become.

    A component from another package needs no entry here: it is found under an entry point, or `kind` is its import
    path, as in `kind: my_package.models:MyModelConfig`.

    Attributes:
        interface: the protocol that every configuration of the group satisfies, wherever it comes from.
    """

    interface: type

    def find(self, kind: Any, *, at: str) -> type:
        """Return the configuration class of a kind.

        Raises:
            ConfigurationError: `kind` is not a known name, an entry point or the import path of a configuration; or its
                class is not one of the group.
        """
        name = kind if isinstance(kind, str) else ""
        path = self.known.get(name) or self.external.get(name) or (name if is_import_path(name) else None)
        if path is None:
            raise ConfigurationError(
                f"parameter '{at}.kind': expected {with_article(self.what)}, found {show(kind)}.{nearest(kind, self)} "
                f"Choose from: {', '.join(self)}."
            )
        found = import_object(path, f"parameter '{at}.kind'")
        if not (isinstance(found, type) and MARK in vars(found)) or inspect.isabstract(found):
            names = vars(found).get("__abstractmethods__", ()) if inspect.isabstract(found) else ()
            lacking = "".join(f" without {name}" for name in sorted(names))
            raise ConfigurationError(
                f"parameter '{at}.kind': expected a class made by mm_ldlm.core.config that defines its methods, "
                f"found {path}{lacking}. Choose one of the known kinds: {', '.join(self)}."
            )
        self.check(found, path, at=f"{at}.kind")
        return found

    def check(self, found: type, name: str, *, at: str) -> None:
        """Raise ConfigurationError unless a class has every member of the interface; `name` stands for it."""
        has = {*dir(found), *getattr(found, "__dataclass_fields__", {})}
        if missing := [member for member in _members(self.interface) if member not in has]:
            raise ConfigurationError(
                f"parameter '{at}': expected {with_article(self.what)}, found {name}, which is not one: it has no "
                f"{', '.join(repr(member) for member in missing)} ({self.interface.__module__}."
                f"{self.interface.__name__}). Choose {with_article(self.what)}: {', '.join(self.known)}."
            )


def with_article(words: str) -> str:
    """Return words with their indefinite article: "a model", "an encoder"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def is_import_path(kind: str) -> bool:
    """Return whether a string has the form package.module:Class."""
    module, colon, name = kind.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def import_object(path: str, what: str) -> Any:
    """Import `module:name`; ConfigurationError for everything that the import of another package can raise."""
    module, _, name = path.partition(":")
    with foreign_code(lambda reason: ConfigurationError(
        f"{what}: {path} cannot be imported ({reason}). Correct the path, or install or correct its package."
    )):  # fmt: skip
        return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def foreign_code(refusal: Callable[[str], Exception], *errors: type[BaseException]) -> Iterator[None]:
    """Run code of another package: what it raises becomes `refusal(reason)`, also GeneratorExit and SystemExit.

    Errors of this project, Ctrl-C and the SystemExit of a SIGTERM pass, and all but `errors` where these are given.
    """
    try:
        yield
    except BaseException as error:
        passes = isinstance(error, (MMLDLMError, KeyboardInterrupt)) or not isinstance(error, errors or BaseException)
        if passes or getattr(error, "code", 0) == 128 + signal.SIGTERM:
            raise
        raise refusal(reason_of(error)) from error


def _members(interface: type) -> list[str]:
    """List the public attributes, properties and methods of a protocol, in their order."""
    classes = [each for each in reversed(interface.__mro__) if each not in (object, Protocol)]
    names = [name for each in classes for name in (*vars(each).get("__annotations__", {}), *vars(each))]
    return list(dict.fromkeys(name for name in names if not name.startswith("_")))
