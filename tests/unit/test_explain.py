"""What became of an entity, a record or a key: the facts, and, in one table each, their words."""

from typing import Any, get_args

import msgspec
import pytest

from operate.explain import words
from operate.explain.explainer import (
    AboutEntity,
    AboutOrganization,
    AboutRecord,
    Coordinates,
    Gap,
    Id,
    KeyHash,
    MessageKey,
    Nothing,
    question,
)
from operate.explain.records import Fate, Projected, Published, Told, bad_field, told
from operate.explain.stored import (
    AccessCheck,
    InGeneration,
    KeyEntity,
    Refusal,
    StoredBucket,
    StoredEntity,
    StoredKey,
    StoredOrganization,
    refusal_of_key,
    refusal_of_organization,
)
from operate.explain.words import Answer, answer
from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.ledger.late_versions import LateVersion
from projector.record import Partition, Record
from schemas.api_keys import mint
from schemas.layouts import Head
from schemas.resources import LEAD
from schemas.settings import Limit
from tests.harness import crm

LEADS = Partition("crm.leads", 0)
SHOWN = Head(live=True, version=5, offset=7, partition=0, time=0)
HASH = "0aB1" * 16
KEY = f"{crm.ORGANIZATION}:{crm.LEAD}"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param(f" {crm.LEAD.upper()}\n", Id(crm.LEAD), id="an id"),
        pytest.param(crm.LEAD.replace("-", ""), Id(crm.LEAD), id="an id without hyphens"),
        pytest.param(f"{crm.ORGANIZATION}:{crm.LEAD}", MessageKey(crm.ORGANIZATION, crm.LEAD), id="a message key"),
        pytest.param("crm.api-keys:3:12", Coordinates(Partition("crm.api-keys", 3), 12), id="coordinates"),
        pytest.param(HASH, KeyHash(HASH.lower()), id="the hash of a key"),
        pytest.param("req-1234", None, id="a request id"),
        pytest.param("crm.leads:0:", None, id="no offset"),
        pytest.param(
            f"message key  {crm.ORGANIZATION}:{crm.LEAD}", MessageKey(crm.ORGANIZATION, crm.LEAD), id="a line"
        ),
        pytest.param(f"lead {crm.LEAD}, please", Id(crm.LEAD), id="a sentence"),
        pytest.param(f"{crm.LEAD} or {crm.ORGANIZATION}", None, id="two ids"),
        pytest.param(f"{crm.LEAD}:0:12 of it", None, id="part of another word"),
        pytest.param("a:b:c:d", None, id="too many parts"),
    ],
)
def test_text_becomes_a_question(text: str, meant: object) -> None:
    assert question(text) == meant


@pytest.mark.parametrize("text", [pytest.param(mint(crm.ORGANIZATION), id="a key"), "Bearer lv_live_x"])
def test_key_itself_must_not_come_here(text: str) -> None:
    with pytest.raises(Refused, match="no key belongs here"):
        question(text)


def record(version: int, offset: int = 0, **fields: Any) -> Record:
    return crm.lead(version, **fields).record(offset)


@pytest.mark.parametrize(
    ("given", "fate", "state"),
    [
        pytest.param(record(5, 7), "shown", "well", id="shown"),
        pytest.param(record(4, 8), "outranked", "wrong", id="older"),
        pytest.param(record(5, 8), "outranked", "wrong", id="same version"),
        pytest.param(record(4, 6), "replaced or older", "plain", id="replaced"),
        pytest.param(record(6, 6), "not shown", "wrong", id="newer, and before it"),
        pytest.param(record(6, 12), "waits", "waits", id="waits"),
        pytest.param(record(6, 9), "parked", "wrong", id="dead letter"),
        pytest.param(record(6, 8, stage="X"), "bad", "wrong", id="bad, and its dead letter was dropped"),
        pytest.param(crm.tombstone(LEAD).record(6), "replaced", "plain", id="tombstone"),
        pytest.param(crm.tombstone(LEAD).record(6, 1), "tombstone ignored", "wrong", id="tombstone elsewhere"),
    ],
)
def test_record_has_one_fate(given: Record, fate: Fate, state: str) -> None:
    letter = DeadLetter("crm.leads", 0, 9, "", "no stage", 0)
    [found] = told([given], Projected({LEADS: 10, LEADS._replace(partition=1): 10}, {letter.field: letter}, SHOWN))
    before = 2 if fate == "waits" else 0
    assert (found.fate, words.outcome(found)[0], found.before) == (fate, state, before)


