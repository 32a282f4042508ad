"""A rebuild beside the live generation: under writes, through crashes, in several processes, on a cluster."""

import os
import signal
import time
from functools import partial
from random import Random

import msgspec
import pytest
from confluent_kafka import TopicPartition
from redis import RedisCluster

from devstack.child import Child
from devstack.fault_proxy import Faults, FaultyProxy
from projector import mapping
from projector.reference import Entity
from schemas import names, resources
from tests.chaos.core import first, writer_to
from tests.harness import crm, stored
from tests.harness.generations import any_tag, generation, numbers, pattern
from tests.harness.histories import now_ms
from tests.harness.leadview import Leadview
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache


def slow_api(leadview: Leadview, microseconds: int = 1_000_000) -> None:
    """Store the report of an API worker that waits this long for Redis: every rebuild yields to it from now on."""
    leadview.redis.hset(names.LATENCY, "test", f"{microseconds} {now_ms() + 3_600_000}")


def assert_equal_and_right(leadview: Leadview, *generations: int, after_crash: bool = False) -> None:
    """All generations hold exactly the bytes that follow from the topics. `after_crash`: as `assert_consistent`."""
    expected = leadview.expected()
    for number in generations:
        assert leadview.documents(number) == expected
        stored.assert_consistent(leadview.redis, number, after_crash=after_crash)
    live = {entity: value for entity, value in _values(leadview, generations[0]).items() if value[:1] == b"L"}
    for number in generations[1:]:
        values = _values(leadview, number)
        assert {entity: values.get(entity) for entity in live} == live


def _values(leadview: Leadview, generation: int) -> dict[Entity, bytes]:
    """Values without the first lead of a contact: which of its leads comes first depends on the order of writing."""
    found = stored.values(leadview.redis, generation)
    return {
        entity: value[:37] + value[65:] if entity[0] is resources.CONTACT else value for entity, value in found.items()
    }


def target(leadview: Leadview, generation: int = 2) -> int:
    """How many records the replay of a rebuild has to apply, over all partitions."""
    return sum(target for _, target in _replay(leadview, generation))


def progress(leadview: Leadview, generation: int = 2) -> int:
    """How many of them it has applied."""
    return sum(min(position, target) for position, target in _replay(leadview, generation))


def _replay(leadview: Leadview, generation: int) -> list[tuple[int, int]]:
    """Position and target of each partition."""
    ledger = {
        name.decode(): value
        for name, value in leadview.redis.hgetall(names.rebuild(leadview.generation(generation))).items()
    }
    return [
        (int(ledger.get(field.removeprefix("target:"), b"0").split()[0]), int(value))
        for field, value in ledger.items()
        if field.startswith("target:")
    ]


def _is_begun(rebuild: Child) -> bool:
    rebuild.check_running()
    return "records to replay" in rebuild.log.read_text()


def test_rebuild_killed_repeatedly_resumes_where_it_stopped(leadview: Leadview, proxy: FaultyProxy) -> None:
    """Each rebuild resumes where the last one stopped; in the end both generations follow exactly from the topics.

    A proxy never lets the write of the last lead reach Redis: however fast the machine is, none that is killed is done.
    """
    seed = time.time_ns()
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    random = Random(seed)
    writer = writer_to(leadview, 100, leads=1000, contacts=320)
    projector = leadview.serve()
    writer.start()
    slow_api(leadview)
    reached = 0
    last = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), generation(2), writer.core.leads[-1])
    proxy.faults = Faults(held=any_tag(last))
    for _ in range(3):
        rebuild = leadview.start("rebuild", batch_records=100, redis_url=proxy.url)
        # One partition of the leads, and that of the held one, may be read before the others.
        goal = min(reached + random.randrange(1, 280), 600)
        wait_until(partial(lambda goal: progress(leadview) > goal, goal), f"{goal} records are replayed")
        wait_until(partial(_is_begun, rebuild), "it has said how much is left")
        rebuild.kill()
        proxy.reset_all()  # what it has sent and the proxy still has would count as replayed later
        if reached:
            left = target(leadview) - reached
            assert f"records to replay   {left:,};" in rebuild.log.read_text(), "it resumes where it stopped"
        reached = progress(leadview)
        assert reached < target(leadview)
    projector.kill()
    leadview.redis.delete(names.LATENCY)

    both = [leadview.start("rebuild", "--max-latency", "0") for _ in range(2)]
    wait_until(lambda: "resumes" in both[0].log.read_text(), "the rebuild resumes")
    both[0].kill()
    leadview.start("run")
    assert both[1].wait(2 * PATIENCE_SECONDS) == 0, both[1].log.read_text()
    writer.stop()
    leadview.wait_until_current()
    assert_equal_and_right(leadview, 1, 2, after_crash=True)


