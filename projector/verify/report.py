"""The result of a verification."""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from projector.kafka.ends import OldestTransaction
from projector.record import Partition
from schemas.resources import AS_SPECIFIED
from schemas.words import utc

_EXAMPLES = 10
_MOST_SEEN = 1_000_000
FORMER_PARTITION = "former_partition"
"""In place of fields: Redis has the delete of an entity, and Kafka has a record of it in a partition that its key had
before partitions were added.
"""


class Difference(msgspec.Struct, frozen=True):
    """One document that differs. `fields` are the fields of the body that differ, or a word of `differing_fields`."""

    kind: str
    organization: str
    id: str
    fields: tuple[str, ...]

    @property
    def named_fields(self) -> list[str]:
        """The fields with the kind before each of them: `leads.quote_total`."""
        return [f"{self.kind}.{field}" for field in self.fields]

    def is_allowed(self, allowed: frozenset[str]) -> bool:
        """Returns whether all of its fields are allowed to differ."""
        return allowed.issuperset(self.named_fields)


class Unread(msgspec.Struct, frozen=True):
    """A number of `records` that Kafka has acknowledged, and that nobody can read: they are in the partition from the
    offset `first` on, where the oldest open transaction begins. `since` is the time of its first record, RFC 3339;
    empty if it is not known.
    """

    topic: str
    partition: int
    first: int
    records: int
    since: str


def unread(held: Mapping[Partition, OldestTransaction]) -> Iterator[Unread]:
    """Yields what these transactions hold back."""
    for (topic, number), transaction in sorted(held.items()):
        since = utc(transaction.began_at) if transaction.began_at else ""
        yield Unread(topic, number, transaction.first, transaction.records, since)


def counts_by_topic() -> dict[str, int]:
    """Returns 0 for the topic of each resource: the initial number of checked documents."""
    return {resource.topic: 0 for resource in AS_SPECIFIED}


class Report(msgspec.Struct):
    """The result of a verification. Differences that are `allowed` do not prevent a promotion."""

    of: str
    checked: dict[str, int]
    missing: int = 0
    extra: int = 0
    changed: int = 0
    former: int = 0
    """Deleted entities of which Kafka still has a record in a former partition. They must not come back."""
    allowed: int = 0
    by_field: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of documents by the field that differs (`leads.quote_total`), including allowed differences."""
    examples: list[Difference] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    changing: int = 0
    """Documents, or organizations, that kept changing and could not be compared."""
    unread: list[Unread] = msgspec.field(default_factory=list)
    """What could not be compared, because nobody can read it."""
    parts: int = 1
    """In how many parts the organizations were taken."""
    held: int = 0
    """The most entities that were kept at once."""
    strays: dict[str, int] = msgspec.field(default_factory=dict)
    """For each topic whose number of partitions was raised, how many live records are in a former partition."""
    seen: set[int] = msgspec.field(default_factory=set)
    """Hashes of the documents that were counted, because a scan may return a name twice. The first million is enough:
    names come twice only where Redis makes its table larger meanwhile."""

    late: set[str] = msgspec.field(default_factory=set)
    """The entities whose last record in the topics is not their newest one, as `names.late_version` names them."""

    @property
    def differences(self) -> int:
        return self.missing + self.extra + self.changed + self.former

    def add(self, difference: Difference, allowed: frozenset[str]) -> None:
        """Count a difference. If all of its fields are allowed, it counts only as allowed."""
        entity = hash((difference.kind, difference.organization, difference.id))
        if entity in self.seen:
            return
        if len(self.seen) < _MOST_SEEN:
            self.seen.add(entity)
            if len(self.seen) == _MOST_SEEN:
                self.notes.append(f"after {_MOST_SEEN:,} that differ, one may be counted twice, and no cause is named")
        self.by_field = dict(Counter(self.by_field) + Counter(difference.named_fields))
        if difference.is_allowed(allowed):
            self.allowed += 1
            return
        match difference.fields:
            case ("missing",):
                self.missing += 1
            case ("extra",):
                self.extra += 1
            case (kind,) if kind == FORMER_PARTITION:
                self.former += 1
            case _:
                self.changed += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(difference)

    def has(self, topic: str, message_key: str) -> bool:
        """Returns whether a difference of this entity was counted. `topic` is without its prefix."""
        organization_id, _, id_ = message_key.partition(":")
        return hash((topic, organization_id, id_ or organization_id)) in self.seen

    def leave(self, changing: int, what: str) -> None:
        """Note how many kept changing. `what` are documents or organizations."""
        self.changing = changing
        if changing:
            self.notes.append(f"{changing:,} {what} kept changing and could not be compared")

    @property
    def is_exact(self) -> bool:
        """Whether everything was compared, and nothing differs."""
        return not (self.differences or self.allowed or self.changing or self.unread)

    def passes(self, threshold: int) -> bool:
        """Returns whether everything could be read, and the number of differences that are not allowed is at most
        `threshold`.
        """
        return self.differences <= threshold and not self.unread

    def to_json(self) -> dict[str, object]:
        """Returns all figures as builtin types."""
        found = {field: getattr(self, field) for field in self.__struct_fields__ if field not in ("seen", "late")}
        return found | {"differences": self.differences}
