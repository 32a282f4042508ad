"""The watcher's bookkeeping; that it kills is shown in `tests/service/test_servers.py`."""

import pytest

from devstack.leash import held_at_end


@pytest.mark.parametrize(
    ("lines", "held"),
    [
        pytest.param([], set(), id="nothing"),
        pytest.param(["+1\n", "+2\n"], {1, 2}, id="two children"),
        pytest.param(["+1\n", "-1\n", "+2\n"], {2}, id="one released"),
        pytest.param(["+1\n", "-1\n", "-1\n"], set(), id="released twice"),
    ],
)
def test_what_the_leash_holds(lines: list[str], held: set[int]) -> None:
    assert held_at_end(lines) == held
