"""Sets of offsets, as ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.offsets import Ranges

offsets = st.sets(st.integers(0, 40))


def ranges(numbers: set[int]) -> Ranges:
    return Ranges.of((number, number) for number in numbers)


def numbers(found: Ranges) -> set[int]:
    return {number for first, last in found.pairs for number in range(first, last + 1)}


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        pytest.param("", "", id="none"),
        pytest.param("7", "7", id="one offset"),
        pytest.param("120-420,500", "120-420,500", id="as in the documentation"),
        pytest.param("500,120-420", "120-420,500", id="in any order"),
        pytest.param("1-5,3-9", "1-9", id="overlapping"),
        pytest.param("1-5,6-9,10", "1-10", id="adjacent"),
        pytest.param("7-7", "7", id="a range of one offset"),
        pytest.param(f"{2**62}-{2**62 + 1}", f"{2**62}-{2**62 + 1}", id="large offsets"),
    ],
)
def test_the_text_is_as_short_as_possible(text: str, shortest: str) -> None:
    assert str(Ranges.parse(text)) == shortest


@pytest.mark.parametrize("text", ["x", "-7", "7-", "9-7", "1,,2", "1-2-3", " ", "+7"])
def test_wrong_texts(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an offset|ends before"):
        Ranges.parse(text)


@given(offsets, offsets)
def test_they_are_sets(one: set[int], other: set[int]) -> None:
    a, b = ranges(one), ranges(other)
    assert numbers(Ranges.parse(str(a))) == one
    assert (numbers(a | b), numbers(a - b), numbers(a & b)) == (one | other, one - other, one & other)
    assert {number for number in range(42) if number in a} == one
    assert bool(a) == bool(one)
    assert (a | b) == ranges(one | other)
    if one:
        assert a.span == (min(one), max(one))
