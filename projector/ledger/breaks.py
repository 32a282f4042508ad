"""Breaks: events after which what is served may be wrong, until it was compared with Kafka.

Some are breaks in the history of a topic: it was deleted and created again, or has lost records that were applied. The
positions of the former history say nothing about the new one, and documents of records that Kafka no longer has are
still served. A line that finds such a break first notes it in the control record: from then on, no program that has not
read the note can store a position. Then the line takes back the positions, and reads on. `docs/how-it-works.md` has the
rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import get_args

from msgspec.structs import replace

from projector.errors import Conflict
from projector.ledger import copies
from projector.ledger.control import ACCESS, NEW_HISTORY, NO_ID, Break, BreakKind, ControlRecord, Position, State, now
from projector.record import Partition
from projector.redis import scripts
from projector.redis.scripts import RewindRow
from projector.redis.store import Store
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import HISTORIES
from schemas.resources import ACCESS_KINDS

_ANY_OFFSET = 2**53 - 1
BREAKS: tuple[BreakKind, ...] = get_args(BreakKind)
AllPositions = Mapping[Partition, Sequence[Position]]
"""The positions of each partition, in all copies."""


def recreated(record: ControlRecord, stored: AllPositions, ids: Mapping[str, str]) -> list[Break]:
    """Returns a break for each topic that has another id than when these positions were stored. `ids` are those of the
    topics now, as far as they are known.
    """
    former: dict[str, str] = {}
    for partition, positions in stored.items():
        known = ids.get(partition.topic)
        others = [it.topic_id for it in positions if it.topic_id not in ("", known)]
        if known and others:
            former.setdefault(partition.topic, others[0])
    return [new_break(record, "topic_recreated", topic, id_, ids[topic]) for topic, id_ in former.items()]


def rewind(partition: Partition, topic_id: str, highest: int = _ANY_OFFSET, to: Position | None = None) -> RewindRow:
    """Returns the row that deletes a position of another topic id, and replaces a position above `highest` by `to`.
    Without `to`, it deletes that one as well.
    """
    return RewindRow(names.position(*partition), topic_id or NO_ID, highest, to.format() if to else b"")


async def note(store: Store, record: ControlRecord, found: Sequence[Break]) -> bool:
    """Note these breaks. Returns False if the control record has changed meanwhile: then look again.

    Raises Unavailable.
    """

    try:
        await copies.change(store, record, lambda state: with_breaks(state, found))
    except Conflict:
        return False
    return True


def with_breaks(state: State, found: Sequence[Break]) -> State:
    """Returns the state with these breaks."""
    histories, breaks = dict(state.histories), {(it.kind, it.topic): it for it in state.breaks}
    for one in found:
        before = breaks.get((one.kind, one.topic))
        unverified = {*one.unverified, *(before.unverified if before else ())}
        since = min((it.since for it in (one, before) if it and it.since), default="")
        breaks[one.kind, one.topic] = replace(one, unverified=tuple(sorted(unverified)), since=since)
    for topic in {one.topic for one in found if one.kind in NEW_HISTORY}:
        histories[topic] = (histories.get(topic, 0) + 1) % HISTORIES
    return replace(state, histories=histories, breaks=tuple(breaks.values()))


async def learn_cluster(store: Store, record: ControlRecord, cluster: str) -> None:
    """Store the id of the Kafka cluster whose records are applied from now on. If the control record has changed
    meanwhile, nothing is stored. Raises Unavailable.
    """
    with suppress(Conflict):
        await copies.change(store, record, lambda state: replace(state, cluster=state.cluster or cluster))


async def accept_cluster(store: Store, record: ControlRecord, cluster: str, topics: Iterable[str]) -> None:
    """Let another Kafka cluster replace the one whose records were applied: what is served is unverified, and all
    topics are read from their beginning. Raises Conflict if the control record has changed since, and Unavailable.
    """
    found = [new_break(record, "other_cluster", topic, record.state.cluster, cluster) for topic in topics]

    def compute(state: State) -> State:
        return replace(with_breaks(state, found), cluster=cluster, partitions={})

    changed = await copies.change(store, record, compute)
    partitions = {partition for copy in changed.present for partition in copy.positions}
    rewinds = [rewind(partition, "", -1) for partition in sorted(partitions)]
    copies_of = [names.copy(names.CONTROL, tag) for tag in changed.copies]
    await store.run([scripts.rewind(positions=positions, rewinds=rewinds) for positions in copies_of])


def new_break(
    record: ControlRecord, kind: BreakKind, topic: str, former_id: str = "", topic_id: str = "", since: str = ""
) -> Break:
    """Returns a break that is noticed now. Every written generation is unverified, or only access if the topic is one
    of access; without a `topic`, all of them and access.
    """
    is_access = any(topic.endswith(each.topic) for each in ACCESS_KINDS)
    written = () if is_access else record.state.written
    access = (ACCESS,) if is_access or not topic else ()
    return Break(kind, topic, former_id, topic_id, now(), tuple(sorted((*access, *written))), since, token_hex(4))


async def confirm(store: Store, verified: GenerationId, seen: Sequence[Break]) -> None:
    """Notes that this generation (or `ACCESS`) agrees with Kafka: these breaks no longer concern it. Tries again if the
    control record changes meanwhile, because the verification may have taken an hour. Raises Unavailable.
    """

    def compute(state: State) -> State:
        left = [it.without(verified) if any(map(it.is_same, seen)) else it for it in state.breaks]
        return replace(state, breaks=tuple(it for it in left if it.unverified))

    record = await copies.require(store)
    while any(verified in it.unverified and any(map(it.is_same, seen)) for it in record.state.breaks):
        with suppress(Conflict):
            await copies.change(store, record, compute)
            return
        record = await copies.require(store)


def served(record: ControlRecord, ids: Mapping[str, str]) -> list[Break]:
    """Returns the breaks after which what is served may differ from Kafka: those that are noted, and those that no line
    has noted yet. `ids` are those of the topics now, as far as they are known.
    """
    found = [it for it in record.state.breaks if {record.state.live, ACCESS} & {*it.unverified}]
    known = {it.topic for it in found if it.kind in NEW_HISTORY}
    return found + [it for it in recreated(record, record.stored(), ids) if it.topic not in known]


def hides(record: ControlRecord) -> bool:
    """Returns whether a break makes it unknown up to which moment everything is visible.

    Added partitions alone change nothing that is visible now.
    """
    return any(it.kind != "partitions_raised" for it in served(record, {}))
