"""Small changes of a program: of Python by its syntax tree, of Lua line by line. Nothing is executed here."""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from pathlib import PurePath
from typing import Any, NamedTuple

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ENDS = (ast.Raise, ast.Return, ast.Continue, ast.Break)

_LUA: tuple[tuple[str, str], ...] = (
    (r"(?<=[^<>~=])<(?![<=])", "<="),
    (r"<=", "<"),
    (r"(?<=[^<>~=])>(?![>=])", ">="),
    (r">=", ">"),
    (r"==", "~="),
    (r"~=", "=="),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"\bnot ", ""),
    (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"),
    (r"(?<![\w.'])\d+(?![\w.'])", r"(\g<0> + 1)"),
    (r"(?<=\bif )(?!true\b|false\b).+?(?= then\b)", "false"),
    (r"(?<=\belseif )(?!true\b|false\b).+?(?= then\b)", "false"),
    # A key, or an element, is skipped: the first one of a loop.
    (r"(?<=\bfor \w = )([^,]+)(?=, [^,]+ do\b)", r"\1 + 1"),
    (r"(?<=\bfor \w = )([^,]+)(?=, [^,]+, ([^,]+) do\b)", r"\1 + \2"),
    (r"^(?:redis\.)?p?call\(.*\)$", ""),
    (r"^[\w.]+\[.+?\] = .*$", ""),
)
_LUA_STRING = re.compile(r"'[^']*'")


class Change(NamedTuple):
    """A piece of a file, and what takes its place. The `id` stays the same while its line and function do."""

    path: str
    place: str
    """The function, or the script."""
    line: int
    old: str
    new: str
    """The line before and after."""
    start: int
    end: int
    text: str
    """Bytes of the file, and what they are replaced by."""
    id: str = ""

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes(path: str, source: bytes) -> list[Change]:
    """Returns all changes of a file, in its order. Each has an id of its own."""
    found = (
        _lua(path, source) if PurePath(path).suffix == ".lua" else _inside(_Lines(path, source), ast.parse(source), ())
    )
    seen: Counter[str] = Counter()
    named = []
    for change in sorted(found, key=attrgetter("start", "end")):
        key = "\n".join((change.path, change.place, change.old, change.new))
        seen[key] += 1
        digest = hashlib.sha256(f"{key}\n{seen[key]}".encode()).hexdigest()
        named.append(change._replace(id=digest[:10]))
    return named


class _Lines:
    """The lines of a file, to make changes of its bytes."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def text(self, start: int, end: int) -> str:
        return self._source[start:end].decode()

    def span(self, node: Any) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def exchange(self, left: ast.AST, right: ast.AST, old: str, new: str) -> tuple[int, int, str]:
        """Replace what stands between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        return start, end, self.text(start, end).replace(old, new, 1)

    def change(self, place: str, start: int, end: int, text: str) -> Change:
        line = next(number for number, begin in enumerate(self._starts) if begin > start)
        begin = self._starts[line - 1]
        stop = max(end, self._source.find(b"\n", start) if b"\n" in self._source[start:] else len(self._source))
        old = self._source[begin:stop].decode()
        new = self._source[begin:start].decode() + text + self._source[end:stop].decode()
        return Change(self._path, place, line, " ".join(old.split()), " ".join(new.split()), start, end, text)


def _lua(path: str, source: bytes) -> Iterator[Change]:
    lines = _Lines(path, source)
    for number, line in enumerate(source.decode().splitlines(), 1):
        code = _LUA_STRING.sub(lambda found: "'" + "s" * (len(found[0]) - 2) + "'", line).split("--")[0].rstrip()
        indent = len(code) - len(code.lstrip())
        for pattern, new in _LUA:
            for found in re.finditer(pattern, code[indent:]):
                start, end = (lines.at(number, len(line[: indent + at].encode())) for at in found.span())
                yield lines.change(PurePath(path).stem, start, end, found.expand(new))


def _inside(lines: _Lines, node: ast.AST, names: tuple[str, ...], *, in_function: bool = False) -> Iterator[Change]:
    """Yields the changes of a node and of what is in it. Outside of functions, there are mostly names and settings."""
    if _is_said(node):
        return
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if is_function or isinstance(node, ast.ClassDef):
        names = (*names, getattr(node, "name", ""))
    elif in_function:
        for start, end, text in _replacements(lines, node, names[-1]):
            yield lines.change(".".join(names), start, end, text)
    for part in _parts(node):
        yield from _inside(lines, part, names, in_function=in_function or is_function)


def _replacements(lines: _Lines, node: ast.AST, function: str) -> Iterator[tuple[int, int, str]]:  # noqa: C901 - a table
    """Yields places, which are bytes of the file, and what they are replaced by."""
    match node:
        case ast.Raise() | ast.Continue() | ast.Break() | ast.Delete() | ast.AugAssign():
            yield *lines.span(node), "pass"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield *lines.span(node), "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) if function != "__init__":
            # A local variable is not forgotten: the next line would notice. Nor is an attribute from the beginning on.
            yield *lines.span(node), "pass"
        case ast.If(test=test) | ast.IfExp(test=test) if not _binds(test):
            # What a guard prevents happens, or a condition always holds.
            is_guard = isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _ENDS)
            yield *lines.span(test), str(not is_guard)
        case ast.Compare():
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield lines.exchange(left, right, *_COMPARISONS[type(operator)])
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield lines.exchange(node.left, node.right, *_OPERATORS[type(node.op)])
        case ast.BoolOp():
            for operand in (each for each in node.values if not _binds(each)):
                yield *lines.span(operand), str(isinstance(node.op, ast.And))
        case ast.UnaryOp(op=ast.Not()):
            start = lines.span(node)[0]
            yield start, start + len("not "), ""
        case ast.Constant(value=bool(value)):
            yield *lines.span(node), str(not value)
        case ast.Constant(value=int(value)):
            yield *lines.span(node), str(value + 1)
        case ast.Name(id=name) if name in _OTHER_NAMES:
            yield *lines.span(node), _OTHER_NAMES[name]
        case ast.keyword(arg=str()):
            start, end = lines.span(node)
            yield start, end + (lines.text(end, end + 1) == ","), ""


def _is_said(node: ast.AST) -> bool:
    """Returns whether this is only for people, or for the type checker: a message, a log line, a docstring."""
    match node:
        case (
            ast.JoinedStr()
            | ast.Expr(value=ast.Constant())
            | ast.Call(func=ast.Attribute(value=ast.Name(id="logger")))
            | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))))
            | ast.keyword(arg="strict")
            | ast.FunctionDef(name="__repr__")
        ):
            return True
    return False


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from node.body
        case ast.Raise():
            return  # its message
        case ast.AnnAssign():
            if node.value:
                yield node.value
        case _:
            yield from ast.iter_child_nodes(node)


def _binds(node: ast.AST) -> bool:
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
