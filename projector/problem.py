"""What is wrong, as kinds with data. No English is stored, compared or counted: `projector/words.py` makes the
words at the edge, for every surface.

A problem of `severity` "note" has to be dealt with some time, although all is well.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from schemas import heartbeat
from schemas.heartbeat import Clocks, KafkaRight, LineTrouble

OF_STOPPED_LINES = frozenset(("no_step", "not_advancing"))
"""What follows if a line cannot write, or may not."""


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


class _Problem(msgspec.Struct, frozen=True, tag_field="kind", tag=_tag):
    severity: ClassVar[Literal["problem", "note"]] = "problem"
    parts: ClassVar[tuple[str, ...]] = ()
    """What does not work because of it: `kafka`, `projectors`, `redis`, `api`. The first one has to be repaired."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def label(self) -> str:
        """One of `schemas.metrics.PROBLEM_LABELS`, or another name if no projector reports it."""
        return self.kind

    @property
    def subjects(self) -> tuple[str, ...]:
        """The lines or the topics that it concerns, if there are any. With the label, each tells whether it is the same
        problem as a moment ago: other data may have changed."""
        return ("",)


class OfTopics(_Problem, frozen=True):
    parts = ("kafka",)
    topics: tuple[str, ...]

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.topics


class OfLine(_Problem, frozen=True):
    """`programs` are the ids of the projectors that report it; none if it is this program itself."""

    parts = ("projectors",)
    line: str
    programs: tuple[str, ...]

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.line,)


class _Note(_Problem, frozen=True):
    severity = "note"


class RedisUnknown(_Problem, frozen=True):
    """Redis cannot be read."""

    parts = ("redis", "projectors", "api")
    reason: str


class KafkaUnknown(_Problem, frozen=True):
    """Kafka cannot be read."""

    parts = ("kafka",)
    reason: str


class KafkaDenies(_Problem, frozen=True):
    """Kafka refuses a right. `programs` are the ids of the projectors that report it; none if it is this program."""

    parts = ("kafka", "projectors")
    programs: tuple[str, ...]
    right: KafkaRight

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(f"{self.right.resource} {name}" for name in self.right.names or ("",))


class TopicMissing(OfTopics, frozen=True):
    """These topics do not exist; or the user `principal` may not read them, if they are not `allowed`."""

    allowed: bool = True
    principal: str = ""


class TopicUnserved(OfTopics, frozen=True):
    """Partitions of these topics have no leader."""

    @property
    def label(self) -> str:
        return "kafka_unknown"


class TopicNotCompacted(OfTopics, frozen=True):
    """Kafka does not keep the newest record of each key; `policies` says what it keeps instead, of each topic.
    `compacted`: it does compact them, and deletes old records as well.
    """

    policies: tuple[str, ...]
    compacted: bool


class TopicRecreated(OfTopics, frozen=True):
    """The topic was deleted and created again. `noticed_at` is RFC 3339; an id is empty if it is not known.

    `access`: it has organizations or API keys, so that `verify --access` ends the problem.
    """

    noticed_at: str
    former_id: str
    topic_id: str
    access: bool


class TopicTruncated(TopicRecreated, frozen=True):
    """The topic has lost records that were applied. The fields are those of a topic that was created again."""


class HeldPartition(msgspec.Struct, frozen=True):
    """A partition with an open transaction. `first` is the offset of its first record, and this number of `records` is
    there from it on. It is open since `since`, which is RFC 3339, and for `seconds`.
    """

    partition: int
    first: int
    records: int
    since: str
    seconds: float


class OpenTransaction(OfTopics, frozen=True):
    """A producer has begun transactions in these partitions of the topic, and has neither committed nor aborted them.
    Nobody can read what Kafka has acknowledged behind their first records. The oldest transaction comes first.

    `access`: the topic has organizations or API keys.
    """

    held: tuple[HeldPartition, ...]
    access: bool

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(f"{self.topics[0]}:{partition.partition}" for partition in self.held)


class RecordsMissed(OfTopics, frozen=True):
    """Kafka has deleted records before they were read. `noticed_at` is RFC 3339.

    `access`: the topic has organizations or API keys.
    """

    noticed_at: str
    access: bool


class DeletesMissed(OfTopics, frozen=True):
    """Kafka may have removed deletions before they were read, because the topic was not read to its end since then
    (RFC 3339).
    """

    since: str


class PartitionsRaised(OfTopics, frozen=True):
    """The number of partitions was raised, so that records of keys that have moved stay in the former partitions.

    `noticed_at` is RFC 3339. `access`: the topic has organizations or API keys.
    """

    noticed_at: str
    access: bool


class OtherCluster(_Problem, frozen=True):
    """`met` is the id of the Kafka cluster that answers, `known` that of the one whose records were applied.

    Nothing of it is applied unless it is `accepted` by an operator: then it has replaced the known one, and nobody has
    verified yet what is served. `access`: nor organizations and API keys.
    """

    known: str
    met: str
    accepted: bool
    access: bool

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("kafka",) if self.accepted else ("kafka", "projectors")


