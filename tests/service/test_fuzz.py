"""A few seconds of what `make fuzz` does with records. `test_fuzz_http.py` has both ports."""

from importlib import import_module

import pytest

from tests.fuzz.__main__ import main

SECONDS = 3.0


@pytest.mark.parametrize("border", ["kafka", "events"])
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_a_border(border: str) -> None:
    assert import_module(f"tests.fuzz.{border}").fuzz(1, SECONDS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--seconds", "0", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("seed 7\nevents: ")
