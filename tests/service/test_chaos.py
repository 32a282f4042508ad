"""Short chaos runs: each fault once. `make chaos` runs as long as one likes; the seed of a failure is in its report.

What `make chaos` has on top takes its time: topics recreated (`test_topic_history.py` has that one by itself), what
only compaction does (`test_breaks.py` and `test_comparison.py`), and one more broker killed.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from devstack.apache_kafka import ApacheKafka
from tests.chaos.nemesis import FAULTS
from tests.chaos.run import run
from tests.chaos.world import FAKETIME, World
from tests.harness.programs import installed
from tests.harness.services import Kafka

pytestmark = [pytest.mark.apache, pytest.mark.long]

SEED = int(os.environ.get("LEADVIEW_TEST_CHAOS_SEED", "1"))
ON_A_CLUSTER = ("rolled-back", "dropped-asleep", "command-suspended", "greedy-tenant")
SLOW = ("topic-recreated", "coordinator-killed", *ON_A_CLUSTER)
COMPACTED = ("deletes-missed", "partitions-raised", "published-late")
BREAKS = ("records-missed", "redis-evicted", "transaction-open", "other-cluster")
HOSTILE_BYTES = 15_000  # `make chaos` has larger ones
PACE = 0.15
# Other programs may keep the machine busy: `make chaos` is strict about the half second, and about the second.
REDIS_TIMEOUT = 8.0
ACCESS_SECONDS = 20.0
TOLD_SECONDS = 60.0


def test_no_promise_falls_when_everything_breaks_once(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    possible = [fault for fault in FAULTS.values() if fault.needs in ("", "groups", "address")]
    faults = [fault for fault in possible if fault.name not in (*SLOW, *COMPACTED, *BREAKS)]
    with World(kafka, topic_prefix, tmp_path, api_redis_timeout=REDIS_TIMEOUT) as world:
        report = run(world, SEED, 0, faults, pace=PACE, access_seconds=ACCESS_SECONDS, hostile_bytes=HOSTILE_BYTES)
    assert report.status == 0, str(report)


def test_nothing_wrong_is_served_unsaid(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    """What makes it impossible to know that what is served is right is named, and ends."""
    installed(FAKETIME, FAKETIME)
    faults = [FAULTS[name] for name in (*BREAKS, "clock-jumped")]
    with World(
        kafka, topic_prefix, tmp_path, clock=True, told_seconds=TOLD_SECONDS, api_redis_timeout=REDIS_TIMEOUT
    ) as world:
        report = run(world, SEED, 0, faults, pace=PACE, access_seconds=ACCESS_SECONDS)
    assert report.status == 0, str(report)


def test_no_promise_falls_when_each_shard_breaks(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    """Of a cluster of three primaries. Programs of two versions promote, roll back and drop generations meanwhile."""
    faults = [fault for fault in FAULTS.values() if fault.needs == "cluster" or fault.name in ON_A_CLUSTER]
    with World(kafka, topic_prefix, tmp_path, api_redis_timeout=REDIS_TIMEOUT, redis="cluster") as world:
        report = run(world, SEED, 0, faults, pace=PACE, access_seconds=ACCESS_SECONDS)
    assert report.status == 0, str(report)


def test_no_promise_falls_when_brokers_die(tmp_path: Path) -> None:
    """Of three, a leader is killed, and the coordinator of a group stands still; compaction is quick."""
    faults = [fault for fault in FAULTS.values() if fault.needs == "brokers" and fault.name not in SLOW]
    with ExitStack() as stack:
        brokers = stack.enter_context(ApacheKafka.start(tmp_path / "kafka", nodes=3))
        kafka = Kafka("apache", brokers.bootstrap_servers, brokers.create_topic)
        world = stack.enter_context(World(kafka, "crm.", tmp_path, brokers, api_redis_timeout=REDIS_TIMEOUT))
        report = run(world, SEED, 0, faults, pace=PACE, access_seconds=ACCESS_SECONDS)
    assert report.status == 0, str(report)