class Evicted(_Problem, frozen=True):
    """Redis has deleted keys to free memory. `noticed_at` is RFC 3339."""

    parts = ("redis",)
    noticed_at: str


class RedisEvicts(_Problem, frozen=True):
    """Redis deletes documents when its memory is full."""

    parts = ("redis",)
    policies: tuple[str, ...]


class RedisFull(_Problem, frozen=True):
    """Redis refuses writes. `used` is the share of maxmemory on the fullest server, which is `limit` bytes."""

    parts = ("redis", "projectors")
    used: float
    limit: int


class RedisRefusesWrites(_Problem, frozen=True):
    """Redis refuses writes although it is not full. `reason` is what it said."""

    parts = ("redis", "projectors")
    reason: str


class ClockDiffers(_Problem, frozen=True):
    """The clock of Redis and that of a program differ; `clocks` is what both said at the same moment. `programs` are
    the ids of the projectors that report it; none if it is this program itself.
    """

    parts = ("redis",)
    programs: tuple[str, ...]
    clocks: Clocks


class RedisEmpty(_Problem, frozen=True):
    """`filling`: a projector is alive that fills it."""

    parts = ("redis", "api")
    filling: bool


class Incomplete(_Problem, frozen=True):
    """`shards` of `of` shards do not hold everything of the live generation. `addresses` are known on a cluster."""

    parts = ("redis", "api")
    shards: int
    of: int
    addresses: tuple[str, ...]


class ApiUnknown(_Problem, frozen=True):
    """The metrics ports of the API cannot be read. `unread` says which ones, and why."""

    parts = ("api",)
    unread: str


class ApiUnavailable(_Problem, frozen=True):
    """The API answers 503, or not at all. Of `workers` workers, `ready` are ready; `workers` is 0 if the API does not
    say it.

    `causes` are the errors that the others have met. `unavailable` is how many requests for documents got 503 in each
    of the last seconds. `filling`: it is only that projectors are still filling Redis.
    """

    parts = ("api",)
    ready: int
    workers: int
    causes: tuple[str, ...]
    unavailable: float
    filling: bool = False


class ApiReports(_Problem, frozen=True):
    """This number of `workers` of the API report a problem. `reported` is one of `schemas.metrics.API_PROBLEM_LABELS`,
    or another name of a newer version.
    """

    parts = ("api",)
    reported: str
    workers: int

    @property
    def label(self) -> str:
        return self.reported


class NoProjector(_Problem, frozen=True):
    """No projector is alive. `silent` are the ids of those that have stored no heartbeat for a while."""

    parts = ("projectors",)
    silent: tuple[str, ...]


class FewProjectors(_Problem, frozen=True):
    """Fewer projectors are alive than LEADVIEW_EXPECTED_PROJECTORS says, here or in a projector that is alive."""

    parts = ("projectors",)
    alive: int
    expected: int


SharedSetting = Literal["LEADVIEW_TOPIC_PREFIX", "LEADVIEW_GROUP_ID"]


class OtherSettings(_Problem, frozen=True):
    """These projectors have a value of a setting that has to be the same everywhere. `others` is that of the program
    that says so; `alone`: no projector has it.
    """

    parts = ("projectors",)
    programs: tuple[str, ...]
    setting: SharedSetting
    theirs: str
    others: str
    alone: bool = False


class Stranger(msgspec.Struct, frozen=True):
    """A member of a consumer group which is no projector of this installation, and the partitions that it has."""

    client_id: str
    host: str
    group: str
    partitions: tuple[str, ...]


class ForeignMember(_Problem, frozen=True):
    """Others are members of the consumer groups: nobody applies here what is in their partitions."""

    parts = ("projectors",)
    strangers: tuple[Stranger, ...]

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{it.group} {it.client_id} {it.host}" for it in self.strangers))


class Halted(OfLine, frozen=True):
    """Too many bad records have stopped the line."""

    trouble: LineTrouble


class Failing(OfLine, frozen=True):
    """The line meets a defect, and tries again."""

    trouble: LineTrouble


class StandingBy(OfLine, frozen=True):
    """The line leaves its work to newer programs."""

    trouble: LineTrouble


class NotAdvancing(OfLine, frozen=True):
    """Records wait, and none of them has been applied for so long. 0 seconds: that is said elsewhere."""

    records: int
    seconds: float
    partitions: tuple[str, ...]


class NoPartitions(OfLine, frozen=True):
    """This number of partitions belongs to no living projector. `spare`: this one has none."""

    partitions: int
    spare: bool


class Reported(OfLine, frozen=True):
    """What a projector says about itself in words. `reported` is one of `schemas.metrics.PROBLEM_LABELS`, or empty if
    it does not say that.
    """

    reported: str
    text: str
    seconds: float = 0.0
    """For how long; 0 if it does not say that, or only in its text."""

    @property
    def label(self) -> str:
        return self.reported


