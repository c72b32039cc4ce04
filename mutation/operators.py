"""Mutants of Python source: each changes one expression or drops one statement, by replacing a range of bytes."""

import ast
import re
from dataclasses import dataclass
from itertools import pairwise

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
               "in": "not in", "not in": "in"}  # fmt: skip
ARITHMETIC = {"+": "-", "-": "+", "**": "*", "*": "/", "/": "*", "//": "*", "%": "//"}
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "argmax": "argmin", "argmin": "argmax", "sum": "mean",
    "floor": "ceil", "ceil": "floor", "clamp_min": "clamp_max", "clamp_max": "clamp_min",
}  # fmt: skip
WORDS = {"train": "test", "test": "validation", "validation": "train", "latest": "best", "best": "latest",
         "ema.safetensors": "model.safetensors", "model.safetensors": "ema.safetensors"}  # fmt: skip
"""Constants that name a split, a checkpoint or its weights, and another one of the same kind"""


@dataclass(frozen=True, order=True)
class Mutant:
    """One fault: bytes `start` to `stop` of a file are replaced by `after`."""

    path: str
    line: int
    start: int
    stop: int
    operator: str
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """Return the source with the fault.

        Raises:
            ValueError: the source differs from the one that the mutant was made from.
        """
        if source[self.start : self.stop].decode() != self.before:
            raise ValueError(f"{self.path}:{self.line}: expected {self.before!r}, found another text.")
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} [{self.operator}] {_short(self.before)} → {_short(self.after)}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file in the order of its lines."""
    visitor = _Visitor(path, source)
    visitor.visit(ast.parse(source))
    return sorted(set(visitor.found))


class _Visitor(ast.NodeVisitor):
    """Collects the mutants of one file; messages, annotations, docstrings, log lines and assertions have none."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        lengths = [len(line) for line in source.splitlines(keepends=True)]
        self.line_starts = [0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))]
        self.found: list[Mutant] = []

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self.line_starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self.line_starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, stop = self._span(node)
        return self.source[start:stop].decode()

    def _add(self, operator: str, span: tuple[int, int], after: str) -> None:
        before = self.source[span[0] : span[1]].decode()
        if before != after:
            line = self.source.count(b"\n", 0, span[0]) + 1
            self.found.append(Mutant(self.path, line, *span, operator, before, after))

    # -- nodes without mutants -------------------------------------------------------------------------------------

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._add("drop refusal", self._span(node), "pass")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "__repr__":
            for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
                self.visit(default)
            for statement in _without_docstring(node.body):
                self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in _without_docstring(node.body):
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # -- statements ------------------------------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call) or _is_log(node.value):
            return
        self._add("drop statement", self._span(node), "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self._add("drop statement", self._span(node), "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("drop statement", self._span(node), "pass")
        self.visit(node.value)

    # -- expressions -----------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, right in pairwise(sides):
            self._between("comparison", left, right, COMPARISONS)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(isinstance(part, (ast.JoinedStr, ast.List, ast.Tuple)) for part in (node.left, node.right)):
            self._between("arithmetic", node.left, node.right, ARITHMETIC)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in pairwise(node.values):
            self._between("boolean", left, right, {"and": "or", "or": "and"})
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
            self._add("unary", self._span(node), f"({self._text(node.operand)})")
        if not isinstance(node.operand, ast.Constant):
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        parts = (self._text(node.orelse), self._text(node.test), self._text(node.body))
        self._add("branches", self._span(node), "{} if {} else {}".format(*parts))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("flag", self._span(node), str(not value))
        elif isinstance(value, int):
            self._add("constant", self._span(node), str(value + 1))
        elif isinstance(value, float):
            self._add("constant", self._span(node), repr(2 * value if value else 1.0))
        elif isinstance(value, str) and value in WORDS and self._text(node)[0] in "\"'":
            self._add("word", self._span(node), f'"{WORDS[value]}"')

    def visit_Call(self, node: ast.Call) -> None:
        if _is_log(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            self._add("function", self._span(node.func), NAMES[node.func.id])
        elif isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
            stop = self._span(node.func)[1]
            self._add("function", (stop - len(node.func.attr), stop), NAMES[node.func.attr])
        named = [arg for arg in node.args if isinstance(arg, (ast.Name, ast.Attribute, ast.Subscript))]
        for one, two in pairwise(named):
            (start, middle), (again, stop) = self._span(one), self._span(two)
            gap = self.source[middle:again].decode()
            self._add("swap arguments", (start, stop), f"{self._text(two)}{gap}{self._text(one)}")
        if _is_strict_zip(node):  # an assertion about the lengths
            for arg in node.args:
                self.visit(arg)
            return
        everything = [*node.args, *(keyword.value for keyword in node.keywords)]
        for keyword in node.keywords:
            if keyword.arg is not None and len(everything) > 1:
                self._drop_keyword(keyword)
        self.generic_visit(node)

    def _drop_keyword(self, keyword: ast.keyword) -> None:
        start, stop = self._span(keyword)
        rest = re.match(rb"\s*,\s*", self.source[stop:])
        if rest is not None:
            self._add("drop keyword", (start, stop + rest.end()), "")
        elif (before := re.search(rb",\s*\Z", self.source[:start])) is not None:
            self._add("drop keyword", (before.start(), stop), "")

    def _between(self, operator: str, left: ast.AST, right: ast.AST, table: dict[str, str]) -> None:
        start, stop = self._span(left)[1], self._span(right)[0]
        gap = self.source[start:stop].decode()
        words = "|".join(sorted((re.escape(word) for word in table), key=len, reverse=True))
        if (match := re.search(rf"(?<![\w])(?:{words})(?![\w*/=<>])|(?:{words})", gap)) is None:
            return
        after = table[match[0]]
        at = start + len(gap[: match.start()].encode())
        self._add(operator, (at, at + len(match[0])), after)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_text else body


def _is_log(call: ast.Call) -> bool:
    """Whether a call writes a log line."""
    function = call.func
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in ("log", "logger", "logging")


def _is_strict_zip(call: ast.Call) -> bool:
    """Whether a call is `zip(..., strict=True)`."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "zip"):
        return False
    return any(isinstance(keyword.value, ast.Constant) and keyword.value.value is True for keyword in call.keywords)


def _short(text: str) -> str:
    flat = " ".join(text.split()) or "(nothing)"
    return flat if len(flat) <= 60 else f"{flat[:57]}…"
