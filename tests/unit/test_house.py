"""The shape of the code: one home for the places of stored bytes, and one for the list of resources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.resources import KINDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "leadview", "projector", "schemas")
LAYOUTS = ROOT / "schemas" / "layouts.py"
"""The home of such places."""

# A number that is a place in a stored value. 0 and 1 are the beginning of any text, -1 is its end.
PLACE_IN_LUA = re.compile(
    r"\bsub\((?:[^()]|\([^()]*\))*?,\s*-?(?:[2-9]|\d{2,})\b|'(?:GETRANGE|SETRANGE)'[^)]*,\s*(?:[2-9]|\d{2,})\b"
    r"|(?:struct\.unpack|unpack_bytes)\([^()]*,\s*\d+\)"
)


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def literal_slices(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Slice) and node.step is None:
            places = [bound.value for bound in (node.lower, node.upper) if isinstance(bound, ast.Constant)]
            if any(isinstance(place, int) and place > 1 for place in places):
                yield f"line {node.lineno}: [{ast.unparse(node)}]"


def test_no_place_in_a_stored_value_is_a_literal() -> None:
    found = [f"{name(path)} {place}" for path in sources() if path != LAYOUTS for place in literal_slices(path)]
    assert found == [], "name it in schemas/layouts.py"


def test_no_place_in_a_script_is_a_literal() -> None:
    found = [
        f"{name(path)} line {number}: {line.strip()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.lua")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if PLACE_IN_LUA.search(line.partition("--")[0])
    ]
    assert found == [], "name it in schemas/layouts.py, which is put in front of every script"


@pytest.mark.parametrize(
    "line",
    [
        "return string.sub(stored_lead, 157, 192)",
        "local hash = string.sub(value, 29, 34)",
        "redis.call('GETRANGE', KEYS[k], 0, 191)",
        "redis.call('SETRANGE', name, 37, first)",
        "local at, length = struct.unpack('<I3I3', value, 35)",
        "x = string.sub(string.sub(a, 1, HEAD), 23)",
        "return sub(stored_lead, 157, 192)",
        "local at, length = unpack_bytes('<I3I3', value, 35)",
    ],
)
def test_the_check_of_scripts_finds_literals(line: str) -> None:
    assert PLACE_IN_LUA.search(line)


WRITTEN = [path for package in (*PACKAGES, "bench", "devstack") for path in sorted((ROOT / package).rglob("*.py"))]
NAMES = {name for kind in KINDS for name in (kind.noun, kind.topic)}


def lists_of_kinds(source: str) -> Iterator[str]:
    """The literal lists, tuples, sets and dictionaries in a source that name two kinds of entity or more."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
                values = {item.value for item in items if isinstance(item, ast.Constant)}
                if len(values & NAMES) > 1:
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_list_of_resources_is_a_literal() -> None:
    """A resource that is added would be missing there."""
    found = [f"{name(path)} {each}" for path in WRITTEN for each in lists_of_kinds(path.read_text("utf-8"))]
    assert found == [], "let it follow the rows of schemas/resources.py (KINDS, RESOURCES, BY_TOPIC)"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("TOPICS = ('leads', 'contacts')", id="topics"),
        pytest.param("for noun in ['lead', 'organization']: pass", id="nouns"),
        pytest.param("READ = {'contacts': contact, 'leads': lead}", id="keys"),
    ],
)
def test_the_check_of_lists_finds_literals(source: str) -> None:
    assert len(list(lists_of_kinds(source))) == 1
