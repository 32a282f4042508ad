"""Reads what Redis and Kafka say at one moment. Every surface judges such an observation: `status`, `doctor`,
`/healthz`, the metrics, the console and the check before a rebuild.

A position moves only after Redis has acknowledged every write that it covers. So a partition whose position is its end
offset is wholly visible: this proves the whole way from Kafka to the served documents, also while no record arrives.
"""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from projector import defect
from projector.dead_letter import DeadLetter
from projector.errors import Denied, ProjectorError, Unavailable
from projector.kafka.client import CLIENT_ID, principal
from projector.kafka.ends import USUAL_SECONDS
from projector.kafka.groups import Member
from projector.kafka.reader import Reader
from projector.kafka.topics import Topic
from projector.ledger import breaks, copies, late_versions, writers
from projector.ledger.control import Break, ControlRecord, Position
from projector.ledger.late_versions import LateVersions
from projector.ledger.writers import Writer
from projector.record import Partition
from projector.redis.store import Memory, Store
from projector.upkeep.dead_letters import NewestLetters, OfAccess, of_newest
from schemas import names
from schemas.heartbeat import Clocks, KafkaRight
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

FIRST_SECONDS = 1.2
"""The time that Redis and Kafka have for their first answer: if one is away, the other is shown within two seconds."""
_SECONDS = 5.0
_OLDEST_SECONDS = 2.0
_TOPICS_SECONDS = 6.0
"""The time between two reads of the topics and their retention."""
_LAYOUTS_SECONDS = 60.0
"""The time between two looks for data of other layouts."""
_HEARTBEAT_SECONDS = 2.5
"""The time that a projector has to say in its heartbeat that it has joined a consumer group."""
_FORMER_MS = 120_000
"""The time for which a projector that is gone may still be a member of a group."""
_PEEK_BYTES = 262_144
"""Bytes to fetch of the records that wait: only the time of the first one is wanted."""

_LOOK_AGAIN_SECONDS = 0.25
_STANDS_SECONDS = 1.0
"""The time for which a transaction has to be seen before the time of its first record counts as its beginning: the
producer may have set that time.
"""
_LONGEST_SECONDS = 900.0
"""Kafka's usual limit of a transaction (`transaction.max.timeout.ms`). If the first record is older than that, it may
also be one of an import that keeps the times of its records.
"""

T = TypeVar("T")


class RedisPart(msgspec.Struct, frozen=True):
    """The answers of Redis. `record` is None if Redis is empty."""

    record: ControlRecord | None
    dead_letters: int
    memories: list[Memory]
    writers: list[Writer]
    servers: dict[bytes, str] = {}
    """The addresses of the servers that hold the copies of the record, by tag; empty if Redis is not a cluster."""
    other_layouts: list[int] = []
    """The layouts of other versions of Leadview that have data in this Redis as well."""
    bad_access: list[DeadLetter] = []
    """The dead letters of organizations and API keys, unless they were accepted."""
    newest_bad: list[DeadLetter] = []
    """The dead letters of documents whose newest record is the bad one, unless they were accepted."""
    unjudged: int = 0
    """The dead letters of which it is not known whether they belong to these."""
    late: LateVersions = LateVersions()
    """The entities whose last record is not their newest one."""
    refusal: str = ""
    """Why a server refuses writes, in its words; nothing if none does."""
    clocks: Clocks | None = None
    """The clock of Redis and that of the program that observes; None unless they differ."""
    as_of: int | None = None
    """Everything that Kafka held at this moment, in ms since 1970, is visible (`Data-As-Of`); None: not known."""

    @property
    def used(self) -> float:
        """The used share of maxmemory on the fullest server; 0 if none has a maxmemory."""
        return max((memory.share for memory in self.memories), default=0.0)

    @property
    def living(self) -> list[Writer]:
        """The projectors that are alive."""
        return [writer for writer in self.writers if writer.is_living_projector]

    def silent(self, at: float) -> list[Writer]:
        """Returns the writers that no longer store heartbeats, except replaced projectors: one was started since their
        last heartbeat. `at` is now, in ms since 1970.

        Heartbeats do not tell a dead process from a suspended one that may wake up. Once it was replaced, neither has
        to be reported. When a suspended projector wakes up, the writes that it had begun are refused, because its
        session has ended and its partitions belong to others. From then on it is one more projector, and its own
        heartbeat shows if its version or its settings are not those of the others.
        """
        found = []
        started = sorted(
            (it for it in self.writers if it.heartbeat.role == "run"), key=lambda it: it.heartbeat.started_at
        )
        for writer in sorted(self.writers, key=lambda writer: -writer.age_ms):
            if writer.alive:
                continue
            last = at - writer.age_ms
            later = [it for it in started if it is not writer and it.heartbeat.started_at >= last]
            if later and writer.heartbeat.role == "run":
                started.remove(later[0])
            else:
                found.append(writer)
        return found

    @property
    def incomplete(self) -> list[bytes]:
        """The tags of the shards that do not hold everything of the live generation."""
        return [tag for tag, copy in (self.record.copies if self.record else {}).items() if not (copy and copy.serves)]

    def position(self, partition: Partition) -> Position | None:
        """Returns the position of a partition; None if nothing of it has been applied."""
        return self.record.position(partition) if self.record else None


