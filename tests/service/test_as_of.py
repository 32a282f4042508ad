"""`Data-As-Of`: every change that Kafka held at this moment is in the response."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from projector.ledger.control import NO_ID
from projector.redis import scripts
from projector.redis.scripts import EndRow
from schemas import api_keys, names, resources
from tests.harness import control, crm
from tests.harness.api_server import LEADS, ApiServer, Response
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.services import Kafka, empty_redis
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.service.conftest import new_leadview

KEY = api_keys.mint(crm.ORGANIZATION)
SAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "read_as_of.py"
NEVER = datetime.min.replace(tzinfo=UTC)


def lead(number: int) -> Message:
    return crm.lead(number, referrer=f"version {number}")


@pytest.fixture(params=["redis_server", pytest.param("redis_shards", id="three shards")])
def leadview(request: pytest.FixtureRequest, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Leadview]:
    service = request.getfixturevalue(request.param)
    with new_leadview(kafka, topic_prefix, service, tmp_path) as leadview:
        leadview.settings["key_rate_limit"] = leadview.settings["organization_rate_limit"] = "1000000/1s"
        leadview.publish(crm.organization(), crm.api_key(hash=api_keys.key_hash(KEY)), lead(1))
        yield leadview
    empty_redis(service)


def get(api: ApiServer, **headers: str) -> Response:
    return api.get(LEADS + crm.LEAD, key=KEY, headers=headers)


def as_of(response: Response) -> datetime:
    text = response.headers.get("data-as-of")
    return datetime.fromisoformat(text) if text else NEVER


def version(response: Response) -> int:
    """Returns the version of the lead; 0 if there is none."""
    return int(response.json["referrer"].removeprefix("version ")) if response.status == 200 else 0


def publish_and_read(leadview: Leadview, api: ApiServer, change: Message) -> Iterator[Response]:
    """Yields what is read until a response says that it has the change."""
    leadview.publish(change)
    changed_at = datetime.now(UTC)
    while True:
        answer = get(api)
        yield answer
        if as_of(answer) >= changed_at:
            return


def test_a_tool_reads_its_own_write(leadview: Leadview) -> None:
    """Also that the record was deleted."""
    leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "it is served")
        *_, last = publish_and_read(leadview, api, lead(2))
        assert version(last) == 2
        *_, last = publish_and_read(leadview, api, lead(3))
        assert version(last) == 3
        unchanged = get(api, **{"If-None-Match": last.headers["etag"]})
        assert (unchanged.status, as_of(unchanged) >= as_of(last)) == (304, True)
        refused = api.get(LEADS + crm.LEAD, key=api_keys.mint(crm.ORGANIZATION))
        assert (refused.status, as_of(refused)) == (401, NEVER)
        leadview.publish(lead(4))
        assert b'"version 4"' in run_sample(api, datetime.now(UTC))
        *_, last = publish_and_read(leadview, api, crm.deleted(resources.LEAD, 5))
        assert last.status == 404
        assert run_sample(api, as_of(last)) == b"there is no such lead\n"


def run_sample(api: ApiServer, changed_at: datetime) -> bytes:
    """Returns what docs/examples/read_as_of.py prints."""
    environment = {"API": f"http://127.0.0.1:{api.port}", "API_KEY": KEY}
    command = [sys.executable, str(SAMPLE), str(crm.LEAD), changed_at.isoformat()]
    return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=PATIENCE_SECONDS).stdout


def test_nobody_has_looked(leadview: Leadview) -> None:
    """Without projectors it says nothing about what was published since, and then nothing at all."""
    projector = leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: as_of(get(api)) > NEVER, "it is known")
        projector.stop()
        leadview.publish(lead(2))
        changed_at = datetime.now(UTC)
        assert as_of(get(api)) < changed_at
        stored = [names.copy(names.AS_OF, tag.encode()) for tag in control.read_all(leadview.redis)]
        assert all(0 < leadview.redis.pttl(name) <= 20_000 for name in stored)
        for name in stored:
            leadview.redis.pexpire(name, 1)
        wait_until(lambda: as_of(get(api)) == NEVER, "what was stored has expired")
        leadview.start("run")
        wait_until(lambda: as_of(get(api)) >= changed_at, "it is known again")
        assert version(get(api)) == 2


async def test_what_is_stored(projection: Projection) -> None:
    """Only in a shard that is complete, and that has reached the ends of the same topics."""
    record = await control.complete(projection.store)
    [tag, *_] = record.copies

    async def store(moment: int, *ends: EndRow) -> int:
        of = {"copy": names.copy(names.CONTROL, tag), "as_of": names.copy(names.AS_OF, tag)}
        [(_, stored)] = await projection.store.run(
            [scripts.store_as_of(moment=moment, lasts=10_000, needed=ends, **of)]
        )
        return int(stored)

    await projection.store.ask_one(
        b"HSET", names.copy(names.CONTROL, tag), "crm.leads:0", b"7 1 1 0 %b" % NO_ID.encode()
    )
    reached = EndRow("crm.leads:0", 7, NO_ID)
    assert await store(100, EndRow("crm.leads:0", 8, NO_ID)) == 0, "a record is missing"
    assert await store(100, reached, EndRow("crm.leads:1", 1, NO_ID)) == 0, "nothing of a partition is applied"
    assert await store(100, EndRow("crm.leads:0", 7, "another")) == 0, "the topic was made again"
    assert await store(100, reached) == 100
    assert await store(90, reached) == 100, "it does not go back"
    assert await store(200, EndRow("crm.leads:0", 8, NO_ID)) == 100, "it stands still"
    await projection.store.ask_one(b"HSET", names.copy(names.CONTROL, tag), "filled", b"")
    assert await store(300, reached) == 0
    assert await projection.store.ask_one(b"GET", names.copy(names.AS_OF, tag)) is None
