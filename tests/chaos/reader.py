"""Readers: external tools that send requests to the API all the time and note every answer."""

import http.client
import threading
from collections.abc import Sequence
from datetime import datetime
from math import inf
from random import Random
from typing import Any

import orjson

from projector.reference import Entity
from schemas import resources
from tests.chaos.core import KEY_IDS, ORGANIZATIONS, Core, key_text
from tests.chaos.history import Response, at, now
from tests.harness.api_server import CONTACTS, LEADS

_PATHS: dict[resources.Kind, str] = {resources.LEAD: LEADS, resources.CONTACT: CONTACTS}
_TIMEOUT_SECONDS = 20.0


class Reader(threading.Thread):
    """Sends about `rate` requests per second until `stop`, each to one of the API processes at these ports."""

    def __init__(self, ports: Sequence[int], core: Core, seed: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._core = core
        self._random = Random(seed)
        self._pause = 1 / rate
        self._ended = threading.Event()
        self._connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS) for port in ports]
        self._known: dict[Entity, tuple[str, bytes]] = {}
        """ETag and body that each record had when it was last read, from whichever process."""
        self.answers: list[Response] = []

    def run(self) -> None:
        while not self._ended.wait(self._pause):
            self.answers.append(self._ask())
        for connection in self._connections:
            connection.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _ask(self) -> Response:
        key = (resources.API_KEY, self._random.choice(ORGANIZATIONS), self._random.choices(KEY_IDS, [3, 1])[0])
        wanted = self._wanted(key[1])
        process = self._random.randrange(len(self._connections))
        connection = self._connections[process]
        asked_at = now()
        try:
            status, body, as_of = self._request(connection, key_text(key), wanted)
        except (OSError, http.client.HTTPException):
            connection.close()
            status, body, as_of = 0, b"", -inf
        return read(Response(asked_at, now(), key, wanted, status, process=process, as_of=as_of), body)

    def _request(self, connection: http.client.HTTPConnection, key: str, wanted: Entity) -> tuple[int, bytes, float]:
        """Returns status, body, and `Data-As-Of`. Every other request is conditional; for 304, the body is the one that
        is known.
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
        return reply.status, known if reply.status == 304 else body, as_of

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