class KafkaPart(msgspec.Struct, frozen=True):
    """The answers of Kafka: the topics, and the first offset and the end offset of each partition that is served.

    The end offset is behind what Kafka has acknowledged. Not all of that can be read (`Held`).
    `members` are those of the consumer groups; None if they are not known.
    """

    topics: list[Topic]
    ranges: Mapping[Partition, tuple[int, int]]
    members: list[Member] | None = None

    @property
    def cluster(self) -> str:
        """The id of the cluster; empty if the brokers do not say it."""
        return self.topics[0].cluster if self.topics else ""


class ApiPart(msgspec.Struct, frozen=True):
    """What the metrics ports of the API say. Rates are per second over the last seconds, latencies in milliseconds;
    None if there was no request.

    `answers` has the rate of each status, and `unavailable` the rate of 503 to requests for documents. Of `workers`
    workers, `ready_workers` are ready; `causes` are the errors that others have met. `reported` has the number of
    workers that report a problem, by its name. `filling`: all that keeps workers from serving, or requests from being
    served, is that Redis does not hold everything yet. `waiting` is the number of requests that wait for a change now.
    What is not known is None. `unread` says which metrics ports could not be read, and why.
    """

    requests: float | None = None
    answers: dict[str, float] = {}
    p50: float | None = None
    p99: float | None = None
    ready_workers: int | None = None
    unread: str = ""
    workers: int | None = None
    unavailable: float | None = None
    causes: tuple[str, ...] = ()
    filling: bool = False
    reported: dict[str, int] = {}
    waiting: int | None = None


