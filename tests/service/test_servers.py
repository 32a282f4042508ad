"""The servers that all other service tests use: real, restartable, and ended with their parent."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from redis.exceptions import ResponseError

from devstack.child import ServerFailed
from devstack.embedded_kafka import EmbeddedKafka
from devstack.programs import is_alive
from devstack.redis_server import RedisServer, RedisServerMissing
from devstack.topics import admin
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
HEADERS: list[tuple[str, str | bytes | None]] = [("ce_id", b"1"), ("ce_type", b"crm.lead.changed")]


def produce_and_read_back(bootstrap_servers: str, topic: str) -> list[tuple[object, ...]]:
    """Sends a record and a tombstone to partition 1 and reads the partition from its beginning."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    producer.produce(topic, key="k", value="v", headers=HEADERS, partition=1, timestamp=1_700_000_000_000)
    producer.produce(topic, key="k", value=None, partition=1, timestamp=1_700_000_000_001)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "readers", "log_level": 0})
    consumer.assign([TopicPartition(topic, 1, OFFSET_BEGINNING)])
    records = consumer.consume(2, timeout=PATIENCE_SECONDS)
    consumer.close()
    return [(r.offset(), r.key(), r.value(), r.headers(), r.timestamp()[1]) for r in records]


READ_BACK = [
    (0, b"k", b"v", HEADERS, 1_700_000_000_000),
    (1, b"k", None, None, 1_700_000_000_001),
]


def test_a_redis_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-option"):
        RedisServer.start(tmp_path, options=["--no-such-option", "1"])


def test_no_redis_program(tmp_path: Path) -> None:
    with pytest.raises(RedisServerMissing, match="nothing"):
        RedisServer.start(tmp_path, program=tmp_path / "nothing")


def test_cluster_mode_refuses_keys_of_several_slots(redis_cluster_server: RedisService) -> None:
    with redis_cluster_server.client() as client:
        assert client.mset({"lv3:{a}1": "1", "lv3:{a}2": "2"})
        with pytest.raises(ResponseError, match="same slot"):
            client.mset({"lv3:{a}": "1", "lv3:{b}": "2"})


def test_embedded_kafka(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path) as embedded:
        embedded.create_topic("leads", 3)
        with pytest.raises(ValueError, match="already exists"):
            embedded.create_topic("leads", 3)
        assert produce_and_read_back(embedded.bootstrap_servers, "leads") == READ_BACK
        cluster = admin(embedded.bootstrap_servers).list_topics(timeout=PATIENCE_SECONDS)
        assert [cluster.controller_id] == [*cluster.brokers], "kafkajs asks the controller for its producer id"


ORPHANAGE = """
import signal, sys, time
from pathlib import Path
from devstack.{module} import {server}
from tests.harness.waiting import PATIENCE_SECONDS
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell makes programs in its background ignore it.
server = {server}.start(Path(sys.argv[1]))
print(*getattr(server, "pids", None) or [server.pid], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("module", "server", "end"),
    [
        pytest.param("redis_server", "RedisServer", signal.SIGKILL, id="Redis and kill -9"),
        pytest.param("redis_server", "RedisServer", signal.SIGINT, id="Redis and Ctrl-C"),
        pytest.param("embedded_kafka", "EmbeddedKafka", signal.SIGKILL, id="embedded Kafka and kill -9"),
    ],
)
def test_servers_die_with_their_parent(tmp_path: Path, module: str, server: str, end: signal.Signals) -> None:
    program = ORPHANAGE.format(module=module, server=server)
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        assert all(is_alive(pid) for pid in pids)
        parent.send_signal(end)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the servers are gone")