@pytest.mark.parametrize(
    ("versions", "whole", "fates"),
    [
        pytest.param((3, 4, 5), True, ["replaced", "replaced"], id="each was newer"),
        pytest.param((4, 3, 5), True, ["older", "replaced"], id="one was older"),
        pytest.param((4, 3, 5), False, ["older", "replaced or older"], id="older ones unknown"),
    ],
)
def test_records_before_another_one_exclude_fates(versions: tuple[int, ...], whole: bool, fates: list[Fate]) -> None:
    records = [record(version, 5 + number) for number, version in enumerate(versions)]
    found = told(records, Projected({LEADS: 10}, {}, SHOWN), whole=whole)
    assert [each.fate for each in found] == ["shown", *fates]


def test_record_behind_the_position_without_a_value_is_not_stored() -> None:
    assert [each.fate for each in told([record(1, 0)], Projected({LEADS: 10}, {}, None))] == ["not stored"]


@pytest.mark.parametrize(
    ("given", "field", "shown"),
    [
        pytest.param(record(2), None, "", id="a good record"),
        pytest.param(record(2, tags="x"), "$.data.tags", '"x"', id="a field"),
        pytest.param(record(2, events=[{"id": 5}]), "$.data.events[0].id", "5", id="in a list"),
        pytest.param(record(2, stage="X" * 999), "$.data.stage", f'"{"X" * 199}… (1,001 characters)', id="long"),
    ],
)
def test_bad_value_is_shown_only_if_documents_are(given: Record, field: str | None, shown: str) -> None:
    found = bad_field(given)
    assert (found and found.path) == field
    about = AboutRecord(given, told([given], Projected({LEADS: 10}, {}, None)), found)
    facts = [answer(about, "crm.", show_documents=show).facts for show in (True, False)]
    assert facts[0][-1].value == shown or not found
    assert facts[0][:-1] == facts[1][:-1], "the field and the rule are always shown"
    assert [fact for fact in facts[1] if shown in fact.value] == [] or not found


LIVE, DELETED = Head(True, 1, 0, 0, 0), Head(False, 2, 1, 0, 0)
NOW = 1_000_000
ACTIVE = KeyEntity("k1", "active")
FREE = StoredBucket.of("key", Limit(0, 0), "100/10s", 0)
USED_UP = StoredBucket.of("organization", Limit(10, 10), "300/10s", 9_500_000)


def refusal(
    head: Head | None = LIVE,
    api_access: bool = True,
    replaying: bool = False,
    complete: bool = True,
    keys: tuple[KeyEntity, ...] = (ACTIVE,),
    limits: tuple[StoredBucket, ...] = (FREE,),
) -> Refusal | None:
    organization = refusal_of_organization(head, api_access=api_access, replaying=replaying, complete=complete)
    return refusal_of_key(organization, keys, limits, NOW)