class Held(msgspec.Struct, frozen=True):
    """A transaction is open in a partition, and nobody can read what was acknowledged behind its first record.

    `first` is the offset of that record, and `end` the end offset. `since` is when it began, as far as that is known,
    in ms since 1970. `seen` is the number of seconds for which this program has seen it. If it is `doubtful`, the time
    of its first record may mean nothing, and only `seen` counts.
    """

    first: int
    end: int
    since: int
    seen: float
    doubtful: bool

    def lasts(self, now: float) -> bool:
        """Returns whether it has been open for longer than usual. `now` is in ms since 1970."""
        if self.doubtful:
            return self.seen > USUAL_SECONDS
        return self.seen >= _STANDS_SECONDS and self._seconds(now) > USUAL_SECONDS

    def may_last(self, now: float) -> bool:
        """Returns whether another look could show that it has been open for longer than usual."""
        return not self.lasts(now) and (self.doubtful or self._seconds(now) > USUAL_SECONDS)

    def _seconds(self, now: float) -> float:
        return max(self.seen, (now - self.since) / 1000)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is when it was begun, in ms since 1970. A part that cannot be read is None, and `…_unknown` says why.

    `oldest` has Kafka's timestamp, in ms since 1970, of the oldest record that is not applied yet, for each partition
    that is behind, as far as it is known; None if it could not be read. `held` has each partition of which some of the
    records that wait are behind an open transaction.
    """

    at: float
    redis: RedisPart | None = None
    redis_unknown: str = ""
    kafka: KafkaPart | None = None
    kafka_unknown: str = ""
    oldest: Mapping[Partition, int] | None = None
    held: Mapping[Partition, Held] = {}
    redis_seconds: float = 0.0
    """The seconds that the reading of Redis took."""
    prefix: str | None = None
    """LEADVIEW_TOPIC_PREFIX of the program that observes; None if it does not matter."""
    group: str | None = None
    """The same of LEADVIEW_GROUP_ID."""
    expected: int = 0
    """LEADVIEW_EXPECTED_PROJECTORS of the program that observes."""
    principal: str = ""
    """The user of the program that observes, as Kafka's rights name it; empty if only the brokers know that."""
    rights: list[KafkaRight] = []
    """Those that Kafka refuses to this user."""
    api: ApiPart | None = None
    """None if the program that observes was not told where the metrics ports of the API are."""

    @property
    def strangers(self) -> list[Member]:
        """The members of the consumer groups that no heartbeat knows; none if that is not known."""
        return [] if self.redis is None or self.kafka is None else _strangers(self.redis, self.kafka)

    @property
    def lags(self) -> dict[Partition, int] | None:
        """The number of records of each partition that are not applied yet; None if it is not known."""
        if self.kafka is None or (waiting := self.waiting) is None:
            return None
        return dict.fromkeys(self.kafka.ranges, 0) | {p: last - first for p, (first, last) in waiting.items()}

    @property
    def lag(self) -> int | None:
        """The number of records that are not applied yet; None if it is not known."""
        return None if (lags := self.lags) is None else sum(lags.values())

    @property
    def waiting(self) -> dict[Partition, tuple[int, int]] | None:
        """The offsets [first, last) that are not applied yet, of each partition that is behind; None: not known."""
        if self.redis is None or self.kafka is None or self.other_cluster:
            return None
        return _waiting(self.redis, self.kafka)

    @property
    def readable(self) -> dict[Partition, tuple[int, int]] | None:
        """The offsets that wait, without those behind an open transaction: a line could apply them; None: not known."""
        if (waiting := self.waiting) is None:
            return None
        ends = {partition: transaction.first for partition, transaction in self.held.items()}
        spans = {
            partition: (first, min(last, ends.get(partition, last))) for partition, (first, last) in waiting.items()
        }
        return {partition: (first, last) for partition, (first, last) in spans.items() if first < last}

    @property
    def open_transactions(self) -> dict[Partition, Held]:
        """The transactions that have been open for longer than usual."""
        return {partition: transaction for partition, transaction in self.held.items() if transaction.lasts(self.at)}

    @property
    def ages(self) -> dict[Partition, float] | None:
        """The seconds that the oldest record has waited, for each partition that is behind; None: not known."""
        if self.oldest is None or self.other_cluster:
            return None
        return {partition: max(0.0, (self.at - stamp) / 1000) for partition, stamp in self.oldest.items() if stamp}

    @property
    def breaks(self) -> list[Break] | None:
        """The breaks that concern what is served; None: not known."""
        if self.redis is None or self.redis.record is None:
            return None
        topics = (
            self.kafka.topics if self.kafka and not self.other_cluster else ()
        )  # ids of another cluster say nothing
        return breaks.served(self.redis.record, {it.name: it.id for it in topics})

    @property
    def other_cluster(self) -> tuple[str, str] | None:
        """The ids of the Kafka cluster whose records were applied, and of the one that answers, if they differ."""
        known = self.redis.record.state.cluster if self.redis and self.redis.record else ""
        met = self.kafka.cluster if self.kafka else ""
        return (known, met) if known and met and known != met else None

    @property
    def complete_until(self) -> int | None:
        """Everything that Kafka had before this time, in ms since 1970, is visible; None if it is not known."""
        if self.kafka is None or (waiting := self.waiting) is None:
            return None
        oldest = [(self.oldest or {}).get(partition) for partition in waiting]
        if not all(oldest) or not all(topic.partitions and not topic.leaderless for topic in self.kafka.topics):
            return None
        return min([int(self.at), *filter(None, oldest)])


