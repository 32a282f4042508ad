"""An API whose log is checked, and an organization with a lead whose content must never appear in that log."""

from collections.abc import Iterator

import pytest

from tests.harness.hostile import SECRET, Target, target
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server) as api:
        yield api


@pytest.fixture
def caller(records: Records, api: Target) -> Iterator[Caller]:
    caller = records.caller()
    yield caller
    api.assert_quiet(caller)


@pytest.fixture
def lead(records: Records, caller: Caller) -> str:
    return records.lead(caller.organization_id, {"name": SECRET})