@pytest.mark.parametrize(
    ("found", "check", "row"),
    [
        pytest.param(refusal(), None, "", id="accepted"),
        pytest.param(refusal(keys=()), "unknown key", "5 401", id="unknown"),
        pytest.param(
            refusal(keys=(ACTIVE, KeyEntity("k2", "revoked"))), "revoked", "5 401", id="one of two is revoked"
        ),
        pytest.param(
            refusal(keys=(KeyEntity("k1", "active", expires_at=NOW),)), "expired", "5 401", id="expired at this moment"
        ),
        pytest.param(refusal(keys=(KeyEntity("k1", "active", expires_at=NOW + 1),)), None, "", id="expires later"),
        pytest.param(refusal(head=None), "unknown organization", "6 403", id="an organization never heard of"),
        pytest.param(refusal(head=DELETED), "deleted organization", "6 403", id="a deleted organization"),
        pytest.param(refusal(api_access=False), "access off", "6 403", id="access is off"),
        pytest.param(refusal(api_access=False, keys=()), "unknown key", "5 401", id="the key is checked before access"),
        pytest.param(refusal(replaying=True, keys=()), "replaying", "- 503", id="recreated: before any other check"),
        pytest.param(refusal(complete=False, api_access=False), "incomplete", "- 503", id="Redis is not complete"),
        pytest.param(refusal(limits=(FREE, USED_UP)), "used up", "7 429", id="the limit is used up"),
        pytest.param(
            refusal(limits=(FREE, USED_UP), api_access=False),
            "access off",
            "6 403",
            id="access is checked before limits",
        ),
    ],
)
def test_the_first_check_that_refuses(found: Refusal | None, check: AccessCheck | None, row: str) -> None:
    assert (found and found.check) == check
    assert found is None or "{} {}".format(*found.answer) == row


def test_stored_bucket_shows_what_remains() -> None:
    assert (FREE.quota, FREE.own, FREE.remaining, FREE.wait) == (100, False, 100, 0)
    assert (USED_UP.quota, USED_UP.own, USED_UP.remaining, USED_UP.wait) == (10, True, 0, 0.5)
    assert StoredBucket.of("key", Limit(10, 10), "100/10s", 99_000_000).remaining == 0, "the limit was lowered"


