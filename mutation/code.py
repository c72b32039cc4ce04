"""Plant a fault in functions that are already loaded, by replacing their code."""

import gc
from types import CodeType, FunctionType


def changed_functions(source: bytes, changed: bytes, file: str) -> dict[tuple[str, int], CodeType] | None:
    """Return the new code of the functions that differ between two versions of a file, by name and first line.

    None means that loaded functions cannot show the fault, because it is in a class body, in a default value or at the
    level of the module: the file has to be imported again.
    """
    old, new = compile(source, file, "exec"), compile(changed, file, "exec")
    found: dict[tuple[str, int], CodeType] = {}
    return found if _collect(old, new, found) else None


def _collect(old: CodeType, new: CodeType, found: dict[tuple[str, int], CodeType]) -> bool:
    """Collect the differing functions below a module or a class; whether the fault lies in functions alone."""
    inner = [[item for item in code.co_consts if isinstance(item, CodeType)] for code in (old, new)]
    rest = [[item for item in code.co_consts if not isinstance(item, CodeType)] for code in (old, new)]
    if len(inner[0]) != len(inner[1]) or repr(rest[0]) != repr(rest[1]):
        return False
    if (old.co_code, old.co_names) != (new.co_code, new.co_names):
        return False
    for one, two in zip(*inner, strict=True):
        if one == two:
            continue
        is_function = bool(one.co_flags & 0x2)  # CO_NEWLOCALS: not the body of a class
        if is_function:
            found[one.co_qualname, one.co_firstlineno] = two
        elif not _collect(one, two, found):
            return False
    return True


def replace_code(functions: dict[tuple[str, int], CodeType], file: str) -> int:
    """Give loaded functions of a file their new code, and return how many there were.

    Raises:
        ValueError: the new code uses other variables of an enclosing function than the old one.
    """
    count = 0
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == file:
            code = functions.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is not None:
                function.__code__ = code
                count += 1
    return count
