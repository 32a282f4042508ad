"""What became of a lead, a contact or a record, in words. Pure."""

from collections.abc import Sequence

import msgspec

from projector.commands.show import Entity
from projector.commands.show_access import StoredOrganization
from projector.commands.show_view import coordinates, utc
from projector.console.answer import Answer, Event, Fact, State
from projector.console.story import Applied, events
from projector.console.topics import NEWEST, Found
from projector.dead_letter import DeadLetter
from projector.record import Partition, Record
from schemas.layouts import Head
from schemas.resources import Resource

_LOOKED = f"Kafka was looked through for it: the newest {NEWEST:,} offsets of each partition"
_MOST_EVENTS = 50
_ORDERING = "how-it-works.md#ordering-which-event-wins"


class Seen(msgspec.Struct, frozen=True):
    """The entity that was asked for, and the name of its topic."""

    resource: Resource
    topic: str
    organization: str
    id: str


def answer(
    seen: Seen,
    entity: Entity,
    records: Sequence[Record],
    applied: Applied,
    organization: StoredOrganization,
    found: Found,
) -> Answer:
    """Returns what is known of an entity. `found` says how much of its topic was looked through for the records."""
    live = next((each for each in entity.generations if each.live), None)
    told = events(records, applied, whole=found.whole)
    verdict, state = _verdict(seen, live.event if live else None, told, entity.dead_letters, found)
    if organization.job_due == "replay":
        verdict += " The organization was recreated, and its records are being read again: the API answers 503 for it."
    elif organization.refusal:
        verdict += f" No key of its organization can read it: {organization.refusal.why}"
        state = "wrong"
    facts = [
        Fact("organization", seen.organization),
        *[
            Fact(
                f"generation {each.generation}{' (live)' if each.live else ''}",
                coordinates(each.event, seen.topic).replace("[yellow]", "").replace("[/]", "")
                if each.event
                else "no event of it was applied",
            )
            for each in entity.generations
        ],
    ]
    if live and live.etag:
        facts.append(Fact("ETag", live.etag))
    facts += [
        Fact("dead letter", f"{letter.field}, parked at {utc(letter.time)}: {letter.reason}")
        for letter in entity.dead_letters
    ]
    page = "dead-letters.md" if state == "wrong" and entity.dead_letters else _ORDERING
    return Answer(f"{seen.resource.noun} {seen.id}", verdict, state, page, facts, told[:_MOST_EVENTS], _note(found))


def _verdict(
    seen: Seen, head: Head | None, told: Sequence[Event], letters: Sequence[DeadLetter], found: Found
) -> tuple[str, State]:
    noun = seen.resource.noun
    waiting = next((each for each in told if each.state == "waits"), None)
    later = f" The event at {waiting.record} {waiting.outcome}." if waiting else ""
    bad = max(letters, key=lambda letter: (letter.time, letter.offset), default=None)
    if bad and not waiting:
        later = f" The event at {bad.field} is bad, and became a dead letter: {bad.reason}"
    if head is None:
        known = later or _not_published(seen, found)
        return f"No event of this {noun} was applied, so readers get 404.{known}", "waits" if waiting else "wrong"
    if not head.live:
        return f"This {noun} is deleted, so readers get 404: by {_place(seen.topic, head)}.{later}", "plain"
    if bad and not waiting and bad.time < head.time:
        later = f" An earlier event, at {bad.field}, was bad: {bad.reason}"
    text = f"Readers see {_place(seen.topic, head)}.{later}"
    ignored = next((each for each in told if "was ignored" in each.outcome), None)
    if ignored and not later:
        text += f" The event at {ignored.record} {ignored.outcome}: publish it with a version above {head.version}."
    state: State = "waits" if waiting else "wrong" if bad and bad.time >= head.time else "plain" if ignored else "well"
    return text, state


def _not_published(seen: Seen, found: Found) -> str:
    """Returns why no event of an entity is known, without the causes that are excluded."""
    key = f"{seen.organization}:{seen.id}"
    if found.whole:
        return (
            f" None was ever published to {seen.topic} of the Kafka that this console reads: all of its records were "
            f"looked through. Publish it there, with the message key {key}."
        )
    return (
        f" None is among the newest {NEWEST:,} offsets of each partition of {seen.topic}: it was published long "
        f"ago, or never with the message key {key}."
    )


def _place(topic: str, head: Head) -> str:
    return f"version {head.version} at {topic}:{head.partition}:{head.offset}, of {utc(head.time)}"


def _note(found: Found) -> str:
    if found.whole:
        return "Kafka was looked through for it: all records of the topic."
    return f"{_LOOKED}." if found.all else f"{_LOOKED}, but not all of them in time: older ones may be missing below."


