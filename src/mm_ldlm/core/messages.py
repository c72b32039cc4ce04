"""Values in messages: short, on one line, without credentials and without characters that a terminal cannot show."""

import difflib
import json
import os.path
import re
import reprlib
import shlex
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from mm_ldlm.core.credentials import mask, mask_values
from mm_ldlm.core.errors import LONGEST, MMLDLMError, shorten


def escape(text: str) -> str:
    """Return `text` with every character that UTF-8 cannot encode, and every line break, as an escape sequence."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 4, 200, 60, 200
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 12


def show(value: Any, longest: int = LONGEST) -> str:
    """Return a short representation of any value for a message: one line of `longest` characters, no credentials."""
    try:
        value = mask_values(_beginning(value))
        return shorten(escape(mask(_SHORT.repr(value))), longest)
    except (Exception, GeneratorExit):  # the value's own __repr__
        return f"<{type(value).__name__}>"


def _beginning(value: Any, depth: int = 5) -> Any:
    """Return a value without what is never shown: masking all of a large one would take long."""
    if isinstance(value, str) and len(value) > 4000:
        return value[:2000] + value[-2000:]
    if depth and isinstance(value, Mapping):
        return {key: _beginning(item, depth - 1) for key, item in islice(value.items(), 13)}
    if depth and type(value) in (list, tuple):  # a list of parameters becomes a tuple when it is parsed
        return [_beginning(item, depth - 1) for item in value[:13]]
    return value


def reason_of(error: BaseException, longest: int = 300) -> str:
    """Return the class and the text of any exception on one line, without credentials.

    The file and line of the user's own code that it passed through last follow, if there are such.
    """
    name = "" if isinstance(error, MMLDLMError) else type(error).__name__
    where = f" at {place}" if (place := own_place(error)) else ""
    try:
        text = " ".join(str(error)[:10_000].split())
        return shorten(escape(mask(": ".join(filter(None, (name, text))))), longest) + where
    except (Exception, GeneratorExit):  # the exception's own __str__
        return name + where


_NOT_OWN = tuple(
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(os.path.dirname(__file__)),
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    )
)
"""Folders of code that is not the user's own"""


def own_place(error: BaseException) -> str:
    """Return FILE:LINE of the last line of the user's own code that an exception passed through; "" without one."""
    own = [
        f"{escape(os.path.basename(frame.filename))}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.isabs(frame.filename) and not frame.filename.startswith(_NOT_OWN)
    ]
    return own[-1] if own else ""


def duration(seconds: float) -> str:
    """Format seconds: "42 s", "7 min 01 s", "2 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return " Did you mean '…'?" with the known name that is most like `name`; an empty text if none is, or if `name`
    is not a string. `name` itself is never proposed: a file of that name may be there, but of another type.
    """
    if not isinstance(name, str):
        return ""
    others = [each for each in known if each != name]
    near = difflib.get_close_matches(name[:100], others, n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


def slug(text: str) -> str:
    """Convert a text to lower-case letters, digits and '_', as a part of a key."""
    return re.sub(r"[\W_]+", "_", text.lower()).strip("_")


def setting(key: str, value: Any) -> str:
    """Quote the option that sets a parameter as a command in a message: `--params 'a.b="c; d"'`, in backticks."""
    return f"`{override(key, value)}`"


def override(key: str, value: Any) -> str:
    """Return the option of a command line that sets a parameter, quoted for a shell."""
    plain = not isinstance(value, str) or re.fullmatch(
        r"(?i)(?!(true|false|null|yes|no|on|off)$)[a-z_/][\w./*-]*", value
    )
    return f"--params {shlex.quote(f'{key}={value if plain else json.dumps(value, ensure_ascii=False)}')}"


def summarise(problems: Sequence[str]) -> str:
    """Join problems, one per line; from the third on only their beginnings, which name the parameters."""
    lines = [line for problem in problems for line in problem.splitlines()]
    if len(lines) > 3:
        further = [line.partition(": ")[0] for line in lines[2:]]
        named = "; ".join(shorten(text, 120) for text in further[:12])
        lines = [*lines[:2], f"and {len(further)} more: {named}{'; …' if len(further) > 12 else ''}"]
    return "\n".join(shorten(line, LONGEST * 3 // (2 * len(lines))) for line in lines)