REFUSED = (
    (Refusal("incomplete"), "Redis does not hold everything yet, so the API answers 503"),
    (Refusal("replaying"), "The organization was recreated after a delete"),
    (Refusal("no key"), "No key was given. Send it as `Authorization: Bearer <key>`."),
    (Refusal("malformed", fault="too short"), "This is not a key of Leadview: too short. Redis is not even asked"),
    (Refusal("unknown key"), "No key with this hash is stored"),
    (Refusal("revoked", "k1"), "The key is revoked, by the newest event of the API key k1."),
    (
        Refusal("expired", "k1", 0),
        "The key has expired at 1970-01-01T00:00:00Z, as the newest event of the",
    ),
    (Refusal("unknown organization"), "No event of this organization was applied."),
    (Refusal("deleted organization"), "The organization is deleted."),
    (Refusal("access off"), "The newest event of the organization switches API access off."),
    (
        Refusal("used up", bucket=USED_UP),
        "The limit of the organization, 10 requests in 10 s, is used up for the next 0.5 s.",
    ),
    (
        Refusal("used up", bucket=StoredBucket.of("key", Limit(1, 10), "300/10s", 500_000)),
        "The limit of the key, 1 request in 10 s, is used up for the next 0.5 s.",
    ),
)
PLACE = "crm.leads:0:3"
TOLD = (
    (Told(PLACE, 4, 0, "waits", 1200), "waits to be applied: 1,200 offsets of its partition come before it"),
    (Told(PLACE, 4, 0, "parked", reason="no {x}"), "is bad, and became a dead letter: no {x}"),
    (
        Told(PLACE, 4, 0, "parked", reason="no {x}", accepted=True),
        "is bad, and became a dead letter (an operator has accepted it): no {x}",
    ),
    (Told(PLACE, 4, 0, "bad", reason="no x"), "is bad: no x. It has no dead letter any more"),
    (Told(PLACE, 4, 0, "waits", 1), "waits to be applied: 1 offset of its partition comes before it"),
    (Told(PLACE, 4, 0, "waits", 0), "waits to be applied: it is the next record of its partition"),
    (Told(PLACE, 5, 0, "shown", shown=SHOWN), "was applied, and is what is stored"),
    (Told(PLACE, 5, 0, "deleted", shown=SHOWN), "was applied: it deleted the entity"),
    (
        Told(PLACE, 4, 0, "outranked", shown=SHOWN),
        "was ignored: its version 4 is lower than version 5 at crm.leads:0:7, which was there before it",
    ),
    (
        Told(PLACE, 5, 0, "outranked", shown=SHOWN),
        "was ignored: its version 5 is the same as version 5 at crm.leads:0:7, which was there before it",
    ),
    (Told(PLACE, 3, 0, "older", 4, SHOWN), "was ignored: version 4 was there before it"),
    (Told(PLACE, 3, 0, "replaced", shown=SHOWN), "was replaced since by version 5"),
    (Told(PLACE, None, 0, "replaced", shown=SHOWN), "is a delete (tombstone) that a later event has replaced"),
    (
        Told("crm.leads:1:4", None, 0, "tombstone ignored", shown=SHOWN),
        "is a delete (tombstone) and was ignored: it is in another partition than version 5 at crm.leads:0:7, whose",
    ),
    (
        Told(PLACE, 3, 0, "replaced or older", shown=SHOWN),
        "was replaced since by version 5, or ignored as older",
    ),
    (
        Told(PLACE, 6, 0, "not shown", shown=SHOWN),
        "is not shown, although it is newer than version 5 at crm.leads:0:7: run `verify`",
    ),
    (Told(PLACE, 6, 0, "not stored"), "was read, and nothing is stored of it: its organization is deleted"),
)
GAPS = (
    (Nothing("no partition", PLACE), "There is no such partition among the topics of Leadview."),
    (
        Nothing("held back", PLACE, 1200),
        "Nobody can read it yet: in this partition, a transaction is open from offset 1,200 on.",
    ),
    (Nothing("not yet", PLACE, 1200), "Nothing was published there yet: the partition ends at offset 1,200."),
    (Nothing("deleted by Kafka", PLACE, 1200), "Kafka has deleted it: the partition begins at offset 1,200."),
    (Nothing("compacted", PLACE), "Compaction has removed it"),
    (Nothing("unheard of", KEY), "Nothing in Redis has this message key, and it was never published"),
    (Nothing("not read", KEY), "Nothing in Redis has this message key. It is not known if it was ever published"),
    (Nothing("id alone", crm.LEAD), "No organization has this id in Redis. A lead, a contact or an"),
    (Nothing("not finished", HASH), "It is not known if this key is stored"),
    (Nothing("no question"), "This is not an id, a message key, or <topic>:<partition>:<offset>."),
)


def test_every_kind_has_its_words() -> None:
    found = [
        *((words.why(refused), said) for refused, said in REFUSED),
        *((words.outcome(event)[1], said) for event, said in TOLD),
        *((answer(nothing, "crm.", show_documents=False).verdict, said) for nothing, said in GAPS),
    ]
    assert [text for text, said in found if not text.startswith(said)] == []
    assert {found.check for found, _ in REFUSED} == set(get_args(AccessCheck))
    assert {event.fate for event, _ in TOLD} == set(get_args(Fate))
    assert {nothing.gap for nothing, _ in GAPS} == set(get_args(Gap))


def about_lead(
    event: Head | None,
    *,
    contact: Head | None = SHOWN,
    letters: tuple[DeadLetter, ...] = (),
    refused: Refusal | None = None,
    others: tuple[InGeneration, ...] = (),
    late: tuple[LateVersion, ...] = (),
    show_documents: bool = False,
    **more: Any,
) -> Answer:
    stored = StoredEntity([in_generation(1, event, contact), *others], list(letters), refused, list(late))
    about = AboutEntity(LEAD, crm.ORGANIZATION, crm.LEAD, stored, **({"spliced": True} | more))
    return answer(about, "crm.", show_documents=show_documents)


