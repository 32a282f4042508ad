"""A few seconds of what `make fuzz` does at each border. It runs as long as one likes, with other seeds."""

from importlib import import_module

import pytest

from tests.fuzz import http
from tests.fuzz.__main__ import main

SECONDS = 3.0


@pytest.fixture(autouse=True)
def _any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make fuzz` is strict about the event loop. Here, processors may be of any speed, and the heap is a large one."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)


@pytest.mark.parametrize("border", ["kafka", "http"])
def test_a_border(border: str) -> None:
    """tests/unit/test_limits.py tries what `events` does."""
    assert import_module(f"tests.fuzz.{border}").fuzz(1, SECONDS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--seconds", "0", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("seed 7\nevents: ")
