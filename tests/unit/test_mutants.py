"""Which small changes `make mutants` makes of a program."""

import pytest

from tests.mutants.areas import AREAS
from tests.mutants.changes import changes


def changed(path: str, source: str) -> list[str]:
    """Returns the changed line of each change, in order."""
    found = changes(path, source.encode())
    for change in found:
        assert change.new in [" ".join(line.split()) for line in change.apply(source.encode()).decode().splitlines()]
    assert len({change.id for change in found}) == len(found)
    return [change.new for change in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", ["return a <= b"]),
        ("return a is not b", ["return a is b"]),
        ("return a not in b", ["return a in b"]),
        ("return a == b == c", ["return a != b == c", "return a == b != c"]),
        ("return (a + b) - c", ["return (a - b) - c", "return (a + b) + c"]),
        ("return a and b", ["return True and b", "return a and True"]),
        ("return a or b", ["return False or b", "return a or False"]),
        ("return not (a)", ["return (a)"]),
        ("return min(a, key=b)", ["return max(a, key=b)", "return min(a, )"]),
        ("return 1, True, 'x', 1.5, None", ["return 2, True, 'x', 1.5, None", "return 1, False, 'x', 1.5, None"]),
        ("return a if b else c", ["return a if True else c"]),
        ("if a: return b", ["if False: return b"]),
        ("if a: b = c", ["if True: b = c"]),
        ("if a := b: c = d", []),
        ("a(b)", ["pass"]),
        ("await a", ["pass"]),
        ("a.b = c", ["pass"]),
        ("a = b", []),
        ("a += b", ["pass"]),
        ("del a[b]", ["pass"]),
        ("raise A(1 + 1)", ["pass"]),
        ("logger.info('a', extra={'b': 1})", []),
        ("'''A docstring, 1 < 2.'''", []),
        ("return f'{1}'", []),
        ("a: int = 1", ["a: int = 2"]),
    ],
)
def test_python(line: str, expected: list[str]) -> None:
    assert changed("a.py", f"async def f(a):\n    {line}\n") == expected


def test_only_functions_are_changed() -> None:
    assert changed("a.py", "A = 1\n\nclass B:\n    c = 1\n\n    def __repr__(self):\n        return 1\n") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if a < b then return c end", ["if false then return c end", "if a <= b then return c end"]),
        ("if not a then b = c end", ["if a then b = c end", "if false then b = c end"]),
        ("local a = b ~= c and d", ["local a = b == c and d", "local a = b ~= c or d"]),
        ("local a = b - 12 -- c + 1", ["local a = b + 12 -- c + 1", "local a = b - (12 + 1) -- c + 1"]),
        ("local a = 'b < 1'", []),
        ("redis.call('DEL', a)", [""]),
        ("local a = redis.call('GET', b)", []),
        ("a[#a + b] = c", ["", "a[#a - b] = c"]),
        ("for i = a, b do", ["for i = a + 1, b do"]),
        ("for i = a, b, c do", ["for i = a + c, b, c do"]),
        ("-- a < b", []),
    ],
)
def test_lua(line: str, expected: list[str]) -> None:
    assert changed("a.lua", f"  {line}\n") == expected


def test_ids_stay_if_other_lines_change() -> None:
    source = "def f(a):\n    return a < 1\n"
    assert {change.id for change in changes("a.py", source.encode())} == {
        change.id for change in changes("a.py", f"\nb = 1\n\n{source}".encode())
    }


def test_enough_changes_are_in_a_sample() -> None:
    assert sum(area.number for area in AREAS) >= 200
