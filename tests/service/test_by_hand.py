"""The contract by hand: kcat publishes its events, curl reads them back (real projector, API, Kafka and Redis)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pytest

from devstack.programs import ROOT
from schemas import api_keys
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.leadview import Leadview
from tests.harness.services import not_available
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache

ORGANIZATION = "6f1c8d3e-2b4a-4c5d-9e6f-7a8b9c0d1e2f"
LEAD = "0a1b2c3d-4e5f-4678-9abc-def012345678"
CONTACT = "9f8e7d6c-5b4a-4321-8fed-cba987654321"
KEY_ID = "11111111-2222-4333-8444-555555555555"
KEY = api_keys.mint(ORGANIZATION)
LEAD_DATA = {
    "id": LEAD,
    "organization_id": ORGANIZATION,
    "contact_id": CONTACT,
    "stage": "QUOTE_SENT",
    "created_at": "2026-03-01T10:00:00+02:00",
    "updated_at": "2026-03-02T09:30:00.250-05:00",
    "event_type_key": "wedding",
    "attribution": {"utm_source": "fair", "clicks": [1, 2]},
    "assigned_to": None,
    "tags": ["HOT_LEAD"],
    "events": [
        {"id": CONTACT, "starts_at": "2026-09-12T15:30:00+02:00", "length_hours": 9.5, "guests": 120},
        {"id": LEAD},
    ],
    "quote": {"total": "1234.50", "currency": "EUR"},
    "counts": {"notes": 3},
    "color": "an unknown field",
}
CONTACT_DATA = {
    "id": CONTACT,
    "organization_id": ORGANIZATION,
    "first_name": "Zoë",
    "last_name": "Nakamura",
    "phone": "+44 20 7946 0123",
    "custom_fields": {"budget": 18500, "vip": True, "diet": ["vegan"], "note": None},
    "created_at": "2026-03-01T10:00:00Z",
    "updated_at": "2026-03-01T10:00:00Z",
}
LEAD_DOCUMENT = (
    f'{{"id":"{LEAD}","organization_id":"{ORGANIZATION}","contact_id":"{CONTACT}","stage":"QUOTE_SENT",'
    '"event_type_key":"wedding","event_location":null,"referrer":null,'
    '"source":{"utm_source":"fair","clicks":[1,2]},"assigned_to":null,"booking_id":null,"tags":["HOT_LEAD"],'
    f'"events":[{{"id":"{CONTACT}","event_date":"2026-09-12T13:30:00Z","event_length_hours":9.5,"event_guests":120,'
    '"event_timezone":null,"event_type_key":null,"event_location":null},'
    f'{{"id":"{LEAD}","event_date":null,"event_length_hours":null,"event_guests":null,'
    '"event_timezone":null,"event_type_key":null,"event_location":null}],'
    '"contact":null,"quote_total":1234.50,"notes_count":3,"tasks_count":0,"quotes_count":0,"archived_at":null,'
    '"created_at":"2026-03-01T08:00:00Z","updated_at":"2026-03-02T14:30:00.250000Z"}'
)
UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}
SUMMARY = (
    f'{{"id":"{CONTACT}","first_name":"Zoë","last_name":"Nakamura","email":null,"phone_number":"+44 20 7946 0123"}}'
)


class Response(NamedTuple):
    """What curl shows."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)
        return found


class Hands:
    """kcat on one side, curl on the other."""

    def __init__(self, leadview: Leadview, port: int) -> None:
        self._leadview = leadview
        self._port = port
        self._versions: dict[str, int] = {}

    def publish(self, topic: str, key: str, value: str | None, *headers: str) -> None:
        """One record; None is a null value."""
        words = ["kcat", "-P", "-q", "-b", self._leadview.kafka.bootstrap_servers, "-t", self._leadview.prefix + topic]
        words += ["-K", "\t", *(word for header in headers for word in ("-H", header))]
        words += ["-Z"] if value is None else []
        subprocess.run(words, input=f"{key}\t{value or ''}\n", text=True, check=True, timeout=PATIENCE_SECONDS)

    def change(self, kind: str, data: dict[str, Any], *, binary: bool = False, verb: str = "changed") -> None:
        """A `changed` (or `deleted`) event of the next version."""
        version = self._versions[data["id"]] = self._versions.get(data["id"], 0) + 1
        topic = {"lead": "leads", "contact": "contacts", "organization": "organizations", "api_key": "api-keys"}[kind]
        key = ORGANIZATION if kind == "organization" else f"{ORGANIZATION}:{data['id']}"
        attributes = {"specversion": "1.0", "id": "1", "source": "/crm", "type": f"crm.{kind}.{verb}"}
        attributes["time"] = "2026-03-02T16:30:00+02:00"
        body = orjson.dumps({**data, "version": version}).decode()
        if binary:
            headers = [f"ce_{name}={value}" for name, value in attributes.items()]
            self.publish(topic, key, body, *headers, "content-type=application/json")
        else:
            event = orjson.dumps(attributes).decode()[:-1] + f', "traceparent": "00-ab", "data": {body}}}'
            self.publish(topic, key, event)

    def delete(self, kind: str, entity_id: str) -> None:
        data = {"id": entity_id, "organization_id": ORGANIZATION}
        self.change(kind, data, verb="deleted")

    def organization(self, **fields: Any) -> None:
        self.change("organization", {"id": ORGANIZATION, "organization_id": ORGANIZATION, "api_access": True} | fields)

    def key(self, status: str = "active", **fields: Any) -> None:
        data = {"id": KEY_ID, "organization_id": ORGANIZATION, "hash": api_keys.key_hash(KEY), "status": status}
        self.change("api_key", data | {"created_at": "2026-03-01T10:00:00Z"} | fields)

    def get(self, path: str, *words: str, key: str | None = KEY) -> Response:
        """What `curl -i` says."""
        command = ["curl", "-s", "-i", f"http://127.0.0.1:{self._port}{path}", *words]
        command += ["-H", f"Authorization: Bearer {key}"] if key else []
        shown = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_SECONDS).stdout.decode()
        head, _, body = shown.partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Response(int(status.split()[1]), headers, body)

    def until(self, path: str, status: int, **fields: object) -> Response:
        """Ask until this is the status, and the document has these fields. Returns that answer, and not another one."""
        answers: list[Response] = []

        def is_there() -> bool:
            answers.append(self.get(path))
            return answers[-1].status == status and (not fields or answers[-1].json | fields == answers[-1].json)

        wait_until(is_there, f"{path} answers {status} with {fields}")
        return answers[-1]


