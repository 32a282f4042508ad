"""Limits are Leadview's, and not those of an interpreter or a library: what becomes of a record is the same on each
version of Python. `make versions` compares this table with each of them.
"""

import sys
from collections.abc import Callable

import pytest

from projector import unknown_fields
from projector.change import version_of
from projector.errors import BadRecord
from projector.interpret import interpret
from schemas.faults import shown
from schemas.limits import MAX_LEVELS
from tests.harness import crm
from tests.harness.crm import Message

PLACE = "PLACE"
DEEP = (MAX_LEVELS + 1, 150, 900, 1_500, 4_500)
"""Python 3.11 and 3.12 end at about 1,000 levels, later ones at several thousand, or where the stack does."""


def arrays(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def objects(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)


def with_brackets_in_texts(levels: int) -> bytes:
    return b'["\\\\\\"[[[",' * (levels - 1) + b'["]]"]' + b"]" * (levels - 1)


def spaced(levels: int) -> bytes:
    return b'[1, "x" , ' * (levels - 1) + b"[ ]" + b", {}\n]" * (levels - 1)


SHAPES = [arrays, objects, with_brackets_in_texts, spaced]


def attribution(value: bytes) -> Message:
    return crm.within(crm.lead(attribution={"a": PLACE}), value)


def unknown(value: bytes) -> Message:
    return crm.within(crm.lead(unknown=PLACE), value)


def binary(value: bytes) -> Message:
    return crm.within(crm.binary(crm.lead(unknown=PLACE)), value)


def framed(value: bytes) -> Message:
    return crm.framed(unknown(value))


def outcome(message: Message) -> str:
    """Returns the kind of its fault, with all that a dead letter has of it; `good` if it is none."""
    record = message.record()
    try:
        interpret(record)
    except BadRecord as error:
        return error.fault.kind
    return "good"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", [unknown, binary, framed])
def test_nesting_is_judged_alike_everywhere(place: Callable[[bytes], Message], shape: Callable[[int], bytes]) -> None:
    levels = (1, MAX_LEVELS - 1, MAX_LEVELS, *DEEP)
    outcomes = {count: outcome(place(shape(count))) for count in levels if len(shape(count)) < 1_000_000}
    assert outcomes == {count: "recursion" if count in DEEP else "good" for count in outcomes}
    for count in outcomes:
        assert (version_of(place(shape(count)).record()) is None) == (count in DEEP)
        assert unknown_fields.has_unknown_fields(place(shape(count)).record()) == (count <= MAX_LEVELS)


def test_nesting_of_attribution_which_is_a_level_itself() -> None:
    outcomes = {count: outcome(attribution(arrays(count))) for count in (MAX_LEVELS - 1, MAX_LEVELS, *DEEP)}
    assert outcomes == dict.fromkeys((MAX_LEVELS, *DEEP), "recursion") | {MAX_LEVELS - 1: "good"}


@pytest.mark.parametrize("levels", [900, 1_500, 5_000])
def test_what_is_no_json_is_not_decoded_either(levels: int) -> None:
    assert outcome(unknown(b"[" * levels)) == "recursion"


def digits(count: int) -> bytes:
    return b"9" * count


OUTCOMES = {
    # Python makes no integer of more than 4,300 digits of a text, unless a variable says otherwise.
    "an unknown field of 4,300 digits": (unknown(digits(4_300)), "good"),
    "an unknown field of 4,301 digits": (unknown(digits(4_301)), "good"),
    "an unknown field of 100,000 digits": (unknown(digits(100_000)), "extreme_numbers"),
    "attribution with 19 digits": (attribution(digits(19)), "inner_more_than_64_bits"),
    "attribution with 4,300 digits": (attribution(digits(4_300)), "inner_more_than_64_bits"),
    "attribution with 4,301 digits": (attribution(digits(4_301)), "not_valid"),
    "attribution with 8,000 digits": (attribution(digits(8_000)), "not_valid"),
    "a fraction of 8,000 digits": (attribution(b"0." + digits(8_000)), "good"),
    "a total of 64 digits": (crm.lead(quote={"total": "9" * 64}), "more_than_64_bits"),
    "a total of 5,000 digits": (crm.lead(quote={"total": "9" * 5_000}), "not_valid"),
    "a total in other digits": (crm.lead(quote={"total": "١٢"}), "not_valid"),
    "a name of a character of Unicode 16": (crm.lead(tags=["\U0001fae9"]), "good"),
    "the first moment": (crm.lead(created_at="0001-01-01T00:00:00Z"), "good"),
    "before the first moment": (crm.lead(created_at="0001-01-01T00:00:00+00:01"), "good"),
    "the last moment": (crm.lead(created_at="9999-12-31T23:59:59.999999Z"), "good"),
    "behind the last moment": (crm.lead(created_at="9999-12-31T23:59:59-00:01"), "good"),
    "the year 0": (crm.lead(created_at="0000-12-31T23:59:59Z"), "not_valid"),
    "a leap second": (crm.lead(created_at="2016-12-31T23:59:60Z"), "good"),
    "the hour 24": (crm.lead(created_at="2026-01-01T24:00:00Z"), "not_valid"),
    "an offset of a day": (crm.lead(created_at="2026-01-01T00:00:00+24:00"), "not_valid"),
    "an ISO week": (crm.lead(created_at="2026-W01-1T00:00:00Z"), "not_valid"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_numbers_texts_and_times_are_judged_alike_everywhere(name: str) -> None:
    message, expected = OUTCOMES[name]
    assert outcome(message) == expected


def test_limit_of_the_interpreter_changes_nothing() -> None:
    before = sys.get_int_max_str_digits()
    try:
        for limit in (640, 0):
            sys.set_int_max_str_digits(limit)
            good = {name for name, (message, _) in OUTCOMES.items() if outcome(message) == "good"}
            assert good == {name for name, (_, expected) in OUTCOMES.items() if expected == "good"}
    finally:
        sys.set_int_max_str_digits(before)


def test_what_is_shown_of_a_text_does_not_depend_on_the_version_of_unicode() -> None:
    assert shown("a\u00e9\U0001fae9\U00011f02\u0378") == "a\u00e9\U0001fae9\U00011f02\u0378"
    assert shown("\x1b\x9b\u202e\u2028\u200b\ud800\ufeff") == 7 * "?"
