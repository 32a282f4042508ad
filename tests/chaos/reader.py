"""Readers: external tools that send requests to the API all the time and note every answer."""

import http.client
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from math import inf
from random import Random
from typing import Any

import orjson

from devstack.threads import Repeating
from projector.reference import Entity
from schemas import resources
from tests.chaos.checker import Checker, Verdict
from tests.chaos.core import KEY_IDS, Core, Writer, key_text
from tests.chaos.history import Response, at, now
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_RATE, _ENOUGH = 50.0, 50
_PATHS: dict[resources.Kind, str] = {resources.LEAD: LEADS, resources.CONTACT: CONTACTS}


class Reader(Repeating):
    """Sends about `rate` requests per second until `stop`, each over one of these connections: one to each API process.

    It never repeats a request.
    """

    def __init__(self, connections: Sequence[http.client.HTTPConnection], core: Core, seed: int, rate: float) -> None:
        super().__init__(1 / rate)
        self._core = core
        self._random = Random(seed)
        self._connections = connections
        self._known: dict[Entity, tuple[str, bytes]] = {}
        """ETag and body that each record had when it was last read, from any process."""
        self.answers: list[Response] = []

    def stop(self, timeout: float | None = None) -> None:
        super().stop(timeout)
        for connection in self._connections:
            connection.close()

    def read_all(self) -> None:
        """Read each lead and contact of all organizations once, with the key that is always active."""
        for organization in self._core.organizations:
            leads = [(resources.LEAD, organization, id_) for id_ in self._core.leads]
            contacts = [(resources.CONTACT, organization, id_) for id_ in self._core.contacts]
            for wanted in [*leads, *contacts]:
                self._read((resources.API_KEY, organization, KEY_IDS[0]), wanted)

    def _work(self) -> None:
        organization = self._random.choice(self._core.organizations)
        key_id = self._random.choices(KEY_IDS, [3, 1])[0]
        self._read((resources.API_KEY, organization, key_id), self._wanted(organization))

    def _read(self, key: Entity, wanted: Entity) -> None:
        process = self._random.randrange(len(self._connections))
        connection = self._connections[process]
        asked_at = now()
        try:
            status, body, tag, as_of = self._request(connection, key_text(key), wanted)
        except (OSError, http.client.HTTPException):
            connection.close()
            status, body, tag, as_of = 0, b"", "", -inf
        answer = Response(asked_at, now(), key, wanted, status, process=process, as_of=as_of, tag=tag)
        self.answers.append(read(answer, body))

    def _request(
        self, connection: http.client.HTTPConnection, key: str, wanted: Entity
    ) -> tuple[int, bytes, str, float]:
        """Returns status, body, ETag and `Data-As-Of`. Every other request is conditional; for 304, the body is the one
        that is known.
        """
        headers = {"Authorization": f"Bearer {key}"}
        tag, known = self._known.get(wanted, ("", b""))
        if tag and self._random.random() < 0.5:
            headers["If-None-Match"] = tag
        connection.request("GET", _PATHS[wanted[0]] + wanted[2], headers=headers)
        reply = connection.getresponse()
        body = reply.read()
        if reply.status == 200:
            self._known[wanted] = (reply.headers["ETag"], body)
        text = reply.headers["Data-As-Of"]
        as_of = at(datetime.fromisoformat(text)) if text else -inf
        return reply.status, known if reply.status == 304 else body, reply.headers["ETag"] or "", as_of

    def _wanted(self, organization: str) -> Entity:
        chance = self._random.random()
        if chance < 0.02:
            return resources.LEAD, organization, self._core.unknown
        if chance < 0.3:
            return resources.CONTACT, organization, self._random.choice(self._core.contacts)
        return resources.LEAD, organization, self._random.choice(self._core.leads)


def read(answer: Response, body: bytes) -> Response:
    """Add what the body shows: that of a 200, or the known one of a 304."""
    if answer.status in (200, 304):
        document: dict[str, Any] = orjson.loads(body)
        answer.body = body
        answer.organization_id = document["organization_id"]
        if answer.wanted[0] is resources.CONTACT:
            answer.shown = document["first_name"]
        else:
            answer.shown, answer.contact_id = document["referrer"], document["contact_id"]
            answer.contact_shown = document["contact"]["first_name"] if document["contact"] else None
    return answer


def check(writer: Writer, readers: Sequence[Reader], access_seconds: float = 1.0) -> Verdict:
    """Check all that these readers have seen of what was published."""
    history = writer.stage.history
    history.answers += [answer for reader in readers for answer in reader.answers]
    return Checker(history, writer.bodies, access_seconds).check()


@contextmanager
def readers_of(writer: Writer, port: int, readers: int = 1) -> Iterator[None]:
    """Readers ask the API on this port until the block ends. Fails unless every answer was right. The API should be a
    patient one: no outage is expected, whatever the machine does meanwhile.
    """
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS) for _ in range(readers)]
    asking = [Reader([each], writer.core, seed, _RATE) for seed, each in enumerate(connections)]
    with ExitStack() as stack:
        for reader in asking:
            stack.enter_context(reader)
        wait_until(lambda: all(reader.answers for reader in asking), "the readers have begun")
        yield
        wait_until(lambda: all(len(reader.answers) > _ENOUGH for reader in asking), "the readers have read enough")
    verdict = check(writer, asking, access_seconds=inf)
    assert not verdict.anomalies, [str(anomaly) for anomaly in verdict.anomalies[:10]]