def in_generation(number: int, event: Head | None, contact: Head | None = None, **fields: Any) -> InGeneration:
    """The first generation is the live one."""
    found = InGeneration(number, number == 1, "lv3", event)
    if event is None or not event.live:
        return found
    document = {"contact_id": crm.CONTACT, **fields}
    return msgspec.structs.replace(found, contact=contact, etag='W/"1"', document=document)


def bad_letter(time: int) -> DeadLetter:
    return DeadLetter("crm.leads", 0, 9, "", "no stage", time)


GONE = msgspec.structs.replace(SHOWN, live=False)
WAITING = Told("crm.leads:0:12", 6, 0, "waits", 2)
IGNORED = Told("crm.leads:0:8", 4, 0, "outranked", shown=SHOWN)
LOST = Told("crm.leads:0:8", 4, 0, "not stored")
LATE = LateVersion("leads", KEY, "older", 4, 5, 0, 8, 0, 0)
SAID_LATE = (
    "Its last record, at crm.leads:0:8, was ignored: its version 4 is lower than version 5, which was there before it. "
    "Kafka keeps the last record alone: publish a version above 5."
)


@pytest.mark.parametrize(
    ("found", "kind", "state", "said"),
    [
        pytest.param(about_lead(SHOWN), "shown", "well", "version 5 at crm.leads:0:7", id="shown"),
        pytest.param(about_lead(GONE), "deleted", "plain", "404", id="deleted"),
        pytest.param(about_lead(None), "not applied", "wrong", "waits in crm.leads", id="Kafka was not asked"),
        pytest.param(
            about_lead(None, published=Published([], all=True, whole=True)),
            "not applied",
            "wrong",
            "None was ever published",
            id="never published",
        ),
        pytest.param(
            about_lead(None, published=Published([], all=True)), "not applied", "wrong", "long ago", id="or long ago"
        ),
        pytest.param(
            about_lead(None, published=Published([], all=True, unread=3)),
            "not applied",
            "wrong",
            "a transaction is open there",
            id="or where nobody can read",
        ),
        pytest.param(
            about_lead(None, told=[LOST], published=Published([], all=True, whole=True)),
            "not applied",
            "wrong",
            f"404. The event at {LOST.record} was read, and nothing is stored of it",
            id="published, and nothing is stored",
        ),
        pytest.param(about_lead(None, told=[WAITING]), "not applied", "waits", WAITING.record, id="it waits"),
        pytest.param(about_lead(SHOWN, told=[WAITING]), "shown", "waits", WAITING.record, id="a newer one waits"),
        pytest.param(about_lead(SHOWN, told=[IGNORED]), "shown", "plain", "above 5", id="an older one was ignored"),
        pytest.param(about_lead(SHOWN, late=(LATE,)), "shown", "wrong", SAID_LATE, id="the last one is not the newest"),
        pytest.param(
            about_lead(SHOWN, contact=None, late=(LATE,)), "shown", "wrong", SAID_LATE, id="late, and without contact"
        ),
        pytest.param(about_lead(SHOWN, spliced=False, late=(LATE,)), "shown", "wrong", SAID_LATE, id="late, fan-out"),
        pytest.param(about_lead(GONE, late=(LATE,)), "deleted", "wrong", SAID_LATE, id="late, behind a delete"),
        pytest.param(
            about_lead(SHOWN, late=(msgspec.structs.replace(LATE, cause="reused", version=5),)),
            "shown",
            "wrong",
            "was ignored: its version 5 was there before it, with other content. Kafka keeps",
            id="its version was there",
        ),
        pytest.param(about_lead(SHOWN, letters=(bad_letter(1),)), "shown", "wrong", "no stage", id="a newer one bad"),
        pytest.param(
            about_lead(msgspec.structs.replace(SHOWN, time=2), letters=(bad_letter(1),)),
            "shown",
            "well",
            "An earlier event",
            id="an earlier one was bad",
        ),
        pytest.param(about_lead(SHOWN, contact=None), "shown", "plain", "`contact` is null", id="without contact"),
        pytest.param(
            about_lead(SHOWN, contact=None),
            "shown",
            "plain",
            "waits in crm.contacts, it is a dead letter, or it was published to another topic, to another Kafka, with "
            f"another message key than {crm.ORGANIZATION}:{crm.CONTACT}, or never. `status` shows what waits, and "
            "`dead-letters list` what is bad; otherwise publish it.",
            id="why it is without contact",
        ),
        pytest.param(about_lead(SHOWN, contact=GONE), "shown", "well", "is deleted", id="its contact is deleted"),
        pytest.param(about_lead(SHOWN, spliced=False), "shown", "waits", "fan-out", id="its contact has changed"),
        pytest.param(about_lead(SHOWN, refused=Refusal("access off")), "shown", "wrong", "gets 403", id="no access"),
    ],
)
def test_answer_about_a_lead_says_what_is_known(found: Answer, kind: str, state: str, said: str) -> None:
    assert (found.kind, found.state) == (kind, state)
    assert said in found.verdict


