"""The contract by hand: events, and documents as they were written for this file, over a real projector and API."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from devstack.programs import ROOT
from schemas import api_keys, resources
from tests.harness import crm
from tests.harness.api_server import CONTACTS, LEADS, Response
from tests.harness.crm import CONTACT, LEAD, ORGANIZATION
from tests.harness.leadview import Leadview
from tests.harness.programs import printed_by
from tests.harness.services import not_available
from tests.harness.waiting import wait_for, wait_until

pytestmark = pytest.mark.apache

LEAD_FIELDS: dict[str, Any] = {
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
CONTACT_FIELDS: dict[str, Any] = {
    "first_name": "Zoë",
    "last_name": "Nakamura",
    "phone": "+44 20 7946 0123",
    "custom_fields": {"budget": 18500, "vip": True, "diet": ["vegan"], "note": None},
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
).encode()
SUMMARY = (
    f'{{"id":"{CONTACT}","first_name":"Zoë","last_name":"Nakamura","email":null,"phone_number":"+44 20 7946 0123"}}'
).encode()
WHOLE = LEAD_DOCUMENT.replace(b'"contact":null', b'"contact":' + SUMMARY)
UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}


def test_printed_commands_give_access_to_a_first_organization(leadview: Leadview, tmp_path: Path) -> None:
    """The commands that docs/examples/first_organization.py prints give access to a new organization, also where
    clients have to sign in, with the variable that the commands name.
    """
    if shutil.which("kcat") is None:
        not_available("there is no kcat here")
    printed = printed_by([sys.executable, "-m", "docs.examples.first_organization"], directory=ROOT)
    script = printed.replace("-t crm.", f"-t {leadview.prefix}") + "echo $ORGANIZATION $API_KEY\n"
    environment = {**os.environ, "KAFKA": leadview.kafka.bootstrap_servers}
    if leadview.kafka.login_servers:
        options = tmp_path / "kcat.conf"
        options.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanisms=PLAIN\nsasl.username=crm\nsasl.password=right\n"
        )
        [variable] = re.findall(r"export (KCAT_\w+)", printed)
        environment |= {"KAFKA": leadview.kafka.login_servers, variable: str(options)}
    organization, key = printed_by(["/bin/sh", "-ec", script], environment=environment).split()
    leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: api.get(LEADS + LEAD, key=key).status == 404, "the organization has access")
    assert api_keys.parse(key).organization_id == organization


def test_each_event_of_a_lead_brings_its_row_of_answers(leadview: Leadview) -> None:
    """Every row of the tables of answers that an event can bring about, in the order in which a life brings them."""
    publish, lead, contact = leadview.publish, LEADS + LEAD, CONTACTS + CONTACT
    leadview.start("run")
    wait_until(leadview.is_served, "the projector has begun")
    with leadview.api() as api:

        def get(path: str, method: str = "GET", **headers: str) -> Response:
            return api.get(path, key=crm.KEY, headers=headers, method=method)

        def until(path: str, status: int, **fields: object) -> Response:
            """Ask until this is the status, and the body has these fields. Returns that answer, and not another one."""

            def is_it(answer: Response) -> bool:
                return answer.status == status and answer.json | fields == answer.json

            return wait_for(lambda: get(path), is_it, f"{path} answers {status} with {fields}")

        assert get(lead).error == "invalid_api_key", "it is well formed, but unknown"
        publish(crm.api_key(1))
        until(lead, 403, error="api_access_disabled")  # of an organization never heard of
        publish(crm.organization(1, api_access=False), crm.organization(2, rate_limits=UNLIMITED))
        until(lead, 404, error="not_found")

        publish(crm.with_attributes(crm.lead(1, **LEAD_FIELDS), traceparent="00-ab"))
        found = until(lead, 200)
        assert (found.body, found.headers["cache-control"]) == (LEAD_DOCUMENT, "private, no-cache")
        publish(crm.binary(crm.contact(1, **CONTACT_FIELDS)))
        until(contact, 200, custom_fields=CONTACT_FIELDS["custom_fields"])
        assert until(lead, 200, contact=orjson.loads(SUMMARY)).body == WHOLE
        assert get(LEADS + LEAD.upper()).body == WHOLE

        tag = get(lead).headers["etag"]
        assert tag != found.headers["etag"]
        unchanged = get(lead, **{"If-None-Match": tag})
        assert (unchanged.status, unchanged.body) == (304, b"")
        head = get(lead, "HEAD")
        assert (head.status, head.body, head.headers["etag"]) == (200, b"", tag)

        publish(replace(crm.lead(2), value=b'{"not": "a CloudEvent"}'))
        publish(crm.lead(2, **LEAD_FIELDS | {"stage": "STALE", "attribution": None}))
        assert "source" not in until(lead, 200, stage="STALE").json, "what comes after a bad record"

        publish(crm.tombstone(resources.CONTACT))
        until(contact, 404, error="not_found")
        until(lead, 200, contact=None)
        publish(crm.contact(2, **CONTACT_FIELDS))
        until(contact, 200)
        until(lead, 200, contact=orjson.loads(SUMMARY))
        publish(crm.deleted(resources.LEAD, 3))
        until(lead, 404)
        publish(crm.binary(crm.lead(4, **LEAD_FIELDS)))
        assert until(lead, 200).body == WHOLE

        publish(crm.organization(3, rate_limits={"key": {"quota": 5, "window_seconds": 3600}}))
        limited = until(lead, 429, violated_policies=["key"])
        assert limited.headers["ratelimit-policy"] == '"key";q=5;w=3600, "organization";q=300;w=10'
        publish(crm.api_key(2, status="revoked"))
        until(lead, 401, error="invalid_api_key")
        publish(crm.api_key(3, expires_at="2999-01-01T00:00:00+14:00"))
        publish(crm.organization(4, api_access=False))
        until(lead, 403)
        publish(crm.deleted(resources.ORGANIZATION, 5))
        until(lead, 401, error="invalid_api_key")