@pytest.fixture
def programs() -> None:
    for program in ("kcat", "curl"):
        if shutil.which(program) is None:
            not_available(f"there is no {program} here")


@pytest.fixture
def hands(programs: None, leadview: Leadview) -> Iterator[Hands]:
    leadview.start("run")
    wait_until(leadview.is_served, "the projector has begun")
    with leadview.api() as api:
        yield Hands(leadview, api.port)


def test_a_first_organization(programs: None, leadview: Leadview) -> None:
    """The commands that docs/examples/first_organization.py prints give access to a new organization."""
    program = [sys.executable, "-m", "docs.examples.first_organization"]
    printed = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    script = printed.replace("-t crm.", f"-t {leadview.prefix}") + "echo $ORGANIZATION $API_KEY\n"
    environment = {**os.environ, "KAFKA": leadview.kafka.bootstrap_servers}
    done = subprocess.run(["/bin/sh", "-ec", script], env=environment, capture_output=True, text=True, check=True)
    organization, key = done.stdout.split()
    leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: api.get(LEADS + LEAD, key=key).status == 404, "the organization has access")
    assert api_keys.parse(key).organization_id == organization


def test_the_life_of_a_lead(hands: Hands) -> None:
    """Every row of the tables that an event can bring about, in the order in which a life brings them."""
    lead, contact = LEADS + LEAD, CONTACTS + CONTACT
    assert hands.get(lead).json["error"] == "invalid_api_key"  # well formed, but unknown

    hands.key()
    hands.until(lead, 403)
    assert hands.get(lead).json["error"] == "api_access_disabled"  # of an organization never heard of
    hands.organization(api_access=False)
    hands.organization(rate_limits=UNLIMITED)  # however long it is asked for what is to come
    assert hands.until(lead, 404).json["error"] == "not_found"

    hands.change("lead", LEAD_DATA)
    found = hands.until(lead, 200)
    assert found.body == LEAD_DOCUMENT
    assert found.headers["cache-control"] == "private, no-cache"
    hands.change("contact", CONTACT_DATA, binary=True)
    assert hands.until(contact, 200).json["custom_fields"] == CONTACT_DATA["custom_fields"]
    with_summary = LEAD_DOCUMENT.replace('"contact":null', f'"contact":{SUMMARY}')
    assert hands.until(lead, 200, contact=orjson.loads(SUMMARY)).body == with_summary
    assert hands.get(LEADS + LEAD.upper()).body == with_summary

    tag = hands.get(lead).headers["etag"]
    assert tag != found.headers["etag"]
    unchanged = hands.get(lead, "-H", f"If-None-Match: {tag}")
    assert (unchanged.status, unchanged.body) == (304, "")
    head = hands.get(lead, "-I")
    assert (head.status, head.body, head.headers["etag"]) == (200, "", tag)

    hands.publish("leads", f"{ORGANIZATION}:{LEAD}", '{"not": "a CloudEvent"}')
    hands.change("lead", LEAD_DATA | {"stage": "STALE", "attribution": None})
    assert "source" not in hands.until(lead, 200, stage="STALE").json, "what comes after a bad record"

    hands.publish("contacts", f"{ORGANIZATION}:{CONTACT}", None)
    assert hands.until(contact, 404).json["error"] == "not_found"
    hands.until(lead, 200, contact=None)
    hands.change("contact", CONTACT_DATA)
    hands.until(contact, 200)
    hands.until(lead, 200, contact=orjson.loads(SUMMARY))
    hands.delete("lead", LEAD)
    hands.until(lead, 404)
    hands.change("lead", LEAD_DATA, binary=True)
    assert hands.until(lead, 200).body == with_summary

    hands.organization(rate_limits={"key": {"quota": 5, "window_seconds": 3600}})
    limited = hands.until(lead, 429)
    assert limited.json["violated_policies"] == ["key"]
    assert limited.headers["ratelimit-policy"] == '"key";q=5;w=3600, "organization";q=300;w=10'
    hands.key("revoked")
    assert hands.until(lead, 401).json["error"] == "invalid_api_key"
    hands.key(expires_at="2999-01-01T00:00:00+14:00")
    hands.organization(api_access=False)
    hands.until(lead, 403)
    hands.delete("organization", ORGANIZATION)
    assert hands.until(lead, 401).json["error"] == "invalid_api_key"
