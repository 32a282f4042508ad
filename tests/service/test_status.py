"""`status` is a verdict: its first line says what is not well, and its exit code says whether anything is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from schemas import names, resources
from tests.harness import crm
from tests.harness.commands import Finished
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache


@pytest.fixture
def leadview(leadview_with_own_redis: Leadview) -> Leadview:
    return leadview_with_own_redis


def first_line(done: Finished) -> str:
    return done.stdout.partition("\n")[0]


def as_json(leadview: Leadview, **settings: Any) -> Any:
    done = leadview.run("status", "--json", **settings)
    found = orjson.loads(done.stdout)
    assert done.status == (0 if found["well"] else 1)
    return found


def test_well_and_then_every_projector_dies(leadview: Leadview) -> None:
    leadview.topics.create(partitions=2)
    leadview.publish(crm.organization(), crm.contact(), crm.lead())
    assert "no projector is running" in first_line(leadview.wait_for_verdict("Redis is empty"))
    first, second = leadview.start("run"), leadview.start("run")
    leadview.wait_until_served()
    wait_until(lambda: as_json(leadview)["projectors"] == 2, "both are alive")
    done = leadview.run("status")
    assert (done.status, first_line(done)) == (0, "all is well"), done.output
    assert "access: running  documents: running" in done.stdout

    first.kill()
    wait_until(lambda: as_json(leadview)["projectors"] == 1, "one is dead")
    found = as_json(leadview)
    assert (found["well"], found["verdict"]) == (True, "all is well")
    assert [note.partition(" for")[0] for note in found["notes"]] == ["silent"]
    second.kill()
    done = leadview.wait_for_verdict("no projector is running: nothing is applied; look whether")
    leadview.publish(crm.lead(2))
    found = as_json(leadview)
    assert (found["projectors"], found["lag"]) == (0, 1)
    assert found["freshness"] > 60, "by the time that the producer gave its record"
    assert "stale" not in found["verdict"], "the record waits because no projector is running"
    assert done.status == 1


def test_a_projector_with_other_settings(leadview: Leadview) -> None:
    """It reads topics that do not exist, or everything a second time, while another one does its work."""
    leadview.topics.create(partitions=1)
    leadview.publish(crm.organization(), crm.lead())
    leadview.start("run")
    leadview.wait_until_served()
    wait_until(lambda: as_json(leadview)["well"], "all is well")
    other = leadview.start("run", topic_prefix="crn.")
    leadview.wait_for_verdict("LEADVIEW_TOPIC_PREFIX is crn. in ", f"and {leadview.prefix} in others")
    other.stop()
    wait_until(lambda: as_json(leadview)["well"], "all is well again")
    other = leadview.start("run", group_id="another")
    leadview.wait_for_verdict("LEADVIEW_GROUP_ID is ", "another")


@contextmanager
def silent(port: int) -> Iterator[FaultyProxy]:
    """A server that accepts connections, and does not answer."""
    with faulty_proxy(port) as proxy:
        proxy.faults = Faults(stalled=True)
        yield proxy


def test_one_server_is_away_and_the_other_is_shown(leadview: Leadview, own_redis: RedisServer) -> None:
    """The silent server never answers: what is said is said without it, and does not wait for any client's timeout."""
    leadview.topics.create(partitions=1)
    projector = leadview.start("run")
    leadview.publish(crm.organization(), crm.contact(), crm.lead())
    leadview.wait_until_served()
    wait_until(lambda: as_json(leadview)["well"], "all is well")
    projector.stop()
    for name in leadview.redis.scan_iter(names.AS_OF):
        leadview.redis.delete(name)
    found = as_json(leadview)
    assert (found["lag"], found["data_as_of"], found["freshness"]) == (0, None, None), "no projector says what it knows"

    with silent(int(leadview.kafka.bootstrap_servers.rpartition(":")[2])) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        done = leadview.run("status", kafka_bootstrap_servers=address)
        assert "Kafka cannot be read" in first_line(done)
        assert "no projector is running" in first_line(done)
        assert "Kafka does not answer within 1.2 s" in done
        found = as_json(leadview, kafka_bootstrap_servers=address)
        assert (found["generation"], found["dead_letters"], found["lag"], found["freshness"]) == (1, 0, None, None)
        positions = {at["topic"]: (at["position"], at["head"]) for at in found["partitions"]}
        assert positions[leadview.topics.name(resources.LEAD)] == (1, None)
        assert positions[leadview.topics.name(resources.CONTACT)] == (1, None)
    with silent(own_redis.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        done = leadview.run("status", redis_url=url)
        assert done.status == 1
        assert first_line(done).startswith("not well: Redis cannot be read: Redis does not answer within 1.2 s")
        found = as_json(leadview, redis_url=url)
        assert (found["generation"], found["projectors"], found["lag"], found["writers"]) == (None, None, None, [])
        heads = {at["topic"]: at["head"] for at in found["partitions"]}
        assert heads[leadview.topics.name(resources.LEAD)] == 1


def test_it_stays_on_the_screen(leadview: Leadview) -> None:
    leadview.topics.create(partitions=1)
    watching = leadview.start("status", "--watch", "--json")
    wait_until(lambda: watching.log.read_text().count('"no projector is running') > 0, "it says what is not well")
    leadview.start("run")
    leadview.publish(crm.organization())
    wait_until(lambda: '"verdict":"all is well"' in watching.log.read_text(), "it notices that all is well")
    assert all(orjson.loads(line) for line in watching.log.read_text().splitlines()[:-1])


@pytest.mark.parametrize("words", [("--wrong",), ("now",)])
def test_called_wrongly(leadview: Leadview, words: tuple[str, ...]) -> None:
    assert leadview.run("status", *words).status == 2


def test_a_shard_that_is_away_is_named(leadview_on_cluster: Leadview, three_primaries: RedisCluster) -> None:
    away = three_primaries.primaries[1]
    away.pause()
    try:
        leadview_on_cluster.wait_for_verdict("1 of its 3 shards do not answer", f"127.0.0.1:{away.port}")
    finally:
        away.resume()