@pytest.mark.parametrize(
    ("count", "note"),
    [pytest.param(50, "", id="all"), pytest.param(51, "Of 51 events, the newest 50 are shown.", id="one more")],
)
def test_events_that_are_left_out_are_counted(count: int, note: str) -> None:
    many = [msgspec.structs.replace(IGNORED, version=number) for number in range(count)]
    organization = StoredOrganization(crm.ORGANIZATION, "", None, True, [], None, None)
    for found in (
        about_lead(SHOWN, told=many),
        answer(AboutOrganization(organization, many), "crm.", show_documents=False),
        answer(AboutRecord(record(4), many, None), "crm.", show_documents=False),
    ):
        assert found.note == note
        assert len(found.events) in (0, 50)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(about_lead(None, published=Published([], all=False)).verdict, id="a lead"),
        pytest.param(answer(Nothing("not read", KEY), "crm.", show_documents=False).verdict, id="a message key"),
    ],
)
def test_what_could_not_be_read_in_time_is_not_known(found: str) -> None:
    assert " not known if " in found
    assert "never" not in found


def test_note_says_where_records_of_an_organization_were_looked_for() -> None:
    organization = StoredOrganization(crm.ORGANIZATION, "", None, True, [], None, None)
    about = AboutOrganization(organization, [], Published([], all=False))
    assert "but not all of them in time" in answer(about, "crm.", show_documents=False).note


def test_late_version_is_named_once() -> None:
    found = about_lead(SHOWN, told=[IGNORED], late=(LATE,))
    assert (found.verdict.count("crm.leads:0:8"), found.page) == (1, "runbook.md#leadviewolderpublished")


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(
            AboutOrganization(StoredOrganization(crm.ORGANIZATION, "", None, True, [], None, None, [], [LATE])),
            id="an organization",
        ),
        pytest.param(StoredKey(HASH, None, [], None, [], [LATE]), id="a key"),
    ],
)
def test_late_version_of_access_is_wrong(about: AboutOrganization | StoredKey) -> None:
    found = answer(about, "crm.", show_documents=False)
    assert SAID_LATE in found.verdict
    assert (found.state, found.page) == ("wrong", "runbook.md#leadviewolderpublished")


