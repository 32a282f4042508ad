"""The words for what became of an entity, a record or a key: for the terminal, `--json` and the page. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, assert_never

import msgspec

from operate.explain.explainer import AboutEntity, AboutOrganization, AboutRecord, Explanation, Gap, Nothing
from operate.explain.records import NEWEST, BadField, Fate, Published, Told
from operate.explain.stored import (
    AccessCheck,
    InGeneration,
    Refusal,
    StoredBucket,
    StoredEntity,
    StoredKey,
    StoredOrganization,
)
from projector.dead_letter import DeadLetter
from projector.ledger.late_versions import LateVersion
from schemas.layouts import Head
from schemas.resources import API_KEY, CONTACT, LEAD, ORGANIZATION
from schemas.words import utc

_MOST_EVENTS = 50
_MOST_CHARACTERS = 200
_HIDDEN = "not shown: the console was started without --show-documents"
_ACCESS = "runbook.md#why-is-a-key-refused"
_ORDERING = "how-it-works.md#ordering-which-event-wins"
_OLDER_PUBLISHED = "runbook.md#leadviewolderpublished"

Tone = Literal["well", "wrong", "waits", "plain"]
"""How it is meant: as it should be, refused or bad, under way, or neither."""


class Fact(msgspec.Struct, frozen=True):
    """A line of a table."""

    name: str
    value: str


class Event(msgspec.Struct, frozen=True):
    """A record in Kafka, and what became of it: its `Fate`, and the same in words. `time` is RFC 3339."""

    kind: str
    record: str
    version: int | None
    time: str
    outcome: str
    state: Tone


class ShownDocument(msgspec.Struct, frozen=True):
    """A document as it is stored. `title` names the generations that have it."""

    title: str
    value: Any


class Answer(msgspec.Struct, frozen=True):
    """About one thing. `verdict` says in a sentence what happened to it, `page` is a page in `docs` that says more.

    `kind` is the same for programs: the `AccessCheck` that refuses a key (`accepted` if none does), the `Fate` of a
    record, whether an entity is `shown`, `deleted` or `not applied`, or why nothing is known.

    `events` are the records of it in Kafka, the newest first, as far as they were looked for. `documents` are those
    that differ, the live one first; there are none if documents are not to be shown. All of it is plain text: nobody
    reads it as HTML or as markup.
    """

    kind: str
    title: str
    verdict: str
    state: Tone = "plain"
    page: str = ""
    facts: list[Fact] = []
    events: list[Event] = []
    note: str = ""
    documents: list[ShownDocument] = []


REFUSALS: Mapping[AccessCheck, str] = {
    "incomplete": (
        "Redis does not hold everything yet, so the API answers 503 for the organizations of the parts that are not "
        "complete, until a projector has filled them. `status` shows how far it is."
    ),
    "replaying": (
        "The organization was recreated after a delete, and its records are being read again from the topics. The API "
        "answers 503 until a projector has done this."
    ),
    "no key": "No key was given. Send it as `Authorization: Bearer <key>`.",
    "malformed": "This is not a key of Leadview: {refusal.fault}. Redis is not even asked for it.",
    "unknown key": (
        "No key with this hash is stored: its event was not applied, or the API key or its organization is deleted. If "
        "the event was published, look at `dead-letters list` and `verify --access`."
    ),
    "revoked": "The key is revoked, by the newest event of the API key {refusal.id}.",
    "expired": "The key has expired at {at}, as the newest event of the API key {refusal.id} says.",
    "unknown organization": (
        "No event of this organization was applied. Publish its event with api_access true. If it was published, look "
        "at `dead-letters list` and `verify --access`."
    ),
    "deleted organization": ("The organization is deleted. Publish it again, with a higher version, if that is wrong."),
    "access off": "The newest event of the organization switches API access off. Publish one with api_access true.",
    "used up": (
        "The limit of the {refusal.bucket.scope}, {requests}, is used up for the next {refusal.bucket.wait:.1f} s."
    ),
}
_IGNORED = ("outranked", "older", "tombstone ignored")
OUTCOMES: Mapping[Fate, tuple[Tone, str]] = {
    "waits": ("waits", "waits to be applied: {before}"),
    "parked": ("wrong", "is bad, and became a dead letter{accepted}: {told.reason}"),
    "bad": ("wrong", "is bad: {told.reason}. It has no dead letter any more"),
    "shown": ("well", "was applied, and is what is stored"),
    "deleted": ("well", "was applied: it deleted the entity"),
    "outranked": (
        "wrong",
        "was ignored: its version {told.version} is {relation} {shown}, which was there before it",
    ),
    "older": ("plain", "was ignored: version {told.before} was there before it"),
    "tombstone ignored": (
        "wrong",
        "is a delete (tombstone) and was ignored: it is in another partition than {shown}, whose time is later",
    ),
    "replaced": ("plain", "was replaced since by {newer}"),
    "replaced or older": ("plain", "was replaced since by {newer}, or ignored as older"),
    "not shown": ("wrong", "is not shown, although it is newer than {shown}: run `verify`"),
    "not stored": (
        "wrong",
        "was read, and nothing is stored of it: its organization is deleted, or Redis has lost it",
    ),
}
_REQUEST = (
    "The console does not know single requests. Look for it in the log of the API: every answer with 5xx leaves a line "
    "with its request_id, and some of those with 4xx do (LEADVIEW_REQUEST_LOG=all logs every answer)."
)
NOTHING: Mapping[Gap, tuple[Tone, str, str, str]] = {
    "no partition": (
        "wrong",
        "",
        "record",
        "There is no such partition among the topics of Leadview. Is the name written with its prefix?",
    ),
    "not yet": (
        "wrong",
        "",
        "record",
        "Nothing was published there yet: the partition ends at offset {found.offset:,}.",
    ),
    "held back": (
        "waits",
        "runbook.md#leadviewopentransaction",
        "record",
        "Nobody can read it yet: in this partition, a transaction is open from offset {found.offset:,} on.",
    ),
    "deleted by Kafka": (
        "plain",
        "",
        "record",
        "Kafka has deleted it: the partition begins at offset {found.offset:,}.",
    ),
    "compacted": (
        "plain",
        _ORDERING,
        "record",
        (
            "Compaction has removed it, so a newer record with the same key was published; or it marks the end of a "
            "transaction."
        ),
    ),
    "unheard of": (
        "wrong",
        "events.md",
        "message key",
        (
            "Nothing in Redis has this message key, and it was never published: all records of all topics were looked "
            "through. Publish it, or correct the message key."
        ),
    ),
    "not read": (
        "wrong",
        "events.md",
        "message key",
        (
            "Nothing in Redis has this message key. It is not known if it was ever published: of each partition, only "
            "the newest {newest:,} offsets that could be read in time were looked through."
        ),
    ),
    "id alone": (
        "plain",
        "events.md#topics-and-message-keys",
        "id",
        (
            "No organization has this id in Redis. A lead, a contact or an API key is found by its message key alone: "
            "write <organization>:<id>. Other questions are <topic>:<partition>:<offset>, and an API key."
        ),
    ),
    "not finished": (
        "wrong",
        "",
        "search for",
        (
            "It is not known if this key is stored: Redis holds so much that the search was ended before it had seen "
            "everything. `show key -` finds it at once."
        ),
    ),
    "no question": (
        "plain",
        "runbook.md#a-request-is-found-again",
        "request id?",
        f"This is not an id, a message key, or <topic>:<partition>:<offset>. {_REQUEST}",
    ),
}
"""How it is meant, the page that says more, the title, and the words."""


def to_json(found: StoredEntity | StoredOrganization | StoredKey) -> dict[str, Any]:
    """Returns what `show --json` prints."""
    shown: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(found, refusal=None))
    if found.refusal:
        row, status, error = found.refusal.answer
        shown["refusal"] = {"row": row, "status": status, "error": error, "why": why(found.refusal)}
    if isinstance(found, StoredKey) and found.organization:
        shown["organization"] = to_json(found.organization)
    return shown


def records_to_json(found: AboutEntity | AboutOrganization) -> dict[str, Any]:
    """Returns what `show --records --json` adds: each record that Kafka holds and whether it has `data`, and how many
    offsets are `unread`, behind an open transaction.
    """
    if found.published is None:
        return {}
    return {"records": msgspec.to_builtins(found.told), "unread": found.published.unread}


def answer(found: Explanation, topic_prefix: str, *, show_documents: bool) -> Answer:
    """Returns an explanation in words."""
    match found:
        case AboutEntity():
            return _entity(found, topic_prefix, show_documents)
        case AboutOrganization():
            return _about_organization(found, topic_prefix)
        case StoredKey():
            return _key(found, topic_prefix)
        case AboutRecord():
            return _record(found, show_documents)
        case Nothing():
            return _nothing(found)
    assert_never(found)


def _about_organization(found: AboutOrganization, topic_prefix: str) -> Answer:
    stored = found.stored
    verdict, state = _verdict(stored.refusal, "A request with a valid key of this organization")
    verdict += " Its keys and documents are being deleted." if stored.job_due == "erase" else ""
    verdict, state = _as_before(stored.dead_letters, verdict, state)
    verdict, state = _late(stored.late_versions, topic_prefix, verdict, state)
    page = _OLDER_PUBLISHED if stored.late_versions else _ACCESS
    facts = [*_organization(stored, topic_prefix), *_letters(stored.dead_letters)]
    title = f"organization {stored.organization}"
    return Answer(_kind(stored.refusal), title, verdict, state, page, facts, *_history(found.told, found.published))


def _key(found: StoredKey, topic_prefix: str) -> Answer:
    verdict, state = _as_before(found.dead_letters, *_verdict(found.refusal, "A request with this key"))
    verdict, state = _late(found.late_versions, topic_prefix, verdict, state)
    page = _OLDER_PUBLISHED if found.late_versions else _ACCESS
    facts = [Fact("SHA-256", found.hash or "not known")]
    for each in found.api_keys:
        expiry = f", expires at {utc(each.expires_at)}" if each.expires_at else ""
        origin = coordinates(each.event, f"{topic_prefix}{API_KEY.topic}")
        facts.append(Fact("API key", f"{each.id}: {each.status}{expiry}; {origin}"))
    facts += _organization(found.organization, topic_prefix) if found.organization else []
    return Answer(_kind(found.refusal), "API key", verdict, state, page, facts + _letters(found.dead_letters))


def _record(found: AboutRecord, show_documents: bool) -> Answer:
    record, (events, note) = found.record, _history(found.told, found.published)
    event = events[0]
    facts = [
        Fact("message key", (record.key or b"none").decode(errors="backslashreplace")),
        Fact("version", str(event.version or "none")),
        Fact("time of the event", event.time),
        Fact("time of the record", utc(record.timestamp)),
        Fact("value", "null: it deletes the entity" if record.value is None else f"{len(record.value):,} bytes"),
        *_bad(found.bad, show_documents),
    ]
    page = "dead-letters.md" if found.told[0].reason else _ORDERING
    others = events if found.published else []
    verdict = f"This record {event.outcome}."
    return Answer(event.kind, f"record {event.record}", verdict, event.state, page, facts, others, note)


def _nothing(found: Nothing) -> Answer:
    state, page, title, text = NOTHING[found.gap]
    verdict = text.format(found=found, newest=NEWEST) + (f" {why(found.refusal)}" if found.refusal else "")
    facts = [Fact("dead letter", f"key {found.letter.key}: {found.letter.reason}")] if found.letter else []
    if found.gap == "id alone":
        facts.append(Fact("if it is a request id", _REQUEST))
    return Answer(found.gap, f"{title} {found.asked}".strip(), verdict, state, page, facts)


def why(refusal: Refusal) -> str:
    """Returns why a request is refused, and what to do."""
    requests = _requests(refusal.bucket) if refusal.bucket else ""
    return REFUSALS[refusal.check].format(refusal=refusal, requests=requests, at=utc(refusal.at, "seconds"))


def _requests(bucket: StoredBucket) -> str:
    return f"{bucket.quota:,} {'request' if bucket.quota == 1 else 'requests'} in {bucket.window} s"


def outcome(told: Told) -> tuple[Tone, str]:
    """Returns what became of a record, to be put after its name."""
    state, text = OUTCOMES[told.fate]
    if told.fate == "replaced" and told.version is None:
        return state, "is a delete (tombstone) that a later event has replaced"
    topic = told.record.split(":")[0]
    return state, text.format(
        told=told,
        before=_before(told.before),
        accepted=" (an operator has accepted it)" if told.accepted else "",
        relation="the same as" if told.shown and told.version == told.shown.version else "lower than",
        newer=f"version {told.shown.version}" if told.shown else "",
        shown=_place(told.shown, topic) if told.shown else "",
    )


def _before(offsets: int) -> str:
    if offsets == 0:
        return "it is the next record of its partition"
    counted = "1 offset of its partition comes" if offsets == 1 else f"{offsets:,} offsets of its partition come"
    return f"{counted} before it"


def coordinates(head: Head | None, topic: str) -> str:
    """Returns which event wrote a value."""
    if head is None:
        return "no event of it was applied"
    return f"{'' if head.live else 'deleted '}{_place(head, topic)}, {utc(head.time)}"


def _place(head: Head, topic: str) -> str:
    return f"version {head.version} at {topic}:{head.partition}:{head.offset}"


def _history(told: Sequence[Told], published: Published | None) -> tuple[list[Event], str]:
    """Returns the newest events, and a note that says where they were looked for, and how many are left out."""
    shown = told[:_MOST_EVENTS]
    events = [Event(each.fate, each.record, each.version, utc(each.time), *outcome(each)[::-1]) for each in shown]
    cut = f"Of {len(told):,} events, the newest {_MOST_EVENTS} are shown." if len(told) > _MOST_EVENTS else ""
    return events, " ".join(filter(None, (cut, _note(told, published))))


def _kind(refusal: Refusal | None) -> str:
    return refusal.check if refusal else "accepted"


def _verdict(refusal: Refusal | None, subject: str) -> tuple[str, Tone]:
    if refusal is None:
        return f"{subject} passes all checks of access.", "well"
    row, status, error = refusal.answer
    said = "" if row == "-" else f" (row {row} of the table of answers)"
    return f"{subject} is refused with {status} {error}{said}. {why(refusal)}", "wrong"


def _as_before(letters: Sequence[DeadLetter], verdict: str, state: Tone) -> tuple[str, Tone]:
    """Says first that a record could not be read: what is stored is what was there before it."""
    bad = [letter.field for letter in letters if not letter.accepted]
    if not bad:
        return verdict, state
    records, they = ("A record is", "it") if len(bad) == 1 else ("Records are", "they")
    return f"{records} bad ({', '.join(bad)}), so what {they} should have changed is as before. {verdict}", "wrong"


def _late(late: Sequence[LateVersion], topic_prefix: str, verdict: str, state: Tone) -> tuple[str, Tone]:
    """Says which records came behind newer ones, because Kafka keeps them alone."""
    for one in late:
        place = f"{topic_prefix}{one.kind}:{one.partition}:{one.offset}"
        why_ignored = (
            f"is lower than version {one.newest}, which was there before it"
            if one.cause == "older"
            else "was there before it, with other content"
        )
        verdict += (
            f" Its last record, at {place}, was ignored: its version {one.version} {why_ignored}. Kafka keeps the last "
            f"record alone: publish a version above {one.newest}."
        )
    return verdict, "wrong" if late else state


def _organization(found: StoredOrganization, topic_prefix: str) -> list[Fact]:
    limits = [
        Fact(
            f"limit of the {bucket.scope}",
            f"{_requests(bucket)}{'' if bucket.own else ' (of the settings)'}, {bucket.remaining:,} left",
        )
        for bucket in found.limits
    ]
    return [
        Fact("organization", found.organization),
        Fact("stored as", found.name),
        Fact("event", coordinates(found.event, f"{topic_prefix}{ORGANIZATION.topic}")),
        Fact("API access", "on" if found.api_access else "off"),
        *limits,
        *([Fact("job due", found.job_due)] if found.job_due else []),
    ]


def _letters(letters: Sequence[DeadLetter]) -> list[Fact]:
    return [Fact("dead letter", f"{each.field}, parked at {utc(each.time)}: {each.reason}") for each in letters]


def _bad(bad: BadField | None, show_documents: bool) -> list[Fact]:
    if bad is None:
        return []
    text = _HIDDEN if not show_documents else "none" if bad.value is None else bad.value.decode()
    shown = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"
    rule = [Fact("expected", bad.expected)] if bad.expected else []
    return [Fact("field", bad.path), *rule, Fact("value of this field", shown)]


def _note(told: Sequence[Told], found: Published | None) -> str:
    if found is None:
        return ""
    if found.from_first:
        return _holdings(told, found.unread)
    if found.whole:
        return "Kafka was looked through for it: all records of the topic."
    looked = f"Kafka was looked through for it: the newest {NEWEST:,} offsets of each partition"
    looked += "." if found.all else ", but not all of them in time: older ones may be missing below."
    if found.unread:
        looked += (
            f" {found.unread:,} more are behind an open transaction, where nobody can read: newer ones may be there."
        )
    return looked


def _holdings(told: Sequence[Told], unread: int) -> str:
    """Returns how many records of an entity Kafka holds, and how many of them are more than a delete."""
    number, data = len(told), sum(each.data for each in told)
    held = "no record of it" if not number else "1 record of it" if number == 1 else f"{number:,} records of it"
    text = f"All records of the topic that can be read were looked through. Kafka holds {held}"
    text += f": {data:,} with data, and {number - data:,} without, which delete it." if number else "."
    if unread:
        text += f" {unread:,} more offsets are behind an open transaction, where nobody can read."
    return text


def _entity(found: AboutEntity, topic_prefix: str, show_documents: bool) -> Answer:
    resource, stored = found.resource, found.stored
    verdict, state = _shown(found, topic_prefix)
    verdict, state = _late(stored.late_versions, topic_prefix, verdict, state)
    if stored.refusal:
        _, status, _ = stored.refusal.answer
        served = f"This {resource.noun} is not served: every key of its organization gets {status}."
        verdict += f" {served} {why(stored.refusal)}"
        state = "wrong"
    facts = [Fact("organization", found.organization)]
    for each in stored.generations:
        facts.append(Fact(_generation(each), coordinates(each.event, f"{topic_prefix}{resource.topic}")))
        if each.etag:
            facts += [Fact("stored as", each.name), Fact("ETag", each.etag)]
        if each.etag and resource is LEAD:
            facts.append(Fact("contact inside it", coordinates(each.contact, f"{topic_prefix}{CONTACT.topic}")))
    facts += _letters(stored.dead_letters)
    documents = _documents(stored)
    if documents and not show_documents:
        facts.append(Fact("document", _HIDDEN))
    page = "dead-letters.md" if state == "wrong" and stored.dead_letters else _ORDERING
    page = _OLDER_PUBLISHED if stored.late_versions else page
    head = stored.live.event
    return Answer(
        "not applied" if head is None else "shown" if head.live else "deleted",
        f"{resource.noun} {found.id}",
        verdict,
        state,
        page,
        facts + (_bad(found.bad, show_documents) if state == "wrong" else []),
        *_history(found.told, found.published),
        documents if show_documents else [],
    )


def _generation(found: InGeneration) -> str:
    return f"generation {found.generation}{' (live)' if found.live else ''}"


def _documents(found: StoredEntity) -> list[ShownDocument]:
    """Returns each document that differs from the others once, the live one first."""
    alike: dict[bytes, list[InGeneration]] = {}
    for each in sorted(found.generations, key=lambda each: not each.live):
        if each.etag:
            # Compared as JSON, because 1 and true are equal in Python.
            alike.setdefault(msgspec.json.encode(each.document), []).append(each)
    return [
        ShownDocument(f"document of {' and '.join(_generation(each) for each in those)}", those[0].document)
        for those in alike.values()
    ]


def _shown(found: AboutEntity, topic_prefix: str) -> tuple[str, Tone]:
    """Returns what readers see, what became of newer events, and how it is meant.

    While every key of the organization is refused, readers see nothing. Then it is what is stored.
    """
    noun, head = found.resource.noun, found.stored.live.event
    refused = found.stored.refusal is not None
    not_found = "" if refused else ", so readers get 404"
    later, bad = "", max(found.stored.dead_letters, key=lambda letter: (letter.time, letter.offset), default=None)
    waiting = next((each for each in found.told if each.fate == "waits"), None)
    if waiting:
        later, bad = f" The event at {waiting.record} {outcome(waiting)[1]}.", None
    elif bad and head and head.live and bad.time < head.time:
        later = f" An earlier event, at {bad.field}, was bad: {bad.reason}."
    elif bad:
        later = f" The event at {bad.field} is bad, and became a dead letter: {bad.reason}."
    if head is None:
        later = later or _not_applied(found, f"{topic_prefix}{found.resource.topic}")
        nothing = f"Nothing is stored of this {noun}" if refused else f"No event of this {noun} was applied"
        return f"{nothing}{not_found}.{later}", "waits" if waiting else "wrong"
    place = f"{_place(head, f'{topic_prefix}{found.resource.topic}')}, of {utc(head.time)}"
    if not head.live:
        return f"This {noun} is deleted{not_found}: by {place}.{later}", "plain"
    state: Tone = "waits" if waiting else "wrong" if bad and bad.time >= head.time else "well"
    ignored = next((each for each in found.told if each.fate in _IGNORED), None)
    if ignored and not later and not found.stored.late_versions:
        it = "it" if ignored.version else "a `deleted` event"
        later = (
            f" The event at {ignored.record} {outcome(ignored)[1]}: publish {it} with a version above {head.version}."
        )
    if ignored and state == "well":
        state = "plain"
    if found.resource is LEAD:
        later, state = _contact(found, topic_prefix, later, state)
    return f"{'Stored is' if refused else 'Readers see'} {place}.{later}", state


def _contact(lead: AboutEntity, topic_prefix: str, later: str, state: Tone) -> tuple[str, Tone]:
    """Returns the same, with what is known of the contact inside a lead."""
    contact = lead.stored.live.contact
    if contact is None:
        # If Kafka was asked, an answer about the contact follows, which knows more.
        key = f"{lead.organization}:{lead.stored.live.document['contact_id']}"
        causes = _not_arrived(f"{topic_prefix}{CONTACT.topic}", key) if lead.published is None else ""
        state = "plain" if state == "well" else state
        return f"{later} No event of its contact was applied, so `contact` is null.{causes}", state
    if not contact.live:
        return f"{later} Its contact is deleted, so `contact` is null.", state
    if not lead.spliced:
        return f"{later} Its contact has changed, and a fan-out is writing its new summary into its leads.", (
            state if state == "wrong" else "waits"
        )
    return later, state


def _not_applied(found: AboutEntity, topic: str) -> str:
    """Returns why no event of an entity is known, without the causes that are excluded."""
    key, refusal = f"{found.organization}:{found.id}", found.stored.refusal
    if refusal and refusal.check in ("incomplete", "replaying", "deleted organization"):
        return ""  # the refusal is the cause
    if found.told:
        newest = found.told[0]
        return f" The event at {newest.record} {outcome(newest)[1]}."
    if found.published is None:
        return _not_arrived(topic, key)
    if found.published.whole:
        return (
            f" None was ever published to {topic} of the Kafka that is read here: all of its records were looked "
            f"through. Publish it there, with the message key {key}."
        )
    if not found.published.all:
        return (
            f" It is not known if one was published to {topic}: not all of its newest offsets could be read in time. "
            "Ask again."
        )
    if found.published.unread:
        return (
            f" None can be read in {topic}: a transaction is open there, and it may be behind it. `status` says more."
        )
    return (
        f" None is among the newest {NEWEST:,} offsets of each partition of {topic}: it was published long ago, or "
        f"never with the message key {key}."
    )


def _not_arrived(topic: str, key: str) -> str:
    """Returns what may have become of an event if Kafka was not asked, and what to do."""
    return (
        f" Its event waits in {topic}, it is a dead letter, or it was published to another topic, to another Kafka, "
        f"with another message key than {key}, or never. `status` shows what waits, and `dead-letters list` what is "
        "bad; otherwise publish it."
    )
