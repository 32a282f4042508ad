"""What the API serves is what its OpenAPI document says: schemathesis finds no failure, and the examples are true."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from docs.generate.openapi import ETAG
from schemas import api_keys
from schemas.resources import LEAD, RESOURCES, ROOT
from tests.harness import crm
from tests.harness.api_server import ApiServer
from tests.harness.programs import printed_by
from tests.harness.projection import Projection, open_projection
from tests.harness.services import RedisService

ORGANIZATION = LEAD.event_example.organization_id
KEY = api_keys.mint(ORGANIZATION)


@pytest.fixture
async def projection(redis_server: RedisService) -> AsyncIterator[Projection]:
    """It has applied the examples of the document."""
    own: dict[str, Any] = {"organization_id": ORGANIZATION}
    events = [crm.organization(id=ORGANIZATION, **own), crm.api_key(hash=api_keys.key_hash(KEY), **own)]
    events += [crm.changed(resource, msgspec.to_builtins(resource.event_example)) for resource in RESOURCES]
    async with open_projection(redis_server) as projection:
        await projection.apply(*(event.record(offset) for offset, event in enumerate(events)))
        yield projection


async def test_schemathesis_finds_no_failure(served: ApiServer) -> None:
    """With a key. That it is needed is one of the checks. It meets 200 and 304 as well: the examples are served."""
    for resource in RESOURCES:
        path = f"{ROOT}/{resource.topic}/{resource.event_example.id}"
        found = served.get(path, key=KEY)
        assert (found.status, found.body) == (200, msgspec.json.encode(resource.example))
        assert resource is not LEAD or found.headers["etag"] == ETAG, "which the document shows"
        assert served.get(path, key=KEY, headers={"If-None-Match": found.headers["etag"]}).status == 304
    url = f"http://127.0.0.1:{served.port}/api/v1/ext/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", "all", "--max-examples", "15"]
    command += ["--seed", "1", "--continue-on-failure", "--no-color"]
    command += ["--header", f"Authorization: Bearer {KEY}"]
    await asyncio.to_thread(printed_by, command)
