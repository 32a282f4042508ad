"""The load of a rolling restart: the core product publishes, and external tools read through the fronts.

A lead shows its own version as its referrer, and a contact as its first name. So each response says which events it
shows: an older one after a newer one, or an older one than the last at the end, is a failure.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import orjson
from msgspec import Struct

from projector.reference import Entity
from schemas import api_keys, resources
from tests.harness import crm
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.crm import Message
from tests.harness.front import Front
from tests.harness.leadview import Leadview

ORGANIZATIONS = [crm.uuid(0xA1 + number) for number in range(6)]
"""On a cluster of three primaries that share the slots evenly, each has some of them."""
_KEYS = {organization: api_keys.mint(organization) for organization in ORGANIZATIONS}
_CONTACTS = [crm.uuid(0xC000 + number) for number in range(4)]
_LEADS = [crm.uuid(0x1000 + number) for number in range(12)]
_UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}
_TIMEOUT_SECONDS = 20.0
_TICK_SECONDS = 0.1

Versions = tuple[int, int]
"""Of a lead and of the contact that it shows, or of a contact and 0."""


class Tally(Struct):
    """What happened in a step."""

    requests: int = 0
    slowest: float = 0.0
    """The longest time of a request in seconds, from its first byte to the last byte of the response."""
    events: int = 0
    """Events that Kafka acknowledged."""
    failures: list[str] = []


class Journal:
    """What all threads have seen. It is safe to use from all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tally = Tally()
        self._newest: dict[Entity, Versions] = {}
        self._tags: dict[tuple[Entity, Versions], str] = {}

    def take(self) -> Tally:
        """Returns what happened since the last call."""
        with self._lock:
            tally, self._tally = self._tally, Tally()
        return tally

    def acknowledged(self, events: int) -> None:
        with self._lock:
            self._tally.events += events

    def failed(self, what: str) -> None:
        with self._lock:
            self._tally.failures.append(what)

    def answered(self, seconds: float) -> None:
        """A request has ended, well or not."""
        with self._lock:
            self._tally.requests += 1
            self._tally.slowest = max(self._tally.slowest, seconds)

    def newest(self, entity: Entity) -> Versions:
        """Returns what any response has shown by now."""
        with self._lock:
            return self._newest.get(entity, (0, 0))

    def shown(self, entity: Entity, versions: Versions, tag: str, floor: Versions) -> None:
        """Check a response: `floor` is what responses had shown when its request began."""
        with self._lock:
            if versions[0] < floor[0] or versions[1] < floor[1]:
                self._tally.failures.append(f"{_path(entity)}: {versions} was served after {floor}")
            if self._tags.setdefault((entity, versions), tag) != tag:
                self._tally.failures.append(f"{_path(entity)}: {versions} has two ETags")
            newest = self._newest.get(entity, versions)
            self._newest[entity] = (max(versions[0], newest[0]), max(versions[1], newest[1]))


class _Worker(threading.Thread):
    """Calls `_work`, waits for `pause` seconds, and repeats this until `stop`. If `_work` raises, that is a failure."""

    def __init__(self, journal: Journal, pause: float) -> None:
        super().__init__(daemon=True)
        self._journal = journal
        self._pause = pause
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                self._work()
        except Exception as error:
            self._journal.failed(f"a thread of the load has ended: {error!r}")
            raise

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _work(self) -> None:
        raise NotImplementedError


