"""Dead letters: what they say, how they are counted, chosen and replaced, and that they go when nobody needs them."""

import msgspec
import orjson
import pytest

from devstack.ports import free_port
from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.upkeep import dead_letters
from schemas import names, resources
from schemas.faults import Fault
from tests.harness import control, crm
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.projection import Projection
from tests.harness.projectors import DEFECTIVE
from tests.harness.waiting import wait_until
from tests.service.conftest import everywhere
from tests.service.test_lua_checkpoint import LETTER

BAD = [
    crm.lead(2, stage="LOST"),
    crm.contact(2, first_name=None),
    crm.organization(2, api_access="yes"),
    crm.api_key(2, status="asleep"),
    crm.Message(resources.LEAD, crm.lead(2, id=crm.OTHER_LEAD).key, b"{"),
]
PARKED = "a bad record became a dead letter"
MENDED = [crm.lead(3), crm.contact(3), crm.organization(3), crm.api_key(3), crm.lead(1, id=crm.OTHER_LEAD)]


def letter_of(message: crm.Message, offset: int, version: int | None) -> DeadLetter:
    return DeadLetter.of(message.record(offset), Fault("other"), version)


@everywhere
async def test_they_go_when_a_newer_event_was_applied(projection: Projection) -> None:
    """For every kind of entity; in a cluster, too."""
    control.complete_all(projection.settings)
    await projection.apply(*(message.record(9) for message in MENDED))
    go = [letter_of(message, 7, 2) for message in MENDED[:4]] + [letter_of(MENDED[4], 7, None)]
    stay = [
        letter_of(crm.lead(4), 11, 4),
        letter_of(crm.contact(4), 11, None),
        letter_of(crm.lead(1, id=crm.uuid(0x77)), 6, 1),
        msgspec.structs.replace(letter_of(crm.contact(1), 6, 1), accepted=True, note="known"),
        msgspec.structs.replace(letter_of(crm.lead(1), 5, None), key="no key"),
    ]
    go[4] = msgspec.structs.replace(go[4], offset=8)  # the first one is at 7 of the same topic
    await dead_letters.park(projection.store, [*go, *stay])
    assert await dead_letters.clear(projection.store, projection.settings) == 5
    rest = {field.decode() for field in projection.client.hkeys(names.DEAD_LETTERS)}
    assert rest == {letter.field for letter in stay}
    assert await dead_letters.clear(projection.store, projection.settings) == 0


@everywhere
async def test_only_stored_dead_letters_are_replaced(projection: Projection) -> None:
    """One that was dropped meanwhile does not come back, however many there are."""
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(250)]
    await dead_letters.park(projection.store, letters)
    await dead_letters.delete(projection.store, letters[-1:])
    accepted = [letter.accept("known", 7) for letter in letters]
    assert await dead_letters.replace(projection.store, accepted) == 249
    assert await dead_letters.all_dead_letters(projection.store) == accepted[:-1]
    assert await dead_letters.replace(projection.store, []) == 0


async def test_which_dead_letters_are_meant(projection: Projection) -> None:
    """By their places, or by what all of them have in common."""
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(4)]
    letters.append(msgspec.structs.replace(LETTER, topic="crm.other", key=f"{crm.OTHER_ORGANIZATION}:{crm.LEAD}"))
    await dead_letters.park(projection.store, letters)

    async def chosen(*words: str, **filtered: str) -> list[DeadLetter]:
        return await dead_letters.choose(projection.store, words, dead_letters.Filter(**filtered))

    where, other = f"{LETTER.topic}:{LETTER.partition}", letters[-1]
    assert await chosen() == letters
    assert await chosen(f"{where}:1-2") == letters[1:3]
    assert await chosen(f"{where}:3", f"{where}:0-1") == [*letters[:2], letters[3]]
    assert await chosen(topic=LETTER.topic) == letters[:4]
    assert await chosen(organization=crm.OTHER_ORGANIZATION) == [other]
    assert await chosen(reason=LETTER.reason[2:-2]) == letters
    assert await chosen(reason="nobody says this") == []
    for unknown in (f"{where}:4", f"{LETTER.topic}:7:0", "nonsense"):
        with pytest.raises(Refused, match=f"There is no dead letter {unknown}"):
            await chosen(f"{where}:0", unknown)
    with pytest.raises(Refused, match="No dead letter matches"):
        await dead_letters.matching(projection.store, projection.settings, dead_letters.Filter(reason="nobody"))