class AccessAsBefore(_Problem, frozen=True):
    """Records of these organizations and API keys, given by their message keys, are bad: what they should have changed,
    such as the status of a key, is as it was before.
    """

    parts = ("api",)
    keys: tuple[str, ...]


class DocumentsAsBefore(_Problem, frozen=True):
    """The newest records of these entities are bad: readers see what was there before. Compaction keeps the bad records
    alone, so a Redis that is emptied, or a rebuild, has no such document. Each is given by its topic without the prefix
    and its message key.
    """

    parts = ("api",)
    entities: tuple[str, ...]
    unknown: int = 0
    """The number of dead letters that were not looked at."""


class OlderPublished(_Problem, frozen=True):
    """The last records of these entities are not their newest ones: an older version was published behind a newer one,
    or, of `reused` entities among them, the same version with other content or as a delete. Compaction keeps the last
    record alone. Each entity is given by its topic without the prefix and its message key; there are records of `more`
    others.
    """

    parts = ("kafka",)
    entities: tuple[str, ...]
    reused: int = 0
    more: int = 0


class Stale(_Problem, frozen=True):
    """`records` wait to be applied, the oldest for `seconds`: readers see an old state.

    `hindered` are the projectors of which a line cannot make a step now. `enough`: more projectors would get nothing to
    do.
    """

    parts = ("projectors",)
    records: int
    seconds: float
    hindered: tuple[str, ...] = ()
    enough: bool = False


class RebuildDue(_Note, frozen=True):
    """The live generation has an older mapping version than this program."""

    live: int
    program: int


class GenerationUnfilled(_Note, frozen=True):
    """The next generation is not complete, and no rebuild is running."""

    generation: int


class GenerationUnwritten(_Note, frozen=True):
    """The next generation is complete, and no projector has the mapping version that writes it."""

    generation: int
    mapping: int


class OtherLayout(_Note, frozen=True):
    """Redis also holds data of another layout than that of this program."""

    layout: int


class DeadLetters(_Note, frozen=True):
    """There are bad records that nobody has dealt with."""

    count: int
    unknown: int = 0
    """The number of those of which it is not known whether readers see an older state because of them."""
    named: int = 0
    """The number of further ones, because of which entities are as before: a problem names those."""


class Silent(_Note, frozen=True):
    """Programs that write have stored no heartbeat, the first of them for so long."""

    programs: tuple[str, ...]
    role: str
    seconds: float


class Misplaced(_Note, frozen=True):
    """New records of these topics are in other partitions than murmur2 gives for their message keys."""

    topics: tuple[str, ...]


class RedisNearlyFull(_Note, frozen=True):
    """`used` is the share of maxmemory on the fullest server."""

    used: float


Problem = (
    RedisUnknown
    | KafkaUnknown
    | KafkaDenies
    | TopicMissing
    | TopicUnserved
    | TopicNotCompacted
    | TopicRecreated
    | TopicTruncated
    | OpenTransaction
    | RecordsMissed
    | DeletesMissed
    | PartitionsRaised
    | OtherCluster
    | Evicted
    | RedisEvicts
    | RedisFull
    | RedisRefusesWrites
    | ClockDiffers
    | RedisEmpty
    | Incomplete
    | ApiUnknown
    | ApiUnavailable
    | ApiReports
    | NoProjector
    | FewProjectors
    | OtherSettings
    | ForeignMember
    | Halted
    | Failing
    | StandingBy
    | NotAdvancing
    | NoPartitions
    | Reported
    | AccessAsBefore
    | DocumentsAsBefore
    | OlderPublished
    | Stale
    | RebuildDue
    | GenerationUnfilled
    | GenerationUnwritten
    | OtherLayout
    | DeadLetters
    | Silent
    | Misplaced
    | RedisNearlyFull
)


def stops(it: Problem) -> Literal["", "line", "all"]:
    """Returns which lines apply nothing because of a problem: none, one, or all."""
    if isinstance(it, RedisUnknown | RedisFull | RedisRefusesWrites | NoProjector):
        return "all"
    if isinstance(it, OtherCluster):
        return "" if it.accepted else "all"
    return "line" if isinstance(it, Halted | Failing | StandingBy | KafkaDenies) or it.label in OF_STOPPED_LINES else ""


def of_line(line: str, trouble: LineTrouble, programs: tuple[str, ...] = ()) -> Problem:
    """Returns what is wrong with a line that does not work."""
    kinds: Mapping[str, type[Halted | StandingBy]] = {
        heartbeat.HaltedLine.state: Halted,
        heartbeat.StandingByLine.state: StandingBy,
    }
    return kinds.get(trouble.state, Failing)(line, programs, trouble)


def seconds_of(it: Problem) -> float:
    """Returns for how long a problem lasts; 0 if it does not say that."""
    return getattr(it, "seconds", 0.0)


def lasting(it: Problem, seconds: float) -> Problem:
    """Returns the problem as if it lasted for so long. It is the same one."""
    return replace(it, seconds=seconds) if hasattr(it, "seconds") else it
