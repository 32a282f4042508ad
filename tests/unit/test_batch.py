"""What a batch does with bad records, and what it says when there are too many."""

from itertools import chain
from unittest.mock import patch

import msgspec

from projector.errors import Coordinates
from projector.kafka.accepted import Acceptance
from projector.line.batch import BadRecordGuard, Batch
from projector.offsets import Ranges
from projector.record import Partition, Record
from tests.harness import crm

LEADS, OTHER = Partition("crm.leads", 0), Partition("crm.leads", 1)


def records(pattern: str, partition: Partition = LEADS, first: int = 100) -> list[Record]:
    """Returns a record for each character: `x` is bad, `.` is good."""
    messages = [crm.lead(1), msgspec.structs.replace(crm.lead(1), value=b"{")]
    return [
        messages[letter == "x"].record(offset, partition.partition)
        for offset, letter in enumerate(pattern, start=first)
    ]


def accepting(*offsets: int, dropped: bool = False) -> "dict[Coordinates, Acceptance]":
    """Acceptances by coordinates."""
    acceptance = Acceptance(Ranges.of((offset, offset) for offset in offsets), 7, "known", dropped=dropped)
    return {("crm.leads", 0, offset): acceptance for offset in offsets}


def test_the_message_names_the_command_and_the_range() -> None:
    """The range ends with the last bad record that was read, so that accepting it takes as few commands as possible."""
    guard = BadRecordGuard(1, 3)
    batch = Batch({OTHER: records("..x", OTHER), LEADS: records("xxxx.x..")}, guard)
    list(batch.slices(100))
    assert batch.stopped
    assert str(batch.stopped).startswith(
        "3 consecutive bad records (LEADVIEW_DEAD_LETTER_ROW is 3); the last: crm.leads:0:101: "
    )
    assert str(batch.stopped).endswith(
        "for good: python -m projector dead-letters accept crm.leads:1:102 crm.leads:0:100-105 --note 'why'"
    )
    assert "accept these 6 bad records" in str(batch.stopped)
    assert batch.stopped.bad == (("crm.leads", 1, 102), ("crm.leads", 0, 100), ("crm.leads", 0, 101))


def test_accepted_records_are_parked_with_the_note_and_do_not_count() -> None:
    batch = Batch({LEADS: records("xxxx")}, BadRecordGuard(1, 3), acceptance=accepting(100, 102).get)
    intents = list(chain.from_iterable(batch.slices(100)))
    assert not intents
    assert batch.stopped is None
    assert [(letter.offset, letter.accepted, letter.note, letter.accepted_at) for letter in batch.dead_letters] == [
        (100, True, "known", 7),
        (101, False, "", None),
        (102, True, "known", 7),
        (103, False, "", None),
    ]


def test_what_an_operator_has_dropped_is_not_parked_again() -> None:
    batch = Batch({LEADS: records("x.x")}, BadRecordGuard(1, 2), acceptance=accepting(100, 102, dropped=True).get)
    intents = list(chain.from_iterable(batch.slices(100)))
    assert len(intents) == 1
    assert batch.dead_letters == []
    assert batch.steps({LEADS: 100})[LEADS].position.offset == 103


def test_a_slice_ends_after_a_time_whatever_the_records_are() -> None:
    """With no time at all, it ends with each record: also with a bad one, and behind the one that halts the line."""
    with patch("projector.line.batch._SLICE_SECONDS", -1.0):
        good = Batch({LEADS: records("......")}, BadRecordGuard(1, 3))
        assert [len(intents) for intents in good.slices(100)] == [1, 1, 1, 1, 1, 1, 0]
        halted = Batch({LEADS: records("xxxx.x..")}, BadRecordGuard(1, 3))
        assert [len(intents) for intents in halted.slices(100)] == [0] * (2 + 5)
    assert "crm.leads:0:100-105" in str(halted.stopped), "the advice is the same"


def test_a_large_record_is_read_in_steps() -> None:
    """The event loop turns between them, whether the record is good or bad, and also behind the one that halts."""
    good = crm.lead(referrer="x" * 300_000).record(100)
    bad = crm.lead(stage="x" * 300_000).record(101)
    batch = Batch({LEADS: [good, bad, good]}, BadRecordGuard(1, 3))
    assert [len(intents) for intents in batch.slices(100)] == [0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert [letter.offset for letter in batch.dead_letters] == [101]
    halted = Batch({LEADS: [*records("x"), bad, bad]}, BadRecordGuard(1, 1))
    with patch("projector.line.batch._SLICE_SECONDS", -1.0):
        slices = list(halted.slices(100))
    assert halted.stopped
    assert slices == [[]] * 4
