"""What a command of an operator prints for programs."""

from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console

from projector.commands.operator import Operator
from projector.dead_letter import DeadLetter

LONG = "[bold]a reason[/] " * 20


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param([], [], id="an empty list"),
        pytest.param({"reason": LONG, "share": 0.5}, {"reason": LONG, "share": 0.5}, id="builtin types"),
        pytest.param(
            [DeadLetter("crm.leads", 0, 7, "key", LONG, 1)],
            [
                {"topic": "crm.leads", "partition": 0, "offset": 7, "key": "key", "reason": LONG, "time": 1}
                | {"accepted": False, "note": "", "accepted_at": None, "offsets": 1, "version": None, "fault": None}
            ],
            id="Structs",
        ),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_json_is_valid_in_any_terminal(value: Any, expected: Any, terminal: bool) -> None:
    """Lines are not wrapped, markup is not interpreted, and nothing is colored."""
    output = StringIO()
    console = Console(file=output, width=20, force_terminal=terminal, highlight=False, soft_wrap=True)
    Operator(None, None, console, json=True).print_json(value)  # type: ignore[arg-type]  # prints only
    assert orjson.loads(output.getvalue()) == expected
    assert output.getvalue() == orjson.dumps(expected, option=orjson.OPT_INDENT_2).decode() + "\n"
