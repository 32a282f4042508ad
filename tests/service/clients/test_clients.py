"""Clients that are generated from the OpenAPI document work against the real service. `make clients` generates them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.ports import free_port
from schemas import resources
from tests.harness.api_server import patient, running_api
from tests.harness.records import Records
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / "clients"
HOUR = 3600
PROGRAMS = {
    "Python": [str(BUILD / "python" / "bin" / "python"), str(BUILD / "use_client.py")],
    "TypeScript": ["node", str(BUILD / "javascript" / "useClient.js")],
}
EXPECTED = [
    ["200", 200, "Europe/London", "ACCEPTED"],
    ["304", 304, ""],
    ["contact", 200],
    ["404", 404, "not_found"],
    ["401", 401, "missing_api_key"],
    ["403", 403, "api_access_disabled"],
    ["429", 429, "rate_limit_exceeded", ["key"]],
    ["retry", 404],
    ["503", 503, "service_unavailable", True],
]


@contextmanager
def service(redis_server: RedisService) -> Iterator[dict[str, str]]:
    """Runs the API twice, once with a Redis that is not there. Yields what a client needs to know."""
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    with redis_server.client() as client, running_api(patient(redis_server.url)) as api:
        records = Records(client)
        caller, disabled = records.caller(), records.caller(access=False)
        limited = records.caller(key_limit=(1, 1), organization_limit=(100, HOUR))
        lead = records.lead(caller.organization_id, resources.LEAD.example)
        contact = records.contact(caller.organization_id, resources.CONTACT.example)
        with running_api(patient(nowhere), ready=False) as away:
            yield {
                "url": f"http://127.0.0.1:{api.port}",
                "away": f"http://127.0.0.1:{away.port}",
                "key": caller.key,
                "disabled": disabled.key,
                "limited": limited.key,
                "lead": lead,
                "contact": contact,
            }


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_generated_client_works(language: str, redis_server: RedisService) -> None:
    assert BUILD.is_dir(), "run `make clients`, which generates the clients"
    with service(redis_server) as order:
        done = subprocess.run(
            [*PROGRAMS[language], json.dumps(order)],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == EXPECTED
