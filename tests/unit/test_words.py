"""The program never takes its own sentences apart: what it stores and compares are kinds, and words are made in one
module. Read from the source, so a sentence that is added is found.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import words

ROOT = Path(__file__).parents[2]
CONVERTED = [
    *sorted((ROOT / "projector" / "line").glob("*.py")),
    *(
        ROOT / name
        for name in (
            "projector/change.py",
            "projector/dead_letter.py",
            "projector/interpret.py",
            "projector/record.py",
            "projector/unknown_fields.py",
            "schemas/faults.py",
            "schemas/heartbeat.py",
        )
    ),
]
SENTENCE = re.compile(r"[A-Za-z]{2,} [a-z]+ [a-z]{2,}")
"""Three words. Values of `expected` may be such phrases: they are shown, and never compared."""
MSGSPEC = {
    "JSON is malformed: ",
    "Object missing required field",
    "Expected `object`",
    "Number out of range",
    "Input data was truncated",
}
"""The beginnings of what msgspec says. `schemas/faults.py` alone takes that apart (tests/unit/test_faults.py)."""
DATA = {"Fault", "of_header"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sentences(source: str) -> Iterator[str]:
    """The texts of three words or more that are neither documentation, nor logged, nor the message of an error that is
    raised, nor what a fault says was expected.
    """
    tree = ast.parse(source)
    ignored: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                ignored.add(node.value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "defect"))):
                ignored |= set(ast.walk(node))
            case ast.Call(func=ast.Name(id=called)) if called in DATA or called in ("Unavailable", "TypeError"):
                ignored |= set(ast.walk(node))
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in ignored and SENTENCE.search(text):
                if not text.startswith(tuple(MSGSPEC)):
                    yield f"line {node.lineno}: {text}"


@pytest.mark.parametrize("path", CONVERTED, ids=name)
def test_no_words_are_made_elsewhere(path: Path) -> None:
    assert list(sentences(path.read_text("utf-8"))) == [], "give it a kind, and say it in schemas/words.py"


@pytest.mark.parametrize(
    "source",
    [
        'if reason.startswith("the message key"): pass',
        'x = f"{a} of the last {b} records"',
        'raise BadRecord("the JSON is nested too deeply")',
        '_KINDS = [("limit", re.compile("is nested too deeply"))]',
    ],
)
def test_the_check_finds_sentences(source: str) -> None:
    assert list(sentences(source))


def test_the_words_take_nothing_apart() -> None:
    """A function of the words module returns a text, and looks into none."""
    tree = ast.parse(Path(words.__file__).read_text("utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert used & {"split", "removeprefix", "removesuffix", "find", "search", "match", "fullmatch"} == set()


@pytest.mark.parametrize(
    ("called", "command"),
    [
        pytest.param("/opt/leadview/bin/leadview", "leadview run", id="installed"),
        pytest.param("/app/leadview/__main__.py", "python -m leadview run", id="in a checkout"),
        pytest.param("/app/projector/__main__.py", "python -m projector run", id="the projector"),
        pytest.param("/app/api/__main__.py", "python -m projector run", id="the API, which has no such commands"),
        pytest.param("", "python -m projector run", id="not known"),
    ],
)
def test_a_command_is_named_as_it_was_called(monkeypatch: pytest.MonkeyPatch, called: str, command: str) -> None:
    monkeypatch.setattr("sys.argv", [called, "status"])
    assert words.as_called("run") == command


def test_nothing_else_names_a_program() -> None:
    """What is printed to be pasted works only if the program is called like this one (`as_called`)."""
    named = re.compile(r"\b(python -m )?(projector|leadview) (run|rebuild|status|dead-letters|promote|drop|verify)\b")
    for package in ("api", "leadview", "projector", "schemas"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documents)
            found = [node.value for node in texts if isinstance(node.value, str) and named.search(node.value)]
            assert not found, name(path)
