"""Interprets a record: what it says, and what has to be written. Pure, except for a log line about a defect."""

import asyncio
from collections.abc import Generator
from typing import cast

import msgspec
from msgspec.structs import replace

from projector import defect, mapping
from projector.change import check_cost, decoded, is_too_deep, read, version_of
from projector.errors import BadRecord
from projector.mapping import Intent
from projector.record import MAGIC, Record, hint, unframed
from schemas.envelopes import mode_of
from schemas.faults import Fault, shown
from schemas.trace import trace_id

Interpreted = tuple[Intent, int]
"""The write that a record requires, and the time of its event in milliseconds since 1970."""


class _Event(msgspec.Struct):
    id: str | None = None
    source: str | None = None
    traceparent: object = None
    """An extension of CloudEvents. Tracing libraries send a header of this name instead."""


_EVENT = msgspec.json.Decoder(_Event)


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


def in_parts(record: Record) -> Generator[None, None, Interpreted]:
    """Returns what `interpret` returns, and raises as it does. It yields between its parts.

    So the event loop can turn while a large record is read: each part takes a third of the time, or a little more.
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
    """Returns what `interpret` returns, and raises as it does. The event loop turns between the parts."""
    parts = in_parts(record)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return cast(Interpreted, end.value)
        await asyncio.sleep(0)


def _bad(error: Exception, record: Record) -> BadRecord:
    """Returns why a record is bad, with what helps to find and correct it."""
    if isinstance(error, BadRecord):
        fault = error.fault
    else:
        defect.report("reading this record", error, record=_place(record))
        fault = Fault("defect", found=type(error).__name__)
    if is_too_deep(record):  # so it can be explained no further
        return BadRecord(fault)
    try:
        return BadRecord(_explained(fault, record), version_of(record))
    except Exception as error:  # noqa: BLE001 - likewise
        defect.report("explaining a bad record", error, record=_place(record))
        return BadRecord(fault)


def _place(record: Record) -> list[object]:
    return [record.topic, record.partition, record.offset]


def _explained(fault: Fault, record: Record) -> Fault:
    """Returns the fault with its event, and with the wrapping of the producer if the value is wrapped."""
    headers = dict(record.headers)
    path = fault.path
    if mode_of(headers) == "binary":
        sent = (
            (headers.get(name) or b"").decode(errors="replace") for name in ("ce_id", "ce_source", "ce_traceparent")
        )
        event = _Event(*sent)
        path = path.replace("$.data.", "$.", 1)  # the value is the data
    else:
        event = _event(record.value or b"")
    return replace(
        fault,
        path=path,
        hint=hint(fault, record),
        event_id=shown(event.id),
        event_source=shown(event.source),
        trace_id=_trace(event.traceparent) or _trace(headers.get("traceparent")),
    )


def _event(value: bytes) -> _Event:
    try:
        return _EVENT.decode(unframed(value) if value and value[0] == MAGIC else value)
    except (msgspec.MsgspecError, UnicodeDecodeError, BadRecord):
        return _Event()


def _trace(traceparent: object) -> str:
    """Returns the id of the trace; an empty text without a valid one."""
    sent = traceparent.encode(errors="replace") if isinstance(traceparent, str) else traceparent
    return trace_id(sent) or "" if isinstance(sent, bytes) else ""
