"""When a dead letter is not needed any more: a newer event of its entity was applied."""

import pytest

from projector.dead_letter import DeadLetter
from projector.upkeep.dead_letters import is_superseded
from schemas.faults import Fault
from schemas.layouts import Head
from tests.harness import crm


@pytest.mark.parametrize(
    ("version", "head", "expected"),
    [
        pytest.param(3, (4, 8), True, id="a newer version"),
        pytest.param(3, (3, 8), True, id="the same version, published again"),
        pytest.param(3, (3, 6), False, id="the same version, from before"),
        pytest.param(3, (2, 8), False, id="an older version that came later"),
        pytest.param(None, (1, 8), True, id="no version: what came later"),
        pytest.param(None, (9, 6), False, id="no version: what came before"),
        pytest.param(3, (4, 8, 1), True, id="a newer version in another partition"),
        pytest.param(None, (4, 8, 1), False, id="no version, in another partition"),
    ],
)
def test_what_supersedes(version: int | None, head: tuple[int, ...], expected: bool) -> None:
    letter = DeadLetter.of(crm.lead().record(offset=7), Fault("other"), version)
    shown = Head(True, head[0], head[1], head[2] if len(head) > 2 else 0, 0)
    assert is_superseded(letter, shown) is expected


@pytest.mark.parametrize("version", [0, -1, 2**53, 10**30])
def test_a_version_that_is_bad_is_not_known(version: int) -> None:
    assert DeadLetter.of(crm.lead().record(), Fault("other"), version).version is None
