"""Compares Redis with the topics after a break that the topics can heal, writes again what differs, and ends the break.

After `deletes_missed` and `evicted`, Kafka still says what is right. So the projectors need no operator: one of them
holds a lock and compares, first organizations and API keys, then all documents. If something cannot be compared now,
because Kafka cannot be read or the lines are behind, they compare it later.

Which parts of the organizations are left is stored in Redis, so that another projector continues where this one ended.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from projector.errors import Refused, Superseded, Unavailable
from projector.kafka.client import topic
from projector.ledger import breaks, copies
from projector.ledger.breaks import recreated
from projector.ledger.control import ACCESS, WHOLE_HISTORY, Break, ControlRecord
from projector.ledger.writers import Writing
from projector.line.pace import Pacer
from projector.reason import TopicReason
from projector.redis.store import Store
from projector.stop import Stop, repeat
from projector.upkeep import jobs
from projector.upkeep.evictions import since_noted
from projector.upkeep.repair import Repair, keeps_what_it_had, lost_topics
from projector.verify.comparison import (
    MAX_LATENCY,
    AccessComparison,
    Comparison,
    DocumentComparison,
    Finding,
    Outcome,
    Subject,
    readings,
)
from projector.verify.parts import Part
from projector.verify.report import FORMER_PARTITION
from projector.verify.topics import open_topics
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import HEAD, read_head
from schemas.resources import ACCESS_KINDS, CONTACT, KINDS, RESOURCES
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 600.0
"""Seconds to wait before what could not be compared is looked at again; twice as long each time."""
_NAMED_SECONDS = 10.0
"""The minimum time for which a break is named, so that a person who asks every few seconds sees it."""
_STRAYS_SECONDS = 3600.0
"""The time between two counts of the live records in former partitions."""
SubjectName = Literal["access", "documents"]
SUBJECTS: tuple[SubjectName, ...] = get_args(SubjectName)

logger = logging.getLogger(__name__)


class _ComparisonProgress(msgspec.Struct, frozen=True):
    """The parts that are left of a comparison. It is only about the breaks `of` and these generations: after other
    breaks, or for other generations, another comparison begins.
    """

    of: list[Break]
    generations: list[GenerationId]
    left: list[Part]


class Comparing:
    """Compares access and documents with the topics, at the same time, in the upkeep of a projector. The documents may
    take hours.
    """

    def __init__(self, settings: ProjectorSettings, writing: Writing) -> None:
        self._works = [_Work(settings, writing, subject) for subject in SUBJECTS]

    async def run(self, stop: Stop) -> None:
        """Look for breaks once a second, until `stop` is set. Retries while Redis or Kafka is unavailable."""
        async with asyncio.TaskGroup() as group:
            for work in self._works:
                group.create_task(work.run(stop))


class _Work:
    """The comparison of one subject."""

    def __init__(self, settings: ProjectorSettings, writing: Writing, subject: SubjectName) -> None:
        # Both comparisons may run at the same time.
        self._settings = replace(settings, verify_memory=max(1, settings.verify_memory // len(SUBJECTS)))
        self._writing = writing
        self._store: Store = writing.store
        self._subject = subject
        self._not_before = 0.0
        self._pause = _FIRST_PAUSE
        self._strays: dict[Break, float] = {}
        """When the live records in former partitions were counted, for each break."""

    async def run(self, stop: Stop) -> None:
        await repeat(f"the comparison of {self._subject} with the topics", self._turn, stop, lambda: _PAUSE_SECONDS)

    async def _turn(self) -> None:
        if time.monotonic() < self._not_before:
            return
        record = await self._writing.sessions.look(_PAUSE_SECONDS)
        if not any(it.unverified for it in record.state.breaks):
            return
        record = await copies.current(self._store)  # with the present positions
        compared = _due(record, self._subject)
        raised = [it for it in self._raised(record) if not compared]
        if not compared and not raised:
            return
        async with jobs.locked(self._store, names.comparison_lock(self._subject)) as lock:
            if lock is None:
                return
            try:
                is_done = await (self._compare(record, compared) if compared else self._count_strays(raised))
            except (Refused, Superseded) as error:
                logger.warning("the comparison with the topics has to wait", extra={"error": str(error)})
                is_done = False
        self._pause = _FIRST_PAUSE if is_done else min(2 * self._pause, _LONGEST_PAUSE)
        self._not_before = 0.0 if is_done else time.monotonic() + self._pause

    async def _compare(self, record: ControlRecord, compared: list[GenerationId]) -> bool:
        """Compare access, or these generations. Returns whether all is as the topics say. Raises Refused if a topic is
        missing, Superseded, and Unavailable.
        """
        seen = [it for it in record.state.breaks if it.kind in WHOLE_HISTORY]
        subject: Subject = AccessComparison(self._store)
        if self._subject == "documents":
            subject = DocumentComparison(self._store, compared, Pacer.of_replay(self._store, MAX_LATENCY))
        async with open_topics(self._store, self._settings, subject.kinds) as topics:
            if again := recreated(record, record.stored(), await topics.reader.topic_ids()):
                raise Unavailable(TopicReason("recreated_unnoticed", tuple(one.topic for one in again)))
            repair = Repair(self._writing)
            comparison = Comparison(topics, subject, self._settings, repair)
            of = [replace(it, unverified=()) for it in seen]
            left = deque(await self._left(of, compared) or await comparison.parts())
            about: dict[str, object] = {"of": compared, "breaks": [f"{it.kind} {it.topic}".strip() for it in seen]}
            logger.info("a comparison with the topics begins", extra=about | {"parts": len(left)})
            unsettled: list[Part] = []
            async for outcome in comparison.run(left):
                if not _is_right(outcome, record):
                    unsettled.append(outcome.reading.part)
                await self._keep(_ComparisonProgress(of, compared, [*list(left)[1:], *unsettled]))
        about |= {"written": repair.written, "deleted": repair.deleted}
        if unsettled:
            about |= {"parts": len(unsettled)}
            logger.warning("not everything could be compared with the topics, or written again", extra=about)
            return False
        await asyncio.sleep(max(0.0, min(_NAMED_SECONDS, _NAMED_SECONDS - min(it.age for it in seen))))
        if await since_noted(self._store, await copies.current(self._store), {}):
            logger.warning("Redis has evicted keys since: everything is compared again", extra=about)
            return False
        for generation in compared:
            await breaks.confirm(self._store, generation, seen)
        await self._store.ask_one(b"DEL", names.comparison(self._subject))
        logger.info("everything is as the topics say", extra=about)
        return True

    async def _left(self, of: list[Break], compared: list[GenerationId]) -> list[Part] | None:
        """Returns the parts that are left of this comparison, if it was begun before."""
        value = await self._store.ask_one(b"GET", names.comparison(self._subject))
        try:
            progress = msgspec.json.decode(value or b"null", type=_ComparisonProgress | None)
        except msgspec.MsgspecError:  # of another version
            return None
        return progress.left if progress and (progress.of, progress.generations) == (of, compared) else None

    async def _keep(self, progress: _ComparisonProgress) -> None:
        await self._store.ask_one(b"SET", names.comparison(self._subject), msgspec.json.encode(progress))

    def _raised(self, record: ControlRecord) -> list[Break]:
        """Returns the breaks `partitions_raised` in topics of this subject that `_count_strays` is to look at now."""
        kinds = ACCESS_KINDS if self._subject == "access" else RESOURCES
        own = {topic(self._settings, kind) for kind in kinds}
        raised = [it for it in record.state.breaks if it.kind == "partitions_raised" and it.topic in own]
        now = time.monotonic()
        return [it for it in raised if now - self._strays.get(it, -_STRAYS_SECONDS) >= _STRAYS_SECONDS]

    async def _count_strays(self, raised: list[Break]) -> bool:
        """End each of these breaks if its topic has no live record in a partition to which the key of the record no
        longer belongs. Raises Refused and Unavailable.
        """
        kinds = [kind for kind in KINDS if topic(self._settings, kind) in {it.topic for it in raised}]
        found: Counter[str] = Counter()
        async with open_topics(self._store, self._settings, kinds) as topics:
            async for reading in readings(topics, self._settings):
                found.update(reading.strays())
        for one in raised:
            self._strays[one] = time.monotonic()
            if not found[one.topic]:
                for generation in one.unverified:
                    await breaks.confirm(self._store, generation, [one])
        return True


def _due(record: ControlRecord, subject: SubjectName) -> list[GenerationId]:
    """Returns what is to be compared: `ACCESS`; or, as soon as that is done, the generations that are complete."""
    unverified = {one for it in record.state.breaks if it.kind in WHOLE_HISTORY for one in it.unverified}
    if ACCESS in unverified or subject == "access":
        return [ACCESS] if ACCESS in unverified and subject == "access" else []
    return [one for one in record.state.written if one in unverified and record.is_complete(one)]


def _is_right(outcome: Outcome, record: ControlRecord) -> bool:
    """Returns whether a part is as the topics say, after it was repaired.

    A value that was written since the comparison began is right, because it shows nothing from before. What is newer in
    Redis than in Kafka stays as it is: no reader sees an older version after a newer one. What a topic has lost has a
    break of its own.
    """
    lost = lost_topics(record)
    return not outcome.pending and all(_may_stay(finding, outcome, lost) for finding in outcome.findings)


def _may_stay(finding: Finding, outcome: Outcome, lost: frozenset[str]) -> bool:
    if finding.fields == (FORMER_PARTITION,) or keeps_what_it_had(finding, outcome.reading):
        return True
    at = outcome.reading.topics.partition(finding.entity[0], 0)
    if finding.fields == ("extra",) and at.topic in lost:
        return True
    if finding.fields == ("contact",) and outcome.reading.topics.partition(CONTACT, 0).topic in lost:
        return True
    newest, value = outcome.reading.expected.newest.get(finding.entity), finding.stored.value
    return newest is not None and len(value) >= HEAD and read_head(value).version > newest.version
