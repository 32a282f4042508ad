"""Clients that are generated from the OpenAPI document work against the real service, and against its next version,
which has fields that the document does not have. `make clients` generates them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import orjson
import pytest

from devstack.ports import free_port
from docs.generate.answers import etag
from schemas import resources
from tests.harness.api_server import patient, running_api
from tests.harness.front import gateway
from tests.harness.make_run import running
from tests.harness.programs import printed_by
from tests.harness.records import Records
from tests.harness.services import RedisService
from tests.service.clients.clients import BUILD, CLIENTS, ROOT

pytestmark = pytest.mark.clients

HOUR = 3600
QUOTE_TOTAL = 1234567.89
"""Not to be told from its neighbours in 32 bits."""
NOTES_COUNT = 3_000_000_000
"""More than 32 bits."""
CUSTOM_FIELDS = {"code": "0042", "said": "true", "budget": 1234567.89, "news": True, "diets": ["vegan"], "day": None}
"""Texts that look like another type stay texts."""
LEAD = ["ACCEPTED", "Europe/London", QUOTE_TOTAL, NOTES_COUNT, "newsletter"]
EXPECTED = [
    ["200", 200, *LEAD],
    ["304", 304],
    ["contact", 200, CUSTOM_FIELDS],
    ["404", 404, "not_found"],
    ["401", 401, "missing_api_key"],
    ["403", 403, "api_access_disabled"],
    ["429", 429, "rate_limit_exceeded", ["key"]],
    ["retry", 404],
    ["503", 503, "service_unavailable", True],
    ["newer", 200, *LEAD],
    ["newer contact", 200, CUSTOM_FIELDS],
    ["newer error", 404, "not_found"],
]


@pytest.fixture
def service(redis_server: RedisService, records: Records) -> Iterator[dict[str, str]]:
    """Runs the API, the same with fields that the document does not have, and one with a Redis that is not there.
    Yields what a client needs to know.
    """
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    with running_api(patient(redis_server.url)) as api, ExitStack() as others:
        caller, disabled = records.caller(), records.caller(access=False)
        limited = records.caller(key_limit=(1, 1), organization_limit=(100, HOUR))
        lead = msgspec.to_builtins(resources.LEAD.example) | {"quote_total": QUOTE_TOTAL, "notes_count": NOTES_COUNT}
        contact = msgspec.to_builtins(resources.CONTACT.example) | {"custom_fields": CUSTOM_FIELDS}
        away = others.enter_context(running_api(patient(nowhere), ready=False))
        url = f"http://127.0.0.1:{api.port}"
        yield {
            "url": url,
            "away": f"http://127.0.0.1:{away.port}",
            "newer": others.enter_context(gateway(url, change=with_more_fields)),
            "key": caller.key,
            "disabled": disabled.key,
            "limited": limited.key,
            "lead": records.lead(caller.organization_id, lead),
            "contact": records.contact(caller.organization_id, contact),
        }


def with_more_fields(body: bytes) -> bytes:
    """Returns the body of an API that has a new field in each object whose fields are the API's, and not the user's."""

    def extend(value: object) -> object:
        match value:
            case dict():
                own = {name: part if name == "custom_fields" else extend(part) for name, part in value.items()}
                return own | {"a_new_field": {"nested": [1, "a"]}}
            case list():
                return [extend(part) for part in value]
        return value

    return orjson.dumps(extend(orjson.loads(body)))


@pytest.mark.parametrize("name", CLIENTS)
def test_generated_client_works(name: str, service: dict[str, str]) -> None:
    client = CLIENTS[name]
    assert client.folder.is_dir(), "run `make clients`, which generates the clients"
    command = [*client.program, orjson.dumps(service).decode()]
    printed = printed_by(command, directory=client.folder, environment=client.environment)
    assert [orjson.loads(line) for line in printed.splitlines()] == EXPECTED


def test_each_client_is_on_the_page() -> None:
    page = (ROOT / "docs" / "reading.md").read_text("utf-8")
    assert [name for name in CLIENTS if name.partition(" ")[0] not in page] == []


def test_the_program_of_the_page_reads_a_lead(tmp_path: Path) -> None:
    """docs/reading.md with the sandbox: also with the key whose requests meet 503 now and then, and behind a proxy that
    did not reach the API at first.
    """
    program = (ROOT / "docs/examples/read_lead.py").read_text("utf-8")
    (tmp_path / "read_lead.py").write_text(program, "utf-8")
    with running(tmp_path, "--sandbox", "--no-live", "--port", "0") as run:
        run.wait_until_ready()
        [url] = re.findall(r"^  base URL +(\S+)$", run.output, re.MULTILINE)
        keys = dict(re.findall(r"^  (\S+) +(lv_live_\w+)  ", run.output, re.MULTILINE))
        for name, lead, first in (
            ("reader", resources.LEAD.event_example.id, f"ACCEPTED {etag(resources.LEAD)}"),
            ("unsteady", "5a4db0e5-0000-4000-8000-000000000051", "NEW W/"),
        ):
            with gateway(url, [502, 504]) as proxy:
                given = {"PYTHONPATH": str(BUILD), "API": proxy, "API_KEY": keys[name], "LEAD_ID": lead}
                command = [str(BUILD / "python" / "bin" / "python"), "read_lead.py"]
                printed = printed_by(command, directory=tmp_path, environment={**os.environ, **given})
            assert printed.startswith(first)
            assert printed.endswith("\nunchanged\n")
