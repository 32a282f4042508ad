"""What the API serves is what its OpenAPI document says: schemathesis finds no failure."""

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from api.request import etag_of
from docs.generate.openapi import ETAG
from schemas import names
from schemas.layouts import NO_CONTACT
from schemas.resources import LEAD, RESOURCES, ROOT
from tests.harness import crm
from tests.harness.api_server import UNLIMITED, ApiServer, patient, running_api
from tests.harness.generations import generation
from tests.harness.projection import Projection
from tests.harness.records import Caller, Records, head
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS


@pytest.fixture
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    with running_api(patient(redis_server.url, **UNLIMITED)) as api:
        yield api


@pytest.fixture
def caller(redis_server: RedisService) -> Iterator[Caller]:
    """One whose organization has the records of the document's examples."""
    with redis_server.client() as client:
        caller = Records(client).caller()
        for resource in RESOURCES:
            start = (head() + b"tagtag" + NO_CONTACT).ljust(resource.body_offset, b"\0")
            value = start + msgspec.json.encode(resource.example)
            client.set(names.document(resource, caller.name, generation(1), resource.event_example.id), value)
        yield caller


def test_schemathesis_finds_no_failure(api: ApiServer, caller: Caller) -> None:
    """With a key. That it is needed is one of the checks. It meets 200 and 304 as well: the examples are served."""
    for resource in RESOURCES:
        path = f"{ROOT}/{resource.topic}/{resource.event_example.id}"
        found = api.get(path, key=caller.key)
        assert found.status == 200
        assert api.get(path, key=caller.key, headers={"If-None-Match": found.headers["etag"]}).status == 304
    url = f"http://127.0.0.1:{api.port}/api/v1/ext/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", "all", "--max-examples", "15"]
    command += ["--seed", "1", "--continue-on-failure", "--no-color"]
    command += ["--header", f"Authorization: {caller.authorization}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


async def test_the_etag_of_the_example_is_a_true_one(projection: Projection) -> None:
    """It is that of the lead which is the example of the document."""
    for resource in RESOURCES:
        event = resource.event_example
        await projection.apply(crm.changed(resource, msgspec.to_builtins(event)).record(1))
    owner = names.organization(LEAD.event_example.organization_id)
    value = projection.client.get(names.document(LEAD, owner, generation(1), LEAD.event_example.id))
    assert etag_of(value).decode() == ETAG
    assert value[LEAD.body_offset :] == msgspec.json.encode(LEAD.example)
