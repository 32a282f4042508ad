"""Leads and contacts of one organization that keep changing, and readers that check that no version goes back."""

import http.client
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson

from schemas import api_keys, resources
from tests.harness import crm
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.stopwatch import Stopwatch
from tests.harness.threads import Repeating
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

STOOD_STILL_SECONDS = 0.2
MAX_BEHIND = 500
_TICK_SECONDS = 0.05
UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}


class Changes:
    """All events of an organization, from one seed. `referrer` and `first_name` show the version.

    The first `steady` leads and contacts are never deleted.
    """

    def __init__(self, leads: int, contacts: int, *, organization: str = crm.ORGANIZATION, seed: int = 1) -> None:
        self.organization = organization
        self.key = api_keys.mint(organization, "0" * 30)
        self._random = Random(seed)
        base = int(organization.replace("-", ""), 16) % 2**40 * 2**20
        self.leads = [crm.uuid(base + number) for number in range(leads)]
        self.contacts = [crm.uuid(base + 2**19 + number) for number in range(contacts)]
        self.steady = min(leads, contacts) // 2
        self._versions: dict[str, int] = {}

    def initial(self) -> Iterator[Message]:
        """Yields the organization, its key, and every lead and contact; some contacts come after their leads."""
        own = self.organization
        yield crm.organization(id=own, organization_id=own, rate_limits=UNLIMITED)
        yield crm.api_key(organization_id=own, hash=api_keys.key_hash(self.key))
        early = len(self.contacts) // 2
        yield from (self._contact(id_) for id_ in self.contacts[:early])
        yield from (self._lead(id_) for id_ in self.leads)
        yield from (self._contact(id_) for id_ in self.contacts[early:])

    def more(self) -> Iterator[Message]:
        """Yields changes without end: of leads and contacts, with some moves, deletes and re-creations."""
        while True:
            kind = self._random.choice((resources.LEAD, resources.LEAD, resources.CONTACT))
            ids, make = (self.leads, self._lead) if kind is resources.LEAD else (self.contacts, self._contact)
            id_ = self._random.choice(ids)
            if self._random.random() < 0.1 and id_ not in ids[: self.steady]:
                yield crm.deleted(kind, self._next(id_), id_, self.organization)
            else:
                yield make(id_)

    def _lead(self, id_: str) -> Message:
        version = self._next(id_)
        contact = self._random.choice(self.contacts) if version == 1 or self._random.random() < 0.2 else None
        contact = contact or self.contacts[self.leads.index(id_) % len(self.contacts)]
        return crm.lead(version, id=id_, organization_id=self.organization, contact_id=contact, referrer=f"v{version}")

    def _contact(self, id_: str) -> Message:
        version = self._next(id_)
        return crm.contact(version, id=id_, organization_id=self.organization, first_name=f"v{version}")

    def _next(self, id_: str) -> int:
        self._versions[id_] = self._versions.get(id_, 0) + 1
        return self._versions[id_]


class Writer(Repeating):
    """Publishes changes, about `rate` a second, until `stop`.

    It pauses while the projectors are more than `MAX_BEHIND` records behind: a slow machine would never catch up.
    """

    def __init__(self, leadview: Leadview, changes: Changes, rate: int) -> None:
        super().__init__(_TICK_SECONDS)
        self._leadview = leadview
        self._changes = changes.more()
        self._each = max(1, round(rate * _TICK_SECONDS))

    def _work(self) -> None:
        if self._leadview.behind() < MAX_BEHIND:
            self._leadview.publish_all(next(self._changes) for _ in range(self._each))


class Reader(Repeating):
    """Reads the steady records over HTTP as fast as it can, until `stop`: each response is 200, no version goes back.

    A response 503 is right if the machine stood still meanwhile, so that the API had no reply of Redis in time.
    """

    def __init__(self, port: int, changes: Changes, seed: int) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        self._changes = changes
        self._random = Random(seed)
        self._stopwatch = Stopwatch()
        self._newest: dict[str, int] = {}
        steady = changes.steady
        self._paths = [LEADS + id_ for id_ in changes.leads[:steady]]
        self._paths += [CONTACTS + id_ for id_ in changes.contacts[:steady]]
        self.answers = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with self._stopwatch:
            super().run()

    def _work(self) -> None:
        path, lost = self._random.choice(self._paths), self._stopwatch.lost
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {self._changes.key}"})
        answer = self._connection.getresponse()
        body = answer.read()
        self.answers += 1
        if answer.status == 200:
            self._check(path, orjson.loads(body))
        elif answer.status != 503 or self._stopwatch.lost - lost < STOOD_STILL_SECONDS:
            self.wrong.append(f"{path}: {answer.status} {body!r}")

    def stop(self, timeout: float | None = None) -> None:
        """End, and fail if anything was wrong."""
        wait_until(lambda: self.answers > 50 or not self.is_alive(), "the reader has read enough")
        super().stop(timeout)
        self._connection.close()
        assert not self.wrong, self.wrong[:10]
        assert self.answers > 50

    def _check(self, path: str, document: dict[str, Any]) -> None:
        self._see(path, document.get("referrer") or document["first_name"])
        contact = document.get("contact")
        if contact and contact["id"] in self._changes.contacts[: self._changes.steady]:
            # A lead's own view: the contact may be ahead in its own document for the moment of a fan-out.
            self._see(f"{path} of {contact['id']}", contact["first_name"])

    def _see(self, what: str, shown: str) -> None:
        version = int(shown.removeprefix("v"))
        if version < self._newest.get(what, 0):
            self.wrong.append(f"{what}: version {version} after {self._newest[what]}")
        self._newest[what] = version


def now_ms() -> int:
    return int(time.time() * 1000)