class Publisher(_Worker):
    """The core product. Publishes about `rate` events a second until `stop`, each acknowledged by Kafka."""

    def __init__(self, leadview: Leadview, journal: Journal, rate: float) -> None:
        super().__init__(journal, _TICK_SECONDS)
        self._leadview = leadview
        self._each = max(1, round(rate * _TICK_SECONDS))
        self._random = Random(1)
        self.versions: dict[Entity, int] = {}

    def publish_first(self) -> None:
        """Organizations, keys, and each record once."""
        for organization in ORGANIZATIONS:
            owned: dict[str, Any] = {"organization_id": organization}
            access = crm.organization(**owned, id=organization, rate_limits=_UNLIMITED)
            key = crm.api_key(**owned, hash=api_keys.key_hash(_KEYS[organization]))
            self._leadview.publish(access, key)
        self._leadview.publish_all(self._next(entity) for entity in _entities())

    def missing(self) -> list[str]:
        """Returns the records whose last event no response has shown. To be called when all records have been read."""
        wrong = []
        for entity in _entities():
            last = self.versions[entity], 0 if entity[0] is resources.CONTACT else self.versions[_contact_of(entity)]
            if (shown := self._journal.newest(entity)) != last:
                wrong.append(f"{_path(entity)} of {entity[1]} shows {shown}, and the last events are {last}")
        return wrong

    def _work(self) -> None:
        messages = [self._next(entity) for entity in self._random.sample(_entities(), self._each)]
        self._leadview.publish_all(messages)  # raises AssertionError if Kafka does not acknowledge all of them
        self._journal.acknowledged(len(messages))

    def _next(self, entity: Entity) -> Message:
        kind, organization, id_ = entity
        version = self.versions[entity] = self.versions.get(entity, 0) + 1
        fields: dict[str, Any] = {"id": id_, "organization_id": organization}
        if kind is resources.CONTACT:
            return crm.contact(version, first_name=str(version), **fields)
        return crm.lead(version, referrer=str(version), contact_id=_contact_of(entity)[2], **fields)


class Reader(_Worker):
    """An external tool: one organization, one key, one connection that is kept open, `rate` requests a second.

    It never repeats a request: each answer but 200, and each connection that breaks, is a failure.
    """

    def __init__(self, organization: str, fronts: Sequence[Front], journal: Journal, rate: float) -> None:
        super().__init__(journal, 1 / rate)
        self._connection = _Connection(fronts)
        self._headers = {"Authorization": f"Bearer {_KEYS[organization]}"}
        self._entities = [entity for entity in _entities() if entity[1] == organization]
        self._random = Random(organization)

    def stop(self) -> None:
        super().stop()
        self._connection.close()

    def _work(self) -> None:
        self.read(self._random.choice(self._entities))

    def read_all(self) -> None:
        """Read each record of the organization once."""
        for entity in self._entities:
            self.read(entity)
        self._connection.close()

    def read(self, entity: Entity) -> None:
        floor = self._journal.newest(entity)
        began_at = time.monotonic()
        try:
            self._connection.request("GET", _path(entity), headers=self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._journal.failed(f"{_path(entity)}: {error!r}")
        else:
            if response.status == 200:
                self._journal.shown(entity, _versions(entity, body), response.headers["ETag"], floor)
            else:
                self._journal.failed(f"{_path(entity)}: {response.status} {body.decode(errors='replace')}")
        self._journal.answered(time.monotonic() - began_at)


class _Connection(http.client.HTTPSConnection):
    """A connection to the first front that accepts one, as to a name with several addresses."""

    def __init__(self, fronts: Sequence[Front]) -> None:
        self._tls = ssl.create_default_context()
        for front in fronts:
            self._tls.load_verify_locations(front.ca)
        self._addresses = [(front.host, front.port) for front in fronts]
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS, context=self._tls)

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            try:
                self._connect_to(address)
            except OSError:
                continue
            return
        self._connect_to(last)

    def _connect_to(self, address: tuple[str, int]) -> None:
        plain = socket.create_connection(address, _TIMEOUT_SECONDS)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise


def _entities() -> list[Entity]:
    """Returns all records of all organizations. The ids are the same in each."""
    return [
        (kind, organization, id_)
        for organization in ORGANIZATIONS
        for kind, ids in ((resources.CONTACT, _CONTACTS), (resources.LEAD, _LEADS))
        for id_ in ids
    ]


def _contact_of(lead: Entity) -> Entity:
    return resources.CONTACT, lead[1], _CONTACTS[_LEADS.index(lead[2]) % len(_CONTACTS)]


def _path(entity: Entity) -> str:
    return (LEADS if entity[0] is resources.LEAD else CONTACTS) + entity[2]


def _versions(entity: Entity, body: bytes) -> Versions:
    document: dict[str, Any] = orjson.loads(body)
    if entity[0] is resources.CONTACT:
        return int(document["first_name"]), 0
    return int(document["referrer"]), int(document["contact"]["first_name"])
