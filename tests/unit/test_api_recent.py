"""The bounded memory of the API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.keys import Recent


def name(number: int) -> bytes:
    return b"%d" % number


def test_what_was_put_is_found_until_it_is_removed() -> None:
    recent: Recent[int] = Recent(10)
    recent.put(b"a", 1)
    recent.put(b"a", 2)
    assert (recent.get(b"a"), recent.get(b"b")) == (2, None)
    recent.remove(b"a")
    assert recent.get(b"a") is None


@pytest.mark.parametrize("most", [1, 2, 7, 100])
@given(numbers=st.lists(st.integers(0, 200), max_size=400))
def test_it_never_holds_more_and_never_an_old_value(most: int, numbers: list[int]) -> None:
    recent: Recent[int] = Recent(most)
    last: dict[int, int] = {}
    for place, number in enumerate(numbers):
        assert recent.get(name(number)) in (None, last.get(number))
        recent.put(name(number), place)
        last[number] = place
        assert recent.get(name(number)) == place
    assert sum(recent.get(name(number)) is not None for number in range(201)) <= max(2, most)


def test_what_is_used_is_kept() -> None:
    recent: Recent[int] = Recent(100)
    recent.put(b"used", 1)
    for number in range(1000):
        recent.put(name(number), number)
        assert recent.get(b"used") == 1
