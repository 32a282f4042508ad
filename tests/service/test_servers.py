"""The servers that all other service tests use: real, restartable, and ended with their parent."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from redis.exceptions import ResponseError

from devstack.apache_kafka import ApacheKafka
from devstack.child import ServerFailed
from devstack.embedded_kafka import EmbeddedKafka
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer, RedisServerMissing
from devstack.topics import admin
from schemas import names
from tests.harness.processes import is_alive
from tests.harness.services import Kafka, RedisService
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


@pytest.mark.parametrize(
    ("appendonly", "kept"),
    [
        pytest.param(True, "1", id="with an append-only log its data outlives a crash"),
        pytest.param(False, None, id="without one the data is gone"),
    ],
)
def test_redis_is_killed_and_restarts(tmp_path: Path, appendonly: bool, kept: str | None) -> None:
    with RedisServer.start(tmp_path, appendonly=appendonly) as server, server.client() as client:
        client.set("key", "1")
        server.kill()
        assert not server.running
        server.restart()
        assert client.get("key") == kept


def test_a_paused_redis_answers_after_it_resumes(tmp_path: Path) -> None:
    with RedisServer.start(tmp_path) as server, server.client() as client:
        client.set("key", "1")
        server.pause()
        assert server.running
        server.resume()
        assert client.get("key") == "1"


def test_a_paused_redis_can_be_stopped(tmp_path: Path) -> None:
    server = RedisServer.start(tmp_path)
    server.pause()
    server.stop()
    assert not server.running


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


def test_three_primaries_share_the_slots(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        nodes = cluster.primaries
        with nodes[0].client() as client:
            slots = sorted(client.execute_command("CLUSTER SLOTS"))
    assert [(first, last) for first, last, *_ in slots] == [(0, 5461), (5462, 10923), (10924, 16383)]
    assert {owner[1] for _, _, owner, *_ in slots} == {node.port for node in nodes}


def test_a_lost_shard_is_replaced(tmp_path: Path) -> None:
    """Its slots are given away, empty; then new, empty servers take its place, and get the slots with what is there."""
    slot = names.tag_slot(b"a")
    with RedisCluster(tmp_path, replicas=True) as cluster:
        lost, heir = cluster.owner(slot), cluster.owner(names.tag_slot(b"b"))
        with lost.client() as client:
            client.set("lv:{a}1", "lost")
        cluster.lose(cluster.primaries.index(lost), heir)
        assert cluster.owner(slot) is heir
        with heir.client() as client:
            assert client.get("lv:{a}1") is None
            client.set("lv:{a}1", "new")
        cluster.replace(cluster.primaries.index(lost))
        assert cluster.owner(slot) is lost
        with lost.client() as client:
            assert client.get("lv:{a}1") == "new"
            assert client.execute_command("CLUSTER INFO")["cluster_size"] == "3"


def test_a_server_that_changes_its_role_is_not_in_step(tmp_path: Path) -> None:
    """Redis then closes its connections instead of replying. The same holds for what is asked of a Sentinel."""
    with (
        RedisServer.start(tmp_path / "server") as server,
        RedisSentinel(tmp_path / "sentinel") as sentinel,
        _closing_port() as port,
    ):
        server.port = sentinel.port = port
        assert not server.is_in_step()
        with pytest.raises(TimeoutError, match="the replica is promoted"):
            sentinel.fail_over(timeout=0.1)


@contextmanager
def _closing_port() -> Iterator[int]:
    """Accepts every connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=close_all)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_every_test_finds_an_empty_redis(redis_server: RedisService) -> None:
    with redis_server.client() as client:
        assert client.dbsize() == 0
        client.set("lv3:key", "1")


def test_records_headers_and_tombstones(kafka: Kafka, topic_prefix: str) -> None:
    kafka.create_topic(f"{topic_prefix}leads", 3)
    assert produce_and_read_back(kafka.bootstrap_servers, f"{topic_prefix}leads") == READ_BACK


def test_embedded_kafka(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path) as embedded:
        embedded.create_topic("leads", 3)
        with pytest.raises(ValueError, match="already exists"):
            embedded.create_topic("leads", 3)
        assert produce_and_read_back(embedded.bootstrap_servers, "leads") == READ_BACK
        cluster = admin(embedded.bootstrap_servers).list_topics(timeout=PATIENCE_SECONDS)
        assert [cluster.controller_id] == [*cluster.brokers], "kafkajs asks the controller for its producer id"


def test_apache_kafka_keeps_records_over_a_crash(apache_jars: Path, tmp_path: Path) -> None:
    with ApacheKafka.start(tmp_path) as cluster:
        cluster.create_topic("leads", 3)
        assert produce_and_read_back(cluster.bootstrap_servers, "leads") == READ_BACK
        cluster.kill(0)
        cluster.restart(0)
        assert produce_and_read_back(cluster.bootstrap_servers, "leads") == READ_BACK


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
        pytest.param("apache_kafka", "ApacheKafka", signal.SIGKILL, id="Apache Kafka and kill -9"),
    ],
)
def test_servers_die_with_their_parent(
    request: pytest.FixtureRequest, tmp_path: Path, module: str, server: str, end: signal.Signals
) -> None:
    if server == "ApacheKafka":
        request.getfixturevalue("apache_jars")
    program = ORPHANAGE.format(module=module, server=server)
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        assert all(is_alive(pid) for pid in pids)
        parent.send_signal(end)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the servers are gone")