def with_contact(lead: Answer, contact: Head | None, spliced: bool) -> Answer:
    """Returns the answer about a lead, with what is known of the contact inside it."""
    if contact is None:
        said = " No event of its contact was applied, so `contact` is null: see below."
        return msgspec.structs.replace(lead, verdict=lead.verdict + said, state="plain")
    if not contact.live:
        said = " Its contact is deleted, so `contact` is null."
        return msgspec.structs.replace(lead, verdict=lead.verdict + said)
    if not spliced:
        said = " Its contact has changed, and the new summary is being written into its leads (a fan-out)."
        return msgspec.structs.replace(lead, verdict=lead.verdict + said, state="waits")
    fact = Fact("contact inside it", f"as it is now: version {contact.version}")
    return msgspec.structs.replace(lead, facts=[*lead.facts, fact])


def of_record(record: Record, told: Event, bad: Sequence[Fact] = ()) -> Answer:
    """Returns what is known of one record. `bad` is what is known of the field that makes it bad."""
    key = (record.key or b"").decode(errors="backslashreplace")
    facts = [
        Fact("message key", key or "none"),
        Fact("version", "none" if told.version is None else str(told.version)),
        Fact("time of the event", told.time),
        Fact("time of the record", utc(record.timestamp)),
        Fact("value", "null: it deletes the entity" if record.value is None else f"{len(record.value):,} bytes"),
        *bad,
    ]
    page = "dead-letters.md" if "is bad" in told.outcome else _ORDERING
    return Answer(f"record {told.record}", f"This record {told.outcome}.", told.state, page, facts)


def no_record(partition: Partition, offset: int, span: tuple[int, int] | None, letter: DeadLetter | None) -> Answer:
    """Returns why there is no record at these coordinates."""
    title = f"record {partition.topic}:{partition.partition}:{offset}"
    facts = [Fact("dead letter", f"key {letter.key}: {letter.reason}")] if letter else []
    if span is None:
        text = "There is no such partition among the topics of Leadview. Is the name written with its prefix?"
        return Answer(title, text, "wrong", facts=facts)
    if offset >= span[1]:
        return Answer(title, f"Nothing was published there yet: the partition ends at offset {span[1]:,}.", "wrong")
    if offset < span[0]:
        return Answer(title, f"Kafka has deleted it: the partition begins at offset {span[0]:,}.", "plain", facts=facts)
    text = (
        "Compaction has removed it, so a newer record with the same key was published; or it marks the end of a "
        "transaction."
    )
    return Answer(title, text, "plain", _ORDERING, facts)


def only_published(noun: str, records: Sequence[Record], applied: Applied, found: Found) -> Answer:
    """Returns what is known of an entity that Kafka knows, and Redis does not."""
    told = events(records, applied)
    key = (records[0].key or b"").decode(errors="backslashreplace")
    newest = told[0]
    verdict = f"Nothing is stored of this {noun}, so readers get 404. Its event at {newest.record} {newest.outcome}."
    facts = [Fact("message key", key)]
    page = "dead-letters.md" if newest.state == "wrong" else "runbook.md#leadviewstale"
    return Answer(f"{noun} {key}", verdict, newest.state, page, facts, told[:_MOST_EVENTS], _note(found))


def unheard_of(id_: str, refusal: str, *, complete: bool) -> Answer:
    """Returns the answer about an id that neither Redis nor Kafka knows."""
    verdict = (
        "No lead, contact, organization or API key has this id in Redis, and no event of it is among the newest "
        f"{NEWEST:,} of each partition{'' if complete else ' that could be read in time'}. It was not published, or "
        "its message key is another one."
    )
    if refusal:
        verdict += f" {refusal}"
    facts = [Fact("if it is a request id", _WHERE)]
    return Answer(f"id {id_}", verdict, "wrong", "events.md", facts)


_WHERE = (
    "The console does not know single requests. Look for it in the log of the API: every answer with 5xx leaves a line "
    "with its request_id, and some of those with 4xx do (LEADVIEW_REQUEST_LOG=all logs every answer)."
)


def unknown() -> Answer:
    """Returns the answer about a text that is neither an id nor coordinates: perhaps a request id."""
    return Answer(
        "request id?",
        f"This is not an id, a message key, or <topic>:<partition>:<offset>. {_WHERE}",
        "plain",
        "runbook.md#a-request-is-found-again",
    )


def not_finished(what: str) -> Answer:
    """Returns the answer if the search took too long."""
    return Answer(
        f"search for {what}",
        "Redis holds so much that the search was ended before it had seen everything. With the organization it is "
        "found at once: write <organization>:<id>, or use `show key -` for a key.",
        "wrong",
    )
