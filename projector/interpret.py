"""Interprets a record: what it says, and what has to be written. Pure, except for a log line about a defect."""

import asyncio
from collections.abc import Generator
from typing import cast

from projector import defect, mapping
from projector.change import check_cost, decoded, read, version_of
from projector.errors import BadRecord
from projector.intent import Intent
from projector.reason import explain
from projector.record import Record
from schemas.faults import Fault

Interpreted = tuple[Intent, int]
"""The write that a record requires, and the time of its event in milliseconds since 1970."""


def interpret(record: Record) -> Interpreted:
    """Returns what has to be written.

    Raises BadRecord, and nothing else: a record on which this program fails must not end a line, or it would fail again
    at each start. It is parked like any other bad record, and can be redriven with a version that is repaired.
    """
    try:
        change = read(record)
        return mapping.intent(change, record), change.time
    except Exception as error:  # noqa: BLE001 - see above
        raise _bad(error, record) from None


def in_steps(record: Record) -> Generator[None, None, Interpreted]:
    """Returns what `interpret` returns, and raises as it does. It yields between its steps.

    So the event loop can turn while a large record is read: each step takes a third of the time, or a little more.
    """
    try:
        check_cost(record)
        yield
        change = decoded(record)
        yield
        return mapping.intent(change, record), change.time
    except Exception as error:  # noqa: BLE001 - likewise
        raise _bad(error, record) from None


async def in_turns(record: Record) -> Interpreted:
    """Returns what `interpret` returns, and raises as it does. The event loop turns between the steps."""
    steps = in_steps(record)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Interpreted, end.value)
        await asyncio.sleep(0)


def _bad(error: Exception, record: Record) -> BadRecord:
    """Returns why a record is bad, in words that help to find and correct it."""
    if isinstance(error, BadRecord):
        reason = error.reason
    else:
        reason = defect.report("reading this record", error, record=_place(record))
    try:
        fault = explain(reason, record)
        return BadRecord(fault.text, version_of(record), fault)
    except Exception as error:  # noqa: BLE001 - likewise
        defect.report("explaining a bad record", error, record=_place(record))
        return BadRecord(reason, fault=Fault(reason))


def _place(record: Record) -> list[object]:
    return [record.topic, record.partition, record.offset]
