"""Which generation is the next one, which may be promoted or dropped, and the states that `status` shows."""

from typing import Any

import pytest

from projector.commands.status import _generations
from projector.errors import Refused
from projector.ledger.generations import Description, Registry
from projector.rebuild import drop, promote


def registry(live: int, previous: int, *written: int, filling: tuple[int, ...] = (), **other: Any) -> Registry:
    known = {n: Description(1, "2026-01-01T00:00:00Z", complete=n not in filling) for n in written}
    return Registry(live, previous, written, known, **other)


@pytest.mark.parametrize(
    ("found", "following"),
    [
        pytest.param(registry(1, 0, 1), 0, id="one generation"),
        pytest.param(registry(1, 0, 1, 2), 2, id="the next is there"),
        pytest.param(registry(2, 1, 1, 2), 0, id="promoted"),
        pytest.param(registry(1, 2, 1, 2), 0, id="rolled back"),
        pytest.param(registry(1, 2, 1, 2, 3), 3, id="built again after a rollback"),
        pytest.param(registry(3, 1, 1, 2, 3), 0, id="a former one that was kept is not the next"),
        pytest.param(registry(3, 2, 1, 2, 3), 0, id="promoted twice, nothing dropped"),
        pytest.param(Registry(1, 0, (1, 2), {1: Description(1, "")}, frozenset({2})), 0, id="it is being dropped"),
    ],
)
def test_the_next_generation(found: Registry, following: int) -> None:
    assert found.next == following


def test_numbers_are_not_assigned_twice() -> None:
    assert registry(1, 0, 1, last=7).highest == 7
    assert registry(1, 0, 1, 3).highest == 3
    assert registry(1, 0, 1, dropping=frozenset({4})).highest == 4


def test_only_a_complete_generation_is_promoted() -> None:
    assert promote.complete_next(registry(1, 0, 1, 2)) == 2
    with pytest.raises(Refused, match="not complete"):
        promote.complete_next(registry(1, 0, 1, 2, filling=(2,)))
    with pytest.raises(Refused, match=r"`rebuild` creates one\.$"):
        promote.complete_next(registry(2, 1, 1, 2))
    with pytest.raises(Refused, match="`rollback` serves generation 2 again"):
        promote.complete_next(registry(1, 2, 1, 2))


@pytest.mark.parametrize(
    ("found", "wanted", "chosen"),
    [
        pytest.param(registry(2, 1, 1, 2), None, 1, id="the former one"),
        pytest.param(registry(1, 0, 1, 2), None, 2, id="the one that is being filled"),
        pytest.param(registry(2, 1, 1, 2, 3), None, 1, id="the former one before the next"),
        pytest.param(registry(2, 0, 2, dropping=frozenset({1})), None, 1, id="the one whose drop was interrupted"),
        pytest.param(registry(2, 1, 1, 2, 3), 3, 3, id="the one that was named"),
        pytest.param(registry(3, 0, 3), 1, 1, id="one that was dropped before is swept again"),
        pytest.param(registry(3, 0, 3), 4, None, id="a number that is not assigned yet"),
        pytest.param(registry(3, 0, 3), None, None, id="there is only the live one"),
        pytest.param(registry(0, 0, 1), 1, None, id="nothing is served yet"),
    ],
)
def test_which_generation_is_dropped(found: Registry, wanted: int | None, chosen: int | None) -> None:
    if chosen is None:
        with pytest.raises(Refused):
            drop._choose(found, wanted)
    else:
        assert drop._choose(found, wanted) == chosen


def test_states() -> None:
    found = registry(3, 1, 1, 2, 3, 4, filling=(4,), dropping=frozenset({5}))
    assert [generation.state for generation in _generations(found)] == ["former", "kept", "live", "filling", "dropping"]
    assert _generations(registry(1, 0, 1, 2))[1].state == "complete"
