"""A master that a Sentinel watches fails, and the promoted replica lacks the writes that were acknowledged last."""

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from devstack.fault_proxy import faulty_proxy
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from projector.errors import Unavailable
from projector.ledger.control import NOTHING_STORED, Advance, Covered, Position
from projector.record import Partition
from projector.redis.store import Store
from schemas.settings import ApiSettings, ProjectorSettings
from tests.chaos.core import traffic
from tests.harness import crm
from tests.harness.api_server import LEADS, UNLIMITED, running_api, running_api_process
from tests.harness.leadview import Leadview
from tests.harness.projection import Opened
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_until

AT = Partition("crm.leads", 0)


@pytest.mark.apache
async def test_a_failover_that_loses_acknowledged_writes(
    kafka: Kafka, topic_prefix: str, sentinel: RedisSentinel, tmp_path: Path
) -> None:
    """The projector notices lower positions and reads again; the API says truly what its responses contain."""
    with Leadview(kafka, topic_prefix, sentinel, tmp_path) as leadview:
        leadview.topics.create()
        leadview.publish(crm.organization(1), crm.api_key(1), crm.contact(1), crm.lead(1))
        changes = traffic()
        leadview.publish_all(islice(changes, 300))
        leadview.start("run", batch_records=200)
        await leadview.settled()
        await eventually(leadview.is_served, "it is served")
        with running_api(ApiSettings(redis_url=sentinel.url, **UNLIMITED)) as api, sentinel.losing():
            leadview.publish(crm.lead(2, stage="STALE"))
            changed_at = datetime.now(UTC)
            leadview.publish_all(islice(changes, 300))
            await leadview.settled()  # acknowledged, and covered
            told: list[tuple[str, bool]] = []
            """The stage of each response, and whether the response says that it has the change."""

            def is_served() -> bool:
                answer = api.get(LEADS + crm.LEAD, key=crm.KEY)
                if answer.status == 200:
                    as_of = answer.headers.get("data-as-of", "0001-01-01T00:00:00Z")
                    told.append((answer.json["stage"], datetime.fromisoformat(as_of) >= changed_at))
                return answer.status == 200

            await eventually(lambda: is_served() and told[-1] == ("STALE", True), "the change is served")
            sentinel.fail_over()
            await eventually(lambda: is_served() and told[-1] == ("STALE", True), "the change is served again")
            assert not any(in_it and stage != "STALE" for stage, in_it in told)
            await leadview.settled()


async def test_a_batch_is_not_covered_if_redis_has_restarted_meanwhile(durable_redis: RedisServer) -> None:
    """Redis may still have the position before the batch, and lack writes that it acknowledged since."""
    store = Store(ProjectorSettings(redis_url=durable_redis.url))
    opened = await Opened.open(store)
    assert await opened.cover({AT: Advance(NOTHING_STORED, Position(5, 1, 1))}) == Covered()
    durable_redis.restart()
    with pytest.raises(Unavailable):  # the connection may have to break first
        await opened.cover({AT: Advance(5, Position(9, 1, 1))})
    with pytest.raises(Unavailable, match="restarted or failed over"):
        await opened.cover({AT: Advance(5, Position(9, 1, 1))})
    again = await Opened.open(store)
    assert await again.positions(AT) == {AT: 5}
    assert await again.cover({AT: Advance(5, Position(9, 1, 1))}) == Covered()
    await store.close()


def test_the_api_finds_the_master_after_a_sentinel_reset_its_connection(
    sentinel: RedisSentinel, tmp_path: Path
) -> None:
    """uvloop, which the API uses, has an error of its own if redis-py writes to such a connection."""
    with faulty_proxy(sentinel.port) as proxy:
        url = sentinel.url.replace(str(sentinel.port), str(proxy.port))
        patient = {"redis_url": url, "api_redis_timeout": PATIENCE_SECONDS}
        with running_api_process(tmp_path / "log", **patient) as (_, served):
            proxy.reset_all()
            assert served.is_ready(), "its event loop has seen the reset"
            with sentinel.master.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            wait_until(served.is_ready, "it is connected to the master again")
    assert "the connection to a Sentinel was reset" in (tmp_path / "log").read_text()
