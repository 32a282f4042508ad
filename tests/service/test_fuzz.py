"""A few seconds of what `make fuzz` does, on each border."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.fuzz.__main__ import BORDERS, main

SECONDS = 3.0
PRESENT = [border for border in BORDERS if find_spec(f"tests.fuzz.{border}")]


@pytest.mark.parametrize("border", PRESENT)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_a_border(border: str) -> None:
    assert import_module(f"tests.fuzz.{border}").fuzz(1, SECONDS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--seconds", "0", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("seed 7\nevents: ")