class Observer:
    """Observes repeatedly, on Kafka connections of its own, so that a blocked line cannot delay it."""

    def __init__(self, store: Store, settings: ProjectorSettings, patience: float = FIRST_SECONDS) -> None:
        """`patience` is how long the first answer may take, in seconds."""
        self._store = store
        self._settings = settings
        self._patience = patience
        self._of_access = OfAccess(store, settings)
        self._principal = principal(settings)
        self._reader: Reader | None = None
        self._topics: tuple[float, list[Topic]] | None = None
        self._layouts: tuple[float, list[int]] | None = None
        self._first_times: dict[tuple[Partition, int], int] = {}
        self._transactions: dict[tuple[Partition, int], tuple[float, float, int]] = {}
        """For each transaction that was open when Kafka was asked last, by the offset of its first record: when it was
        seen first, by the monotonic clock and in ms since 1970, and the time of that record; 0 if it is not known."""
        self._strangers: set[str] = set()

    async def observe(self) -> Observation:
        """Read Redis and Kafka. What cannot be read in time is a result as well."""
        at = time.time() * 1000
        redis, kafka, waiting = None, None, None
        rights: list[KafkaRight] = []
        (memories, no_redis), (reader, no_kafka) = await asyncio.gather(
            _result("Redis", self._store.memories(), self._patience),
            _result("Kafka", self._started(), self._patience, rights),
        )
        # The end offsets are read before the positions: otherwise records that are published in between count as lag.
        if reader is not None:
            kafka, no_kafka = await _result("Kafka", self._read_kafka(reader), _SECONDS, rights)
        asked_at = time.monotonic()
        if memories is not None:
            redis, no_redis = await _result("Redis", self._read_redis(memories), _SECONDS)
        seconds = time.monotonic() - asked_at
        if redis is None:
            no_redis = await self._with_silent_shards(no_redis)
        elif kafka is not None:
            redis, kafka = await self._looked_at_twice(redis, kafka)
            asked = self._read_waiting(_waiting(redis, kafka), at)
            waiting, _ = await _result("Kafka", asked, max(self._patience, _OLDEST_SECONDS), rights)
        if kafka is None or (redis is not None and waiting is None):
            await self.close()
        oldest, held = waiting or (None, {})
        return Observation(
            at=at,
            redis=redis,
            redis_unknown=no_redis,
            kafka=kafka,
            kafka_unknown=no_kafka,
            oldest=oldest,
            held=held,
            redis_seconds=seconds,
            prefix=self._settings.topic_prefix,
            group=self._settings.group_id,
            expected=self._settings.expected_projectors,
            principal=self._principal,
            rights=[replace(right, principal=self._principal) for right in rights],
        )

    async def close(self) -> None:
        """Close the connections to Kafka. The next observation opens new ones, because these may be broken."""
        reader, self._reader, self._topics = self._reader, None, None
        if reader:
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await reader.stop()

    async def _started(self) -> Reader:
        if self._reader is None:
            reader = Reader(self._settings, KINDS, _PEEK_BYTES)
            await reader.start()
            self._reader = reader
        return self._reader

    async def _read_kafka(self, reader: Reader) -> KafkaPart:
        now = time.monotonic()
        if self._topics is None or now - self._topics[0] > _TOPICS_SECONDS:
            self._topics = now, await reader.described()
        topics = self._topics[1]
        served = [it for topic in topics for it in topic.partitions if it.partition not in topic.leaderless]
        return KafkaPart(topics, await reader.whole_range(served), await reader.members())

    async def _looked_at_twice(self, redis: RedisPart, kafka: KafkaPart) -> tuple[RedisPart, KafkaPart]:
        """Look again if a member of a consumer group is not known: it may be a projector that has just joined it."""
        new = {member.id for member in _strangers(redis, kafka)} - self._strangers
        if new and (reader := self._reader):
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            members, _ = await _result("Kafka", reader.members(), _SECONDS)
            stored, _ = await _result("Redis", writers.read(self._store), _SECONDS)
            kafka = replace(kafka, members=members)
            redis = redis if stored is None else replace(redis, writers=stored)
        self._strangers = {member.id for member in _strangers(redis, kafka)}
        return redis, kafka

    async def _read_redis(self, memories: list[Memory]) -> RedisPart:
        store, record = self._store, await copies.read(self._store)
        dead_letters = int(await store.ask_one(b"HLEN", names.DEAD_LETTERS))
        servers = await store.servers_of(record.copies) if record else {}
        return RedisPart(
            record,
            dead_letters,
            memories,
            await writers.read(store),
            servers,
            await self._other_layouts(),
            await self._of_access.look(dead_letters),
            *(
                await of_newest(store, self._settings, record.state.live, dead_letters)
                if record
                else NewestLetters([], 0)
            ),
            await late_versions.current(store, record.state.live) if record else LateVersions(),
            await store.refusal(names.copy(names.CONTROL, tag) for tag in (record.copies if record else (names.HOME,))),
            max((it for it in await store.clocks() if it.differ), key=lambda it: it.apart_ms, default=None),
            await copies.as_of(store, record) if record else None,
        )

    async def _other_layouts(self) -> list[int]:
        """Returns what was found within the last minute: another layout seldom comes or goes."""
        now = time.monotonic()
        if self._layouts is None or now - self._layouts[0] > _LAYOUTS_SECONDS:
            self._layouts = now, await copies.other_layouts(self._store)
        return self._layouts[1]

    async def _with_silent_shards(self, why: str) -> str:
        """Returns why Redis cannot be read, with the shards that do not answer, if that can be found out."""
        found, _ = await _result("Redis", self._store.silent_shards(), FIRST_SECONDS)
        silent, shards = found or ([], 0)
        if not silent:
            return why
        return f"{len(silent)} of its {shards} shards do not answer: {', '.join(silent)} ({why})"

    async def _read_waiting(
        self, waiting: Mapping[Partition, tuple[int, int]], now: float
    ) -> tuple[dict[Partition, int], dict[Partition, Held]]:
        """Returns the time of the oldest record of each partition that is behind, and the open transactions in them.

        A transaction holds back what its partition has behind it, so only partitions that are behind may have one.
        """
        if not waiting:
            self._first_times, self._transactions = {}, {}
            return {}, {}
        reader = await self._started()
        ends = await reader.readable_ends(waiting)  # after the end offsets: what is published in between is not held
        held = await self._held(
            reader, {at: (ends[at], last) for at, (_, last) in waiting.items() if ends[at] < last}, now
        )
        readable = {at: (first, min(last, ends[at])) for at, (first, last) in waiting.items() if first < ends[at]}
        return {at: transaction.since for at, transaction in held.items()} | await self._oldest(readable), held

    async def _held(
        self, reader: Reader, spans: Mapping[Partition, tuple[int, int]], now: float
    ) -> dict[Partition, Held]:
        """Returns the transactions that hold back these offsets [readable end, end)."""
        seen_at = time.monotonic()
        known = {(at, first): self._transactions.get((at, first)) for at, (first, _) in spans.items()}
        new = [at for at, (first, _) in spans.items() if known[at, first] is None]
        begun = await asyncio.gather(*(reader.open_transaction(at, *spans[at]) for at in new))
        known |= {(at, it.first): (seen_at, now, it.began_at or 0) for at, it in zip(new, begun, strict=True)}
        self._transactions = {key: seen for key, seen in known.items() if seen}
        held = {}
        for (at, first), (first_seen, noticed_at, began_at) in self._transactions.items():
            possible = 0 < began_at <= noticed_at
            doubtful = not possible or noticed_at - began_at > 1000 * _LONGEST_SECONDS
            since = began_at if possible else int(noticed_at)
            held[at] = Held(first, spans[at][1], since, seen_at - first_seen, doubtful)
        return held

    async def _oldest(self, waiting: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Returns the times of the first records of these ranges. Kafka is asked only if a position has moved."""
        known = {(p, first): self._first_times.get((p, first)) for p, (first, _) in waiting.items()}
        self._first_times = {at: time for at, time in known.items() if time is not None}
        asked = {p: span for p, span in waiting.items() if (p, span[0]) not in self._first_times}
        if asked:
            found = await (await self._started()).first_times(asked)
            self._first_times |= {(p, asked[p][0]): time for p, time in found.items()}
        return {partition: time for (partition, _), time in self._first_times.items()}


async def observe(store: Store, settings: ProjectorSettings, patience: float = FIRST_SECONDS) -> Observation:
    """Read Redis and Kafka once, and again while an open transaction may prove to be older than usual."""
    observer, until = Observer(store, settings, patience), time.monotonic() + USUAL_SECONDS + _STANDS_SECONDS
    try:
        found = await observer.observe()
        while any(it.may_last(found.at) for it in found.held.values()) and time.monotonic() < until:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            found = await observer.observe()
        return found
    finally:
        await observer.close()


async def _result(
    server: str, reading: Awaitable[T], seconds: float, rights: list[KafkaRight] | None = None
) -> tuple[T | None, str]:
    """Returns what was read; None if it could not be read, and then why. `rights` gets the right that was refused."""
    try:
        async with asyncio.timeout(seconds):
            return await reading, ""
    except TimeoutError:
        return None, f"{server} does not answer within {seconds:g} s"
    except ProjectorError as error:
        if rights is not None and isinstance(error, Denied) and error.right:
            rights.append(error.right)
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - neither the projector nor a page may end because it cannot be measured
        return None, defect.report("an observation", error)


def _strangers(redis: RedisPart, kafka: KafkaPart) -> list[Member]:
    """Returns the members that no heartbeat knows. Former versions of the program do not say which ones they are. Nor
    can a projector that does not reach Redis and has joined again: it may have the number of members that it had.
    """
    projectors = [writer for writer in redis.writers if writer.heartbeat.role == "run"]
    if any(it.heartbeat.members is None and it.age_ms < _FORMER_MS for it in projectors):
        return []
    known = {id_ for writer in projectors for id_ in writer.heartbeat.members or ()}
    unknown = [member for member in kafka.members or () if member.id not in known]
    silent = sum(len(writer.heartbeat.members or ()) for writer in projectors if not writer.is_living_projector)
    own = [member for member in unknown if member.client_id == CLIENT_ID][:silent]
    return [member for member in unknown if member not in own]


def _waiting(redis: RedisPart, kafka: KafkaPart) -> dict[Partition, tuple[int, int]]:
    found = {}
    for partition, (first, last) in kafka.ranges.items():
        position = redis.position(partition)
        at = max(position.offset if position else 0, first)
        if at < last:
            found[partition] = (at, last)
    return found
