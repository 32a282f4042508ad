"""What an operator has accepted in a partition, as sets of offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kafka.accepted import Acceptance, Accepted
from projector.offsets import Ranges

TIME = 1_767_225_600_000


def accepted(*texts: str, dropped: str = "") -> Accepted:
    """The note of each acceptance is its text."""
    return Accepted(tuple(Acceptance(Ranges.parse(text), TIME, text) for text in texts), Ranges.parse(dropped))


def offsets(found: Accepted) -> list[str]:
    return [str(acceptance.offsets) for acceptance in found.acceptances]


@pytest.mark.parametrize(
    ("before", "ranges", "after", "dropped"),
    [
        pytest.param(accepted(), "7", ["7"], "", id="the first"),
        pytest.param(accepted("1-5"), "7", ["1-5", "7"], "", id="another"),
        pytest.param(accepted("1-5"), "3-9", ["1-2", "3-9"], "", id="the newest note is that of what overlaps"),
        pytest.param(accepted("1-5", "7"), "1-9", ["1-9"], "", id="a range replaces what is inside it"),
        pytest.param(accepted(dropped="1-5"), "3", ["3"], "1-2,4-5", id="a dropped one is accepted again"),
    ],
)
def test_accept(before: Accepted, ranges: str, after: list[str], dropped: str) -> None:
    found = before.accept(Ranges.parse(ranges), TIME + 1, "new")
    assert offsets(found) == after
    assert found.acceptances[-1] == Acceptance(Ranges.parse(ranges), TIME + 1, "new")
    assert str(found.dropped) == dropped


@pytest.mark.parametrize(
    ("before", "ranges", "after", "dropped"),
    [
        pytest.param(accepted(), "7", [], "", id="what is not accepted is ignored"),
        pytest.param(accepted("1-5"), "1-5", [], "1-5", id="all"),
        pytest.param(accepted("1-5", "9"), "3-20", ["1-2"], "3-5,9", id="some of both"),
        pytest.param(accepted("1-5", dropped="9"), "9", ["1-5"], "9", id="again"),
    ],
)
def test_drop(before: Accepted, ranges: str, after: list[str], dropped: str) -> None:
    found = before.drop(Ranges.parse(ranges))
    assert (offsets(found), str(found.dropped)) == (after, dropped)


def test_find() -> None:
    found = accepted("1-5", "9", dropped="7")
    assert found.find(0) is None
    assert found.find(5) == Acceptance(Ranges.parse("1-5"), TIME, "1-5")
    seven = found.find(7)
    assert seven is not None
    assert seven.dropped
    assert str(found.offsets) == "1-5,7,9"


@pytest.mark.parametrize("found", [accepted(), accepted("1-5", "9"), accepted(dropped="7"), accepted("1", dropped="7")])
def test_the_text_is_read_back(found: Accepted) -> None:
    assert Accepted.parse(found.text) == found


def test_the_text_is_compact() -> None:
    assert accepted("120-420,500", dropped="7").text == (
        '{"accepted":[["120-420,500",1767225600000,"120-420,500"]],"dropped":"7"}'
    )
    assert accepted().text == "{}"


def test_no_text_is_nothing() -> None:
    assert Accepted.parse("") == Accepted()


@pytest.mark.parametrize("text", ["x", '{"accepted":[["1-",1,""]]}', '{"dropped":7}', '{"accepted":[["1"]]}', "[]"])
def test_wrong_texts(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, or of `Ranges`
        Accepted.parse(text)


sets = st.sets(st.integers(0, 40))


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
def test_wrong_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an offset|ends before"):
        Ranges.parse(text)


@given(sets, sets)
def test_they_are_sets(one: set[int], other: set[int]) -> None:
    a, b = ranges(one), ranges(other)
    assert numbers(Ranges.parse(str(a))) == one
    assert (numbers(a | b), numbers(a - b), numbers(a & b)) == (one | other, one - other, one & other)
    assert {number for number in range(42) if number in a} == one
    assert bool(a) == bool(one)
    assert (a | b) == ranges(one | other)
    if one:
        assert a.span == (min(one), max(one))