ACCESS_OFF = words.why(Refusal("access off"))
INCOMPLETE = words.why(Refusal("incomplete"))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(
            about_lead(SHOWN, refused=Refusal("access off")),
            "Stored is version 5 at crm.leads:0:7, of 1970-01-01T00:00:00.000Z. This lead is not served: every key of "
            f"its organization gets 403. {ACCESS_OFF}",
            id="stored",
        ),
        pytest.param(
            about_lead(GONE, refused=Refusal("access off")),
            "This lead is deleted: by version 5 at crm.leads:0:7, of 1970-01-01T00:00:00.000Z. This lead is not "
            f"served: every key of its organization gets 403. {ACCESS_OFF}",
            id="deleted",
        ),
        pytest.param(
            about_lead(None, told=[WAITING], refused=Refusal("incomplete")),
            f"Nothing is stored of this lead. The event at {WAITING.record} waits to be applied: 2 offsets of its "
            "partition come before it. This lead is not served: every key of its organization gets 503. "
            f"{INCOMPLETE}",
            id="not stored, and it waits",
        ),
        *(
            pytest.param(
                about_lead(None, told=[LOST], published=Published([], all=True, whole=True), refused=cause),
                "Nothing is stored of this lead. This lead is not served: every key of its organization gets "
                f"{status}. {words.why(cause)}",
                id=f"not stored, and the cause of both is: {cause.check}",
            )
            for cause, status in (
                (Refusal("incomplete"), 503),
                (Refusal("replaying"), 503),
                (Refusal("deleted organization"), 403),
            )
        ),
        pytest.param(
            about_lead(None, told=[LOST], refused=Refusal("access off")),
            f"Nothing is stored of this lead. The event at {LOST.record} {words.outcome(LOST)[1]}. This lead is not "
            f"served: every key of its organization gets 403. {ACCESS_OFF}",
            id="not stored, for another reason",
        ),
    ],
)
def test_readers_see_nothing_while_every_key_is_refused(found: Answer, said: str) -> None:
    assert (found.verdict, found.state) == (said, "wrong")


def shown_documents(*others: InGeneration, event: Head | None = SHOWN) -> list[tuple[str, Any]]:
    found = about_lead(event, others=others, show_documents=True)
    return [(each.title, each.value.get("stage")) for each in found.documents]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(shown_documents(), [("document of generation 1 (live)", None)], id="one generation"),
        pytest.param(
            shown_documents(in_generation(2, SHOWN)),
            [("document of generation 1 (live) and generation 2", None)],
            id="the same in both",
        ),
        pytest.param(
            shown_documents(in_generation(2, SHOWN, stage="NEW"), in_generation(3, SHOWN)),
            [("document of generation 1 (live) and generation 3", None), ("document of generation 2", "NEW")],
            id="another one",
        ),
        pytest.param(
            shown_documents(in_generation(2, SHOWN, stage=1), in_generation(3, SHOWN, stage=True), event=GONE),
            [("document of generation 2", 1), ("document of generation 3", True)],
            id="none in the live one, and 1 is not true",
        ),
        pytest.param(shown_documents(in_generation(2, None), event=None), [], id="none at all"),
    ],
)
def test_each_document_that_differs_is_shown(found: list[tuple[str, Any]], expected: list[tuple[str, Any]]) -> None:
    assert found == expected


def test_documents_of_no_generation_are_shown_if_they_are_hidden() -> None:
    found = about_lead(None, others=(in_generation(2, SHOWN),))
    assert found.documents == []
    assert [fact.name for fact in found.facts if "--show-documents" in fact.value] == ["document"]


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        pytest.param([9], "A record is bad (crm.leads:0:9), so what it should have changed is as before. ", id="one"),
        pytest.param(
            [8, 9],
            "Records are bad (crm.leads:0:8, crm.leads:0:9), so what they should have changed is as before. ",
            id="two",
        ),
    ],
)
def test_what_bad_records_of_a_key_have_not_changed(offsets: list[int], said: str) -> None:
    letters = [msgspec.structs.replace(bad_letter(1), offset=offset) for offset in offsets]
    found = answer(StoredKey(HASH, None, [], None, letters), "crm.", show_documents=False)
    assert found.verdict == f"{said}A request with this key passes all checks of access."
