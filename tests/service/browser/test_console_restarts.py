"""The console, Redis and Kafka are restarted or do not answer while a page is open: it says exactly what
`status --json` says, and connects again by itself.

`make browser` runs this.
"""

from pathlib import Path

import pytest

from devstack.apache_kafka import ApacheKafka
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.ports import free_port
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from tests.harness import crm
from tests.harness.chromium import Page
from tests.harness.console import running_console, says_the_same
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka

pytestmark = [pytest.mark.browser, pytest.mark.apache]


def test_every_server_is_restarted(page: Page, tmp_path: Path) -> None:
    with (
        RedisServer.start(tmp_path / "redis", appendonly=True) as redis,
        ApacheKafka.start(tmp_path / "kafka") as broker,
        Leadview(Kafka("apache", broker.bootstrap_servers, broker.create_topic), "crm.", redis, tmp_path) as leadview,
    ):
        leadview.topics.create(partitions=1)
        leadview.start("run")
        leadview.publish(crm.organization(), crm.contact(), crm.lead())
        leadview.wait_until_served()
        port = free_port()
        with running_console(leadview, port=port) as (_, console):
            page.open(console.url)
            says_the_same(page, leadview, "all is well")
        page.wait_for("#connection", "✕", "what is below is")
        with running_console(leadview, port=port):
            page.wait_for("#connection", "live")
            says_the_same(page, leadview, "all is well")
            redis.stop()
            says_the_same(page, leadview, "Redis cannot be read")
            page.wait_for("#stage-redis", "cannot be read")
            redis.restart()
            says_the_same(page, leadview, "all is well")
            broker.kill(0)
            says_the_same(page, leadview, "Kafka cannot be read")
            page.wait_for("#stage-kafka", "cannot be read")
            broker.restart(0)
            says_the_same(page, leadview, "all is well")
        assert page.do("document.querySelectorAll('#lines .plot').length") > 0


def test_servers_that_do_not_answer(page: Page, leadview: Leadview, own_redis: RedisServer) -> None:
    leadview.topics.create(partitions=1)
    leadview.start("run")
    leadview.publish(crm.organization())
    leadview.wait_until_served()
    with (
        faulty_proxy(int(leadview.kafka.bootstrap_servers.rpartition(":")[2])) as kafka,
        running_console(leadview, kafka_bootstrap_servers=f"127.0.0.1:{kafka.port}") as (_, console),
    ):
        page.open(console.url)
        page.wait_for("#verdict-text", "all is well")
        kafka.faults = Faults(stalled=True)
        page.wait_for("#verdict-text", "Kafka cannot be read")
        page.wait_for("#stage-kafka", "cannot be read")
        kafka.faults = Faults()
        page.wait_for("#verdict-text", "all is well")
        own_redis.pause()
        page.wait_for("#verdict-text", "Redis cannot be read")
        own_redis.resume()
        page.wait_for("#verdict-text", "all is well")


def test_a_shard_is_away(page: Page, leadview_on_cluster: Leadview, three_primaries: RedisCluster) -> None:
    leadview = leadview_on_cluster
    leadview.start("run")
    leadview.publish(crm.organization(), crm.lead())
    leadview.wait_until_served()
    away = three_primaries.primaries[1]
    with running_console(leadview) as (_, console):
        page.open(console.url)
        says_the_same(page, leadview, "all is well")
        away.pause()
        try:
            page.wait_for(
                "#verdict-text", "Redis cannot be read", f"1 of its 3 shards do not answer: 127.0.0.1:{away.port}"
            )
        finally:
            away.resume()
        says_the_same(page, leadview, "all is well")
