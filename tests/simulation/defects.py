"""Planted defects: what this project had once, or might have, as small changes in memory. A world has to find each.

`make simulate ARGS="--planted all"` runs worlds until each is found, and prints the seed.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from api import keys
from api.errors import Rebuilding
from api.redis.serving import Serving
from projector.errors import Unavailable
from projector.kafka import ends
from projector.kafka.batches import FetchedRecords
from projector.kafka.reader import Source
from projector.line.apply import FanOuts
from projector.line.batch import Batch
from projector.line.positions import Positions
from projector.redis.node import Fence, ReplicationEpoch
from projector.upkeep.as_of import DataAsOf
from runtime.redis.connection import Connection
from schemas.control import parse_generation
from tests.simulation.bridge import Server
from tests.simulation.faults import FAULTS
from tests.simulation.run import Outcome, scenario_of, simulate

_STEPS, _MOST_SEEDS = 2, 20


class Defect(Struct, frozen=True):
    """`lua` has a pattern and its replacement, in the text of scripts as Redis gets it; `put` a place in the program,
    and what takes its place. `faults` are those that show it, and `seed` is a world that has found it; None if none has
    yet.
    """

    name: str
    faults: str
    seed: int | None
    lua: tuple[str, str] | None = None
    put: tuple[Any, str, Any] | None = None
    steps: int = _STEPS


def _async(value: object = None) -> Callable[..., Any]:
    async def instead(*_: object, **__: object) -> object:
        return value

    return instead


async def _write_and_forget(self: Batch, *arguments: Any) -> None:
    try:
        await _write(self, *arguments)
    except Unavailable:
        polled = arguments[0]
        self.last |= {partition: records[-1] for partition, records in polled.items()}


def _complete(self: Serving, reply: list[bytes | None]) -> Any:
    try:
        return _completed(self, reply)
    except Rebuilding:
        if reply[1] is None:
            raise
        return parse_generation(reply[1])


def _forget_late(self: Connection, sent_before: float) -> None:
    _failed(self, sent_before)
    while self._callers and self._callers[0][1] < sent_before:
        self._callers.popleft()


async def _store_later(self: DataAsOf, record: Any) -> int | None:
    moment = await _store(self, record)
    return moment and moment + 400


async def _poll_late(self: Source, *arguments: Any) -> Any:
    await asyncio.sleep(2.0)
    return await _poll(self, *arguments)


async def _check_once(self: ReplicationEpoch, number: int, epoch: int | None, fence: Fence | None) -> None:
    if fence is not None and fence.confirmed.get(number) is not None:
        fence.confirmed[number] = self._fenced
    await _checked(self, number, epoch, fence)


_AS_TEXT = "tostring(new_version) > tostring(version) or"
_store, _poll, _checked = DataAsOf._store, Source.poll, ReplicationEpoch.check
_write, _completed, _failed = Batch.write, Serving._complete, Connection._fail_late

DEFECTS = (
    Defect(
        "an older version replaces a newer one",
        "projector-cut,projector-zombie",
        None,
        (r"return new_version > version or", "return true or"),
    ),
    Defect(
        "a tombstone that is read again deletes what came after it",
        "projector-cut,projector-zombie",
        None,
        (r"after = new_offset > offset", "after = true"),
    ),
    Defect(
        "a delete leaves no marker",
        "projector-cut,projector-zombie",
        1,
        (r"value = marker\(stored, .*", "value = ''"),
    ),
    Defect(
        "a lead is not in the index of its contact",
        "compacted",
        1,
        (r"first = index_put\(contact, .*", "first = first"),
    ),
    Defect(
        "a fan-out leaves the former summary",
        "compacted",
        1,
        (r"~= summary_hash then\n(\s+local at, length)", r"== '' then\n\1"),
    ),
    Defect(
        "Data-As-Of does not wait for the positions",
        "projector-suspended,projector-zombie,kafka-slow",
        2,
        (r"moment = is_late and 0 or", "moment ="),
    ),
    Defect("a revoked key is served", "compacted", 1, (r"if expiry > 0 and expiry \* 1000 <= now", "if false")),
    Defect("access that is off is served", "compacted", 1, (r"if access ~= \d+ then", "if false then")),
    Defect(
        "an organization that was created again is served at once",
        "compacted",
        None,
        (r"if job == \d+ then return", "if false then return"),
        steps=6,
    ),
    Defect(
        "a request that waits does not notice that its key was revoked",
        "compacted",
        None,
        (r"refusal and '[^']*' or", ""),
        steps=6,
    ),
    Defect(
        "ends are those that readers see (A3)",
        "transaction-open",
        1,
        put=(ends, "end_offsets", ends.readable_ends),
    ),
    Defect(
        "records of aborted transactions are applied",
        "transaction-open",
        1,
        put=(FetchedRecords, "_is_aborted", lambda *_: False),
    ),
    Defect(
        "markers at the readable end are never passed",
        "compacted",
        1,
        put=(Positions, "pass_markers", _async()),
    ),
    Defect(
        "a restart of Redis between writes and their checkpoint is not noticed",
        "redis-went-back",
        None,
        put=(ReplicationEpoch, "check", _async()),
        steps=6,
    ),
    Defect("fan-outs are forgotten", "compacted", 1, put=(FanOuts, "add", lambda *_: None)),
    Defect(
        "a write that failed counts as written",
        "projector-reset,redis-killed,scripts-flushed",
        6,
        put=(Batch, "write", _write_and_forget),
    ),
    Defect("a refused key is remembered for a minute", "compacted", 3, put=(keys, "REFUSED_SECONDS", 60.0)),
    Defect(
        "what is not complete is served",
        "redis-emptied",
        1,
        put=(Serving, "_complete", _complete),
    ),
    Defect(
        "a caller that gives up leaves the queue of replies",
        "api-slow,api-cut",
        None,
        put=(Connection, "_fail_late", _forget_late),
    ),
    Defect(
        "the moment of a sample is later than its end offsets",
        "kafka-slow,projector-slow",
        None,
        put=(DataAsOf, "_store", _store_later),
        steps=6,
    ),
    Defect("a conditional request is told that nothing has changed", "compacted", 1, (r"== etag or", "~= nil or")),
    Defect("versions are compared as text", "compacted", 1, (r"new_version > version or", _AS_TEXT)),
    Defect("a revoked key keeps its expiry", "compacted", 1, (r"then expiry = 1 end", "then expiry = 0 end")),
    Defect(
        "records of a deleted organization are written",
        "compacted",
        None,
        (r"is_deleted = organization and #organization == \d+", "is_deleted = false"),
        steps=6,
    ),
    Defect(
        "a request does not look whether Redis is complete",
        "redis-emptied",
        1,
        put=(Serving, "read", lambda _, link, *__: link.served and link.served.generation),
    ),
    Defect(
        "a line reads on after a failure", "projector-reset,redis-killed", 1, put=(Source, "reset", lambda *_: None)
    ),
    Defect("bad records vanish", "compacted", 1, put=(Batch, "_park", lambda *_: None), steps=6),
    Defect("a line asks for records once in two seconds", "compacted", 2, put=(Source, "poll", _poll_late), steps=4),
    Defect(
        "a connection is not confirmed once more when all writers were closed",
        ",".join(FAULTS),
        3,
        put=(ReplicationEpoch, "check", _check_once),
        steps=6,
    ),
)


@contextmanager
def planted(server: Server, defect: Defect) -> Iterator[None]:
    """Plant a defect until the block ends. Fails if no script has what it changes."""
    changed = 0

    def change(text: bytes) -> bytes:
        nonlocal changed
        assert defect.lua
        other, count = re.subn(defect.lua[0], defect.lua[1], text.decode("latin-1"))
        changed += count
        return other.encode("latin-1")

    holder, name, value = defect.put or (server, "changed", change)
    before = vars(holder).get(name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
    assert changed or defect.put, f"no script has {defect.lua}"


def world_with(server: Server, defect: Defect, seed: int) -> Outcome:
    """Returns what happens in a world with this defect."""
    with planted(server, defect):
        return simulate(server, scenario_of(seed, defect.faults.split(","), defect.steps))


def found(server: Server, defect: Defect, most: int = _MOST_SEEDS) -> Outcome | None:
    """Returns the first of so many worlds that finds a defect."""
    first = 1 if defect.seed is None else defect.seed
    for seed in range(first, first + most):
        outcome = world_with(server, defect, seed)
        if not outcome.is_right:
            return outcome
    return None
