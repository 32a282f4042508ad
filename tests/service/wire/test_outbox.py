"""Debezium's outbox event router publishes the rows of a table in PostgreSQL, in Apache Kafka's own Connect."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas import api_keys
from schemas.resources import CONTACT, LEAD
from tests.harness import crm
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.outbox import Connect, Postgres, running_connect, running_postgres
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import wait_until
from tests.service.conftest import new_leadview

pytestmark = [pytest.mark.wire, pytest.mark.apache]

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy" / "outbox"
PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")
[VALIDATE] = re.findall(r"`(psql .*? \| leadview validate .*?)`", PAGE)
KEY = api_keys.mint(crm.ORGANIZATION)
JSON = "org.apache.kafka.connect.json.JsonConverter"
UNLIMITED = {whose: {"quota": 1_000_000, "window_seconds": 1} for whose in ("key", "organization")}
_numbers = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as postgres:
        postgres.run((EXAMPLE / "outbox.sql").read_text("utf-8"))
        yield postgres


@pytest.fixture(scope="module")
def connect(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    with running_connect(tmp_path_factory.mktemp("connect"), kafka.bootstrap_servers) as connect:
        yield connect


def connector(postgres: Postgres, prefix: str, **changed: str | None) -> Any:
    """Returns the example, for this database and these topics, with some settings changed; or removed, if None."""
    example = orjson.loads((EXAMPLE / "connector.json").read_text("utf-8").replace("crm.$", f"{prefix}$"))
    name = f"connector_{next(_numbers)}"
    own = {"database.port": str(postgres.port), "slot.name": name, "topic.prefix": name}
    settings = example["config"] | own | changed
    return {"name": name, "config": {setting: value for setting, value in settings.items() if value is not None}}


def insert(message: Message, *, structured: bool = False) -> str:
    """Returns the statement that the core product runs instead of publishing a message."""
    event: Any = orjson.loads(message.value) if message.value else {"type": "", "data": None}
    payload = event if structured else event["data"]
    columns: list[str | None] = [
        message.kind.topic,
        message.key.decode(),
        event["type"],
        payload and orjson.dumps(payload).decode(),
    ]
    quoted = ("NULL" if column is None else "'" + column.replace("'", "''") + "'" for column in columns)
    return f"INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ({', '.join(quoted)});"


def test_the_example_publishes_an_outbox_table(postgres: Postgres, connect: Connect, leadview: Leadview) -> None:
    postgres.run("DELETE FROM outbox")
    key, lead = crm.api_key(hash=api_keys.key_hash(KEY)), crm.lead(1, tags=["it's"])
    first = (crm.organization(rate_limits=UNLIMITED), key, crm.contact(), lead)
    postgres.run("".join(insert(message) for message in first))
    connect.create(connector(postgres, leadview.prefix))
    leadview.start("run")
    with leadview.api() as api:

        def lead_shows(**fields: object) -> bool:
            response = api.get(LEADS + crm.LEAD, key=KEY)
            return response.status == 200 and fields.items() <= response.json.items()

        wait_until(lambda: lead_shows(tags=["it's"], stage="NEW"), "the lead is shown")
        wait_until(lambda: api.get(CONTACTS + crm.CONTACT, key=KEY).status == 200, "the contact is shown")
        # Rows may go at once, even before their transaction ends.
        mixed = {"mixed": [1, "a", None, {"b": 1.5}]}
        changed = crm.lead(2, stage="ACCEPTED", attribution=mixed)
        postgres.run(f"BEGIN; {insert(changed)} DELETE FROM outbox; COMMIT;")
        wait_until(lambda: lead_shows(stage="ACCEPTED", source=mixed), "the change is shown")
        postgres.run(insert(crm.tombstone(LEAD)) + insert(crm.deleted(CONTACT, 2)))
        wait_until(lambda: api.get(LEADS + crm.LEAD, key=KEY).status == 404, "the tombstone has deleted the lead")
        wait_until(lambda: api.get(CONTACTS + crm.CONTACT, key=KEY).status == 404, "the contact is deleted")
    postgres.run((EXAMPLE / "lead.sql").read_text("utf-8"))
    wait_until(leadview.documents, "the statement of the example has published a lead")
    assert leadview.run("dead-letters", "list").stdout == "no dead letters\n"


def test_outbox_with_whole_events_publishes_to_the_routers_topics(
    postgres: Postgres, connect: Connect, kafka: Kafka, redis_server: RedisService, tmp_path: Path
) -> None:
    """The payload is a structured event. The router is as published, but for the expansion of JSON."""
    postgres.run("DELETE FROM outbox")
    message = crm.lead(3, events=[{"id": crm.uuid(9), "guests": 4}])
    plain: dict[str, str | None] = {
        "transforms.outbox.route.topic.replacement": None,
        "transforms.outbox.table.fields.additional.placement": None,
        "transforms.outbox.table.expand.json.payload": "true",
        "value.converter": JSON,
        "value.converter.schemas.enable": "false",
        "header.converter": None,
    }
    with new_leadview(kafka, "outbox.event.", redis_server, tmp_path) as leadview:
        connect.create(connector(postgres, "", **plain))
        postgres.run(insert(crm.organization(), structured=True) + insert(message, structured=True))
        leadview.start("run")
        wait_until(lambda: len(leadview.documents()) == 1, "the lead is there")
        leadview.topics.reference.add(message.record())
        assert leadview.documents() == leadview.expected()


def test_the_rows_of_the_table_are_validated(postgres: Postgres) -> None:
    """With the line of the page, as a shell runs it."""
    good = [crm.organization(), crm.contact(), crm.lead(1, tags=["it's"], quote={"total": "1.50", "currency": "EUR"})]
    postgres.run(
        "DELETE FROM outbox;"
        + "".join(map(insert, [*good, crm.tombstone(LEAD)]))
        + (EXAMPLE / "lead.sql").read_text("utf-8")
    )
    assert validated(postgres) == (0, "5 records: all good")
    postgres.run(insert(crm.lead(2, stage="Quoted")))
    status, said = validated(postgres)
    assert (status, said.splitlines()[-1]) == (1, "6 records: 1 bad")
    assert ":6: `$.stage` is not valid: allowed are ACCEPTED" in said


def test_a_payload_that_is_a_string_of_json_is_refused_as_the_relay_sends_it(postgres: Postgres) -> None:
    postgres.run("DELETE FROM outbox;" + (EXAMPLE / "lead.sql").read_text("utf-8"))
    postgres.run("UPDATE outbox SET payload = to_jsonb(payload::text)")
    status, said = validated(postgres)
    assert (status, said.splitlines()[-1]) == (1, "1 record: 1 bad")
    assert "The event is inside a JSON string" in said


def validated(postgres: Postgres) -> tuple[int, str]:
    environment = os.environ | {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": "postgres"}
    environment["PATH"] = f"{postgres.programs}:{environment['PATH']}"
    script = f'leadview() {{ "{sys.executable}" -m leadview "$@"; }}\n{VALIDATE}'
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()
