"""Bad records at scale: the good ones are all there, the dead letters are exact; and a bad deploy is repaired.

`LEADVIEW_TEST_POISON_RECORDS=100000` makes it large; `make chaos` takes it as it is.
"""

import os
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from devstack.ports import free_port
from projector.dead_letter import DeadLetter
from schemas import names, resources
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.defective import REASON
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache

RECORDS = int(os.environ.get("LEADVIEW_TEST_POISON_RECORDS", "5000"))
SECONDS = 2 * PATIENCE_SECONDS + RECORDS / 500
BAD_DEPLOY = (sys.executable, "-m", "tests.harness.defective")

POISON: list[Callable[[Message], Message]] = [
    lambda message: msgspec.structs.replace(message, value=b"{"),
    lambda message: msgspec.structs.replace(message, value=b"\xff\x00"),
    lambda message: msgspec.structs.replace(message, value=(message.value or b"").replace(b'"NEW"', b'"OLD"')),
    lambda message: msgspec.structs.replace(message, value=(message.value or b"").replace(b'"version"', b'"revision"')),
    lambda message: msgspec.structs.replace(message, key=message.key.upper() + b"X"),
    lambda message: msgspec.structs.replace(message, value=b"[" * 100_000),
]


def test_one_in_a_hundred(leadview: Leadview) -> None:
    random = Random(1)
    bad_keys: set[bytes] = set()

    def messages() -> Iterator[Message]:
        for number in range(RECORDS):
            message = crm.lead(1 + number // 1000, id=crm.uuid(0x100000 + number % 1000), referrer=f"record {number}")
            if random.random() < 0.01:
                own = crm.lead(1, id=crm.uuid(0xBAD00000 + number))  # a key that nothing good has
                message = random.choice(POISON)(own)
                bad_keys.add(message.key)
            yield message

    published = leadview.publish_all(messages())
    leadview.start("run")
    wait_until(leadview.is_current, "all records are read", SECONDS)
    assert leadview.documents() == leadview.expected()
    bad = {names.dead_letter(r.topic, r.partition, r.offset) for r in published if r.key in bad_keys}
    assert len(bad) == len(bad_keys) > RECORDS // 200
    assert {field.decode() for field in _letters(leadview)} == bad


def test_a_bad_deploy(leadview: Leadview) -> None:
    """It stops at the limit and says why. The next deploy resumes there, and the dead letters are redriven."""
    leads = [crm.uuid(0x100000 + number) for number in range(100)]
    leadview.publish_all(crm.lead(version, id=lead) for version in range(1, 4) for lead in leads)
    # Not of the same leads: their dead letters would be deleted as soon as a newer version of the lead is applied.
    others = [crm.uuid(0x200000 + number) for number in range(100 * max(10, RECORDS // 500))]
    good = leadview.start("run")
    leadview.wait_until_served()
    good.stop()

    port = free_port()
    bad = leadview.start("run", command=BAD_DEPLOY, metrics_port=port, batch_records=50)
    leadview.publish_all(crm.lead(1, id=lead, referrer="v1") for lead in others)
    wait_until(lambda: ask(port, "/healthz")[0] == 503, "the line is halted")
    problem = ask(port, "/healthz")[1]["problems"][0]
    assert REASON in problem
    assert "of the last 1000 records are bad" in problem
    bad.stop()
    letters = [msgspec.json.decode(letter, type=DeadLetter) for letter in _letters(leadview).values()]
    assert 0 < len(letters) <= 100
    assert all(letter.reason == f"{REASON} (event e1 of /crm)" for letter in letters)
    assert not leadview.is_current(), "nothing was drained into the dead letters"

    leadview.start("run")
    wait_until(leadview.is_current, "the line resumes there", SECONDS)
    done = leadview.run("dead-letters", "redrive")
    assert f"{len(letters)} redriven, 0 still bad" in done
    driven = [line.split()[0].rsplit(":", 2) for line in done.stdout.splitlines()[:-1]]
    places = [(topic, int(partition), int(offset)) for topic, partition, offset in driven]
    assert places == sorted(places)
    assert len(places) == len(letters)
    assert leadview.documents() == leadview.expected()
    assert not _letters(leadview)


def test_dead_letters_of_one_lead_are_redriven_in_their_order(leadview: Leadview) -> None:
    """Nothing newer was published meanwhile, so the last of them decides."""
    leads = [crm.uuid(0x100001 + 2 * number) for number in range(5)]
    leadview.publish_all(
        crm.lead(version, id=lead, referrer=f"v{version}") for version in range(1, 5) for lead in leads
    )
    leadview.publish(crm.deleted(resources.LEAD, 5, leads[0]), crm.tombstone(resources.LEAD, leads[1]))
    leadview.start("run", command=BAD_DEPLOY)
    wait_until(lambda: len(_letters(leadview)) == 22, "all are parked")
    assert leadview.documents() == {}
    done = leadview.run("dead-letters", "redrive")
    assert "22 redriven, 0 still bad" in done
    assert leadview.documents() == leadview.expected()
    assert len(leadview.documents()) == 3


def _letters(leadview: Leadview) -> dict[bytes, Any]:
    letters: dict[bytes, Any] = leadview.redis.hgetall(names.DEAD_LETTERS)
    return letters
