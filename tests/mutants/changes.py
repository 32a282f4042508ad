"""Small changes of a program: of Python by its syntax tree, of Lua line by line. Nothing is executed here."""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
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
        """Returns the changed file."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes(path: str, source: bytes) -> list[Change]:
    """Returns all changes of a file, in its order. Each has an id of its own."""
    found = sorted(_lua(path, source) if PurePath(path).suffix == ".lua" else _python(path, source), key=_place)
    seen: Counter[str] = Counter()
    named = []
    for change in found:
        key = "\n".join((change.path, change.place, change.old, change.new))
        seen[key] += 1
        digest = hashlib.sha256(f"{key}\n{seen[key]}".encode()).hexdigest()
        named.append(change._replace(id=digest[:10]))
    return named


def _place(change: Change) -> tuple[int, int]:
    return change.start, change.end


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


def _python(path: str, source: bytes) -> Iterator[Change]:
    finder = _Finder(_Lines(path, source))
    finder.look(ast.parse(source))
    return iter(finder.found)


class _Finder:
    """Collects the changes inside functions: outside, there are mostly names and settings."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._names: list[str] = []
        self._functions = 0
        self.found: list[Change] = []
        self._rules: dict[type[ast.AST], Callable[[Any], None]] = {
            ast.Expr: self._drop_call,
            ast.Assign: self._drop_stored,
            ast.Raise: self._drop,
            ast.Continue: self._drop,
            ast.Break: self._drop,
            ast.Delete: self._drop,
            ast.AugAssign: self._drop,
            ast.If: self._decide,
            ast.IfExp: self._decide,
            ast.Compare: self._compare,
            ast.BinOp: self._calculate,
            ast.BoolOp: self._ignore_operand,
            ast.UnaryOp: self._drop_not,
            ast.Constant: self._move,
            ast.Name: self._rename,
            ast.keyword: self._drop_keyword,
        }

    def look(self, node: ast.AST) -> None:
        """Find the changes of a node and of what is in it."""
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if _is_said(node):
            return
        if is_function or isinstance(node, ast.ClassDef):
            self._names.append(getattr(node, "name", ""))
        self._functions += is_function
        if self._functions and not is_function and (rule := self._rules.get(type(node))):
            rule(node)
        for part in _parts(node):
            self.look(part)
        self._functions -= is_function
        if is_function or isinstance(node, ast.ClassDef):
            self._names.pop()

    def _replace(self, node: ast.AST, text: str, within: tuple[int, int] | None = None) -> None:
        start, end = within or self._span(node)
        self.found.append(self._lines.change(".".join(self._names), start, end, text))

    def _span(self, node: Any) -> tuple[int, int]:
        return self._lines.at(node.lineno, node.col_offset), self._lines.at(node.end_lineno, node.end_col_offset)

    def _exchange(self, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Replace what stands between two operands."""
        between = self._span(left)[1], self._span(right)[0]
        self._replace(left, self._lines.text(*between).replace(old, new, 1), between)

    def _drop(self, node: ast.stmt) -> None:
        self._replace(node, "pass")

    def _drop_call(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._drop(node)

    def _drop_stored(self, node: ast.Assign) -> None:
        """A local variable is not forgotten: the next line would notice. Nor is an attribute from the beginning on."""
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript) and self._names[-1] != "__init__":
            self._drop(node)

    def _decide(self, node: ast.If | ast.IfExp) -> None:
        """What a guard prevents happens, or a condition always holds."""
        if not _binds(node.test):
            is_guard = isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _ENDS)
            self._replace(node.test, "False" if is_guard else "True")

    def _compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._exchange(left, right, *_COMPARISONS[type(operator)])

    def _calculate(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS:
            self._exchange(node.left, node.right, *_OPERATORS[type(node.op)])

    def _ignore_operand(self, node: ast.BoolOp) -> None:
        for operand in node.values:
            if not _binds(operand):
                self._replace(operand, str(isinstance(node.op, ast.And)))

    def _drop_not(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._span(node)[0]
            self._replace(node, "", (start, start + len("not ")))

    def _move(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))

    def _rename(self, node: ast.Name) -> None:
        if node.id in _OTHER_NAMES:
            self._replace(node, _OTHER_NAMES[node.id])

    def _drop_keyword(self, node: ast.keyword) -> None:
        if node.arg:
            start, end = self._span(node)
            self._replace(node, "", (start, end + (self._lines.text(end, end + 1) == ",")))


def _is_said(node: ast.AST) -> bool:
    """Returns whether this is only for people, or for the type checker: a message, a log line, a docstring."""
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="logger")))):
            return True
        case ast.keyword(arg="strict"):
            return True
        case ast.FunctionDef(name="__repr__"):
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
