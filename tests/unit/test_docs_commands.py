"""The documentation shows only commands that are accepted: each one behind a prompt as it stands there, and of those in
sentences, which may lack arguments, the names and the options.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest

from projector.commands.arguments import parser_of
from tests.unit.test_docs_links import PAGES, ROOT

SHOWING = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which also names what is no longer there
OTHERS = {"api": "", "completion": ""}
"""Commands of `leadview` that the projector does not have."""
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
MADE = {
    "bench": ("bench.__main__", "_arguments"),
    "run": ("devstack.run", "parse"),
    "chaos": ("tests.chaos.__main__", "_arguments"),
    "rolling": ("tests.rolling.__main__", "_arguments"),
}
"""What reads ARGS, by the target of `make`."""

_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^ *[$#] ((?:.*\\\n)*.*)", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LEADVIEW = re.compile(r"(?:python -m (?:projector|leadview)|(?:\S*/)?leadview)(?= |$)")


def in_blocks(text: str) -> Iterator[str]:
    """Yields the commands behind a prompt, without comments and redirections."""
    for block in _BLOCK.findall(text):
        for command in _PROMPT.findall(block):
            yield re.sub(r"\s+(?:#|[<>] ).*", "", command.replace("\\\n", " "))


def in_sentences(text: str) -> Iterator[str]:
    yield from _CODE.findall(_FENCED.sub("", text))


def accept(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises SystemExit and AssertionError if a command of Leadview or of this repository is wrong."""
    if "--help" in command:
        return
    filled_in = re.sub(r"<[^>]*>|\$ORGANIZATION", str(uuid4()), command)
    if _LEADVIEW.match(command):
        _, *words = shlex.split(_LEADVIEW.sub("leadview", filled_in, count=1))
        if words and words[0] not in OTHERS:
            parser_of("leadview").parse_args(words)
        return
    match shlex.split(filled_in):
        case ["make", target, *rest]:
            assert target in TARGETS, target
            chosen = [word.removeprefix("ARGS=") for word in rest if word.startswith("ARGS=")]
            if chosen and target in MADE:
                module, function = MADE[target]
                quick = ["--quick"] if target == "bench" else []  # otherwise it asks for another interpreter
                monkeypatch.setattr(sys, "argv", [target, *shlex.split(chosen[0]), *quick])
                getattr(import_module(module), function)()
        case ["python", "-m", module, *_]:
            assert find_spec(module), module


def options(command: str) -> set[str]:
    """Returns the options of a command, and of those that it consists of. Raises KeyError if there is none."""
    left, found = [choices(parser_of("leadview", OTHERS))[command]], set[str]()
    while left:
        parser = left.pop()
        found |= parser._option_string_actions.keys()
        left += choices(parser).values()
    return found


def choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [found] = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)] or [{}]
    return dict(found)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in SHOWING])
def test_every_command_is_accepted(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text("utf-8")
    for command in in_blocks(text):
        if "…" not in command:
            accept(command, monkeypatch)
    for command in in_sentences(text):
        if command.startswith("make ") and "…" not in command:
            accept(command, monkeypatch)
        if match := _LEADVIEW.match(command):
            name, *rest = command[match.end() :].split() or ["run"]
            assert {word for word in rest if word.startswith("--")} <= options(name), command