@pytest.mark.apache
def test_from_the_bad_record_to_the_mended_one(leadview: Leadview) -> None:
    """One of them is never mended: an operator accepts it, and drops it."""
    port = free_port()
    projector = leadview.start("run", metrics_port=port, log="projector")
    leadview.publish(*BAD)
    leadview.wait_until_served()
    letters = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    assert len(letters) == 5
    leads = [letter for letter in letters if letter["topic"] == leadview.topics.name(resources.LEAD)]
    assert {letter["version"] for letter in leads} == {2, None}, "one of them is no JSON"
    lines = [orjson.loads(line) for line in projector.log.read_text().splitlines()]
    parked = {line["record"]: line["reason"] for line in lines if line["message"] == PARKED}
    assert len(parked) == 5
    reasons = " ".join(parked.values())
    assert "allowed are ACCEPTED, IN_PROGRESS, NEW, QUOTE_SENT, REJECTED, STALE (event e1 of /crm)" in reasons
    assert "LOST" not in projector.log.read_text()
    assert metric(port, "leadview_projector_parked_records_total") == 5
    assert 'reason="json",topic="' in str(ask(port, "/metrics")[1])

    chosen = ["--organization", crm.ORGANIZATION, "--reason", "first_name"]
    done = leadview.run("dead-letters", "accept", *chosen, "--note", "known")
    assert "Dead letters among them: 1" in done
    letters = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    assert [letter["note"] for letter in letters if letter["accepted"]] == ["known"]
    assert "5 redriven, 5 still bad" in leadview.run("dead-letters", "redrive")
    assert leadview.run("dead-letters", "drop", *chosen).stdout == "1 dropped\n"
    leadview.publish(*(message for message in MENDED if message.kind is not resources.CONTACT))
    wait_until(lambda: stored(leadview) == 0, "the dead letters are gone")
    wait_until(lambda: metric(port, "leadview_projector_dead_letters") == 0, "the metric says so")
    leadview.redis.flushall()
    wait_until(leadview.is_served, "everything was read again")
    wait_until(lambda: stored(leadview) == 0, "the dropped one, of which nothing newer came, is not stored again")


def stored(leadview: Leadview) -> int:
    """Returns the number of dead letters."""
    return int(leadview.redis.hlen(names.DEAD_LETTERS))


@pytest.mark.apache
def test_dead_letters_of_one_lead_are_redriven_in_their_order(leadview: Leadview) -> None:
    """A bad deploy has parked them. Nothing newer was published meanwhile, so the last of them decides."""
    leads = [crm.uuid(0x100001 + 2 * number) for number in range(5)]
    leadview.publish_all(
        crm.lead(version, id=lead, referrer=f"v{version}") for version in range(1, 5) for lead in leads
    )
    leadview.publish(crm.deleted(resources.LEAD, 5, leads[0]), crm.tombstone(resources.LEAD, leads[1]))
    leadview.start("run", command=DEFECTIVE)
    wait_until(lambda: stored(leadview) == 22, "all are parked")
    assert leadview.documents() == {}
    # As if those of one partition had been in a batch that could not be read: one dead letter stands for all of them.
    letters = msgspec.json.decode(leadview.run("dead-letters", "list", "--json").stdout, type=list[DeadLetter])
    first, *others = [each for each in letters if each.partition == letters[0].partition]
    leadview.redis.hdel(names.DEAD_LETTERS, *(each.field for each in others))
    whole = msgspec.structs.replace(first, offsets=1 + len(others))
    leadview.redis.hset(names.DEAD_LETTERS, whole.field, whole.stored)
    done = leadview.run("dead-letters", "redrive")
    assert f"{22 - len(others)} redriven, 0 still bad" in done
    assert leadview.documents() == leadview.expected()
    assert len(leadview.documents()) == 3

    # Dead letters as an older projector may have left them: of a record that is stale by now, and of none.
    topic, partition, _ = done.stdout.partition(" ")[0].rsplit(":", 2)
    for offset in (0, 9999):
        letter = DeadLetter(topic, int(partition), offset, "key", "an older projector could not read it", 1)
        leadview.redis.hset(names.DEAD_LETTERS, letter.field, msgspec.json.encode(letter).decode())
    done = leadview.run("dead-letters", "redrive")
    assert f"{topic}:{partition}:0  stale" in done
    assert f"{topic}:{partition}:9999  gone" in done