def test_redis_loses_contacts_while_leads_are_replayed(leadview: Leadview, proxy: FaultyProxy) -> None:
    """A topic that was replayed already is replayed again. A proxy holds all leads back until the contacts are lost."""
    leadview.publish_all(first(leads=60, contacts=30))
    leadview.serve()
    prefix = f"{leadview.prefix}{resources.CONTACT.topic}:"
    owner = names.organization(crm.ORGANIZATION)
    proxy.faults = Faults(held=any_tag(names.in_generations(resources.LEAD, [(owner, b"")], [generation(2)])[0]))
    rebuild = leadview.start("rebuild", "--max-latency", "0", redis_url=proxy.url)
    wait_until(lambda: proxy.holding > 0, "the leads are being replayed")
    ledger = names.rebuild(leadview.generation(2))
    positions = [field for field in leadview.redis.hkeys(ledger) if field.startswith(prefix.encode())]
    assert leadview.redis.hdel(ledger, *positions) > 0
    matches = map(names.IN_GENERATION.fullmatch, leadview.redis.scan_iter(pattern(2)))
    lost = [match[0] for match in matches if match and match[3] == resources.CONTACT.letter]
    assert leadview.redis.delete(*lost) == len(lost) > 0
    proxy.faults = Faults()
    assert rebuild.wait(2 * PATIENCE_SECONDS) == 0, rebuild.log.read_text()
    assert_equal_and_right(leadview, 1, 2)


def used_memory(leadview: Leadview) -> int:
    primaries = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(leadview.redis, RedisCluster) else {}
    found = leadview.redis.info("memory", **primaries)
    return sum(int(memory["used_memory"]) for memory in (found.values() if primaries else [found]))


def test_rebuild_on_a_cluster_is_verified_promoted_and_dropped(leadview_on_cluster: Leadview) -> None:
    """Rebuild, verify, promote and drop with two organizations in different slots; the memory is free afterwards."""
    leadview = leadview_on_cluster
    leadview.publish_all(first(leads=1200, contacts=400))
    leadview.publish_all(first(crm.OTHER_ORGANIZATION, leads=300, contacts=100))
    leadview.serve()
    before = used_memory(leadview)

    said = ("2,000 of 2,000", "1,500 leads, 500 contacts", "no difference", "generation 2 is served instead of 1")
    leadview.run("rebuild", "--promote", "--max-latency", "0").ends(0, *said)
    assert_equal_and_right(leadview, 2, 1)
    full = used_memory(leadview)
    assert full > before + 500_000
    keys = len(list(leadview.redis.scan_iter(match=pattern(1))))

    leadview.run("drop").ends(0, f"generation 1 dropped: {keys:,} keys")
    wait_until(lambda: used_memory(leadview) < before + 0.1 * (full - before), "the memory is back")
    assert list(leadview.redis.scan_iter(match=pattern(1))) == []
    assert_equal_and_right(leadview, 2)


def test_rebuild_interrupted_and_discarded_may_start_again(leadview: Leadview) -> None:
    leadview.publish_all(first(leads=2000, contacts=600))
    leadview.serve()
    slow_api(leadview)
    rebuild = leadview.start("rebuild", batch_records=100)
    wait_until(lambda: progress(leadview) > 0, "something is replayed")
    os.kill(rebuild.pid, signal.SIGINT)
    assert rebuild.wait(PATIENCE_SECONDS) == 130
    assert "interrupted: run `rebuild` again to resume it, or `drop 2`" in rebuild.log.read_text()
    assert "pausing " in rebuild.log.read_text(), "it yielded to the API"
    leadview.run("promote").ends(1, "Generation 2 is not complete")

    reached = progress(leadview)
    rebuild = leadview.start("rebuild", batch_records=100)
    wait_until(lambda: progress(leadview) > reached, "it resumes")
    leadview.run("drop").ends(0)
    assert rebuild.wait(PATIENCE_SECONDS) == 1
    assert "Generation 2 is gone" in rebuild.log.read_text()
    assert list(leadview.redis.scan_iter(match=pattern(2))) == []
    assert list(leadview.redis.scan_iter(names.rebuild(generation(2)).replace(b"Test00", b"*"))) == []

    leadview.run("rebuild", "--max-latency", "0").ends(0)
    assert numbers(leadview.state().known) == [1, 3], "no number is used twice"
    assert_equal_and_right(leadview, 1, 3)


def test_rebuild_with_problems_does_not_start(leadview: Leadview) -> None:
    """Problems are reported before anything is started."""
    today = now_ms() / 1000 - crm.at_ms(0) / 1000  # of a topic that deletes old records, Kafka deletes none of these
    leadview.publish_all(msgspec.structs.replace(message, seconds=today) for message in first(leads=300, contacts=100))
    leadview.serve()
    topics, leads = leadview.topics, leadview.topics.name(resources.LEAD)
    unknown = "records to replay   400; the replay measures its rate"  # nobody knows yet how long it takes
    leadview.run("rebuild", "--check").ends(0, f"begins, mapping version {mapping.VERSION}", unknown)

    topics.alter("topic", leads, {"cleanup.policy": "compact,delete", "retention.ms": "604800000"})
    topics.delete_records([TopicPartition(leads, 0, 5)])
    try:
        leadview.redis.config_set("maxmemory", used_memory(leadview) + 100_000)
        done = leadview.run("rebuild", "--max-latency", "0")
    finally:
        leadview.redis.config_set("maxmemory", 0)
    done.ends(
        1,
        f"topic {leads} (cleanup.policy=compact,delete, retention.ms=604800000",
        f"{leads}:0 begins at offset 5: earlier records are gone",
        "two generations do not fit",
        "free of Redis's maxmemory",
    )
    assert numbers(leadview.state().known) == [1]
    assert leadview.run("rebuild", "--force", "--max-latency", "0").status == 0
