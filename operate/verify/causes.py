"""Finds out which differences have a cause in the topics: Kafka has lost what is served, and Redis is right."""

from projector.ledger import copies, late_versions
from projector.redis.store import Store
from projector.upkeep.dead_letters import of_newest
from projector.verify.report import Report
from projector.words import some
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings


async def note_causes(store: Store, settings: ProjectorSettings, report: Report) -> None:
    """Add notes to a report about differences of entities whose newest record is bad, or whose last record is not the
    newest one: after the compaction Kafka has no other one. Raises Refused if Redis is empty, and Unavailable.
    """
    live = (await copies.require(store)).state.live
    dead_letters = int(await store.ask_one(b"HLEN", names.DEAD_LETTERS))
    bad, unknown = await of_newest(store, settings, live, dead_letters)
    late = (await late_versions.current(store, live)).named
    of_bad = [(kind.topic, letter.key) for letter in bad for kind in KINDS if letter.topic.endswith(kind.topic)]
    for entities, why in (
        (of_bad, "the newest record is bad, and Kafka keeps no older one: `dead-letters list` says why"),
        ([(one.kind, one.key) for one in late], "an older version was published late, and Kafka keeps no other one"),
    ):
        differing = sorted({(kind, key) for kind, key in entities if report.has(kind, key)})
        if differing:
            named = some([f"{kind} {key.replace(':', ' ')}" for kind, key in differing])
            report.notes.append(
                f"of {len(differing):,} that differ, {why}. What is served is right: publish them again with a higher "
                f"version before you promote anything ({named})"
            )
    if unknown and report.differences:
        report.notes.append(f"{unknown:,} dead letters were not looked at: they may be the cause of what differs")


async def end_count(store: Store, report: Report) -> None:
    """No longer count the late versions that the list does not name, if this comparison was exact, and has found no
    other ones. Raises Unavailable.
    """
    kinds = [kind for kind in KINDS if kind.topic in report.checked]
    listed = await late_versions.read(store)
    if listed.more and report.is_exact and report.late <= {one.field for one in listed.named}:
        await late_versions.forget_more(store, kinds)
