"""Brokers that get other addresses, and addresses of the settings that are away: what runs continues.

`LEADVIEW_KAFKA_BOOTSTRAP_SERVERS` leads to the brokers at the start, and again if no broker that is known answers.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from devstack.apache_kafka import ApacheKafka
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.ports import LOOPBACK
from devstack.redis_server import RedisServer
from schemas import resources
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache

_KEPT = 50


@contextmanager
def silent(port: int) -> Iterator[None]:
    """Accept connections at this port and never answer, until the block ends: as an address that leads nowhere."""
    with socket.create_server((LOOPBACK, port), backlog=_KEPT):
        yield


@contextmanager
def of_another_cluster(port: int, directory: Path) -> Iterator[None]:
    """Let a broker of another cluster have this port until the block ends, with empty topics of the same names."""
    with ApacheKafka.start(directory, ports=[port]) as broker:
        Topics(Kafka("apache", broker.bootstrap_servers, broker.create_topic), "crm.").create(partitions=1)
        yield


def is_well(leadview: Leadview) -> bool:
    return leadview.ask("status").status == 0


@pytest.mark.parametrize("left_behind", ["nothing", "silence", "another cluster"])
def test_brokers_that_have_all_moved_are_found_again(tmp_path: Path, left_behind: str) -> None:
    """What runs looks them up where the settings lead. A revoked key stops working, and nothing was restarted."""
    with ExitStack() as stack:
        broker = stack.enter_context(ApacheKafka.start(tmp_path / "kafka"))
        redis = stack.enter_context(RedisServer.start(tmp_path / "redis"))
        former = broker.ports[0]
        front = stack.enter_context(faulty_proxy(former))
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        leadview = stack.enter_context(Leadview(kafka, "crm.", redis, tmp_path))
        leadview.settings = {"kafka_bootstrap_servers": f"{LOOPBACK}:{front.port}"}
        leadview.topics.create(partitions=1)
        projector = leadview.serve(crm.organization(), crm.api_key(), crm.contact(), crm.lead(1))
        front.faults = Faults(refusing=True)  # until all is as it should be: where it leads is what the settings say
        broker.move(0)
        if left_behind == "silence":
            stack.enter_context(silent(former))
        elif left_behind == "another cluster":
            stack.enter_context(of_another_cluster(former, tmp_path / "other"))
        front.switch(broker.ports[0])
        front.faults = Faults()
        moved = Topics(Kafka("apache", broker.bootstrap_servers, broker.create_topic), leadview.prefix)
        moved.publish([crm.lead(2, stage="ACCEPTED"), crm.api_key(2, status="revoked")])
        wait_until(lambda: leadview.has_applied(moved.end_offsets), "what was published is applied", 120)
        projector.check_running()
        wait_until(lambda: is_well(leadview), "all is well again")


@pytest.mark.long
def test_the_only_address_of_the_settings_may_be_away(tmp_path: Path) -> None:
    """The other brokers are known by then. They get other addresses as well, one after the other."""
    with ExitStack() as stack:
        broker = stack.enter_context(ApacheKafka.start(tmp_path / "kafka", nodes=3))
        redis = stack.enter_context(RedisServer.start(tmp_path / "redis"))
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        leadview = stack.enter_context(Leadview(kafka, "crm.", redis, tmp_path))
        only = broker.bootstrap_servers.split(",")[0]
        leadview.topics.create(partitions=3)
        projector = leadview.serve(crm.organization(), crm.api_key(), kafka_bootstrap_servers=only)
        assert "has 3 brokers" in leadview.run("doctor", kafka_bootstrap_servers=only).output
        assert "has 3 brokers" not in leadview.run("doctor").output

        def happens(change: Callable[[], None], number: int) -> None:
            change()
            changed = Topics(Kafka("apache", broker.bootstrap_servers, broker.create_topic), leadview.prefix)
            changed.publish(crm.lead(id=crm.uuid(10 * number + lead)) for lead in range(10))
            wait_until(lambda: leadview.has_applied(changed.end_offsets), f"all is applied after change {number}", 120)
            projector.check_running()

        happens(partial(broker.kill, 0), 1)
        broker.restart(0)
        for index in (1, 2, 0):
            happens(partial(broker.move, index), 2 + index)
        documents = [name for name in leadview.documents() if name[0] is resources.LEAD]
        assert len(documents) == 40
