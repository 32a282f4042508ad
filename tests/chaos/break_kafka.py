"""Faults of Kafka. Each begins on entry and ends on exit."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from random import Random

from schemas import names, resources
from tests.chaos import brokers
from tests.chaos.history import now
from tests.chaos.world import World

_MOST_PARTITIONS = 6


@contextmanager
def partitions_raised(world: World, random: Random) -> Iterator[None]:
    kind = random.choice(resources.KINDS)
    if world.partitions[kind] < _MOST_PARTITIONS:
        with world.publishing:
            world.partitions[kind] += 1
            world.leadview.topics.add_partitions(kind, world.partitions[kind])
    yield


@contextmanager
def topic_recreated(world: World, random: Random) -> Iterator[None]:
    """Offsets begin at 0 again. The core product publishes everything once more, and the operator rebuilds."""
    kind = random.choice(resources.KINDS)
    with world.operating:
        world.drop_all()
        with world.publishing:
            world.catch_up()
            began_at = now()
            world.recreate_topic(kind)
            if kind is resources.LEAD:  # dead letters with offsets of the former topic
                world.client.delete(names.DEAD_LETTERS)
                world.leadview.topics.bad_keys.clear()
            world.wait_until(lambda: world.leadview.caught_up(kind), "it is read from the beginning")
            world.accept_bad_records()
        for words in (["rebuild"], ["promote", "--force"], ["drop"]):
            done = world.command(*words)
            assert done.status == 0, f"{words}: {done.stdout}{done.stderr}"
        world.lost(began_at, -inf)
    yield


@contextmanager
def leader_killed(world: World, random: Random) -> Iterator[None]:
    topic = world.leadview.topics.name(random.choice(resources.KINDS))
    with _broker_killed(world, brokers.leader(world.leadview.kafka.bootstrap_servers, topic)):
        yield


@contextmanager
def coordinator_killed(world: World, random: Random) -> Iterator[None]:
    group = world.leadview.group + random.choice(["", ".access"])
    with _broker_killed(world, brokers.coordinator(world.leadview.kafka.bootstrap_servers, group)):
        yield


@contextmanager
def _broker_killed(world: World, node: int) -> Iterator[None]:
    world.brokers.kill(node - 1)
    yield
    world.brokers.restart(node - 1)
    brokers.elect_preferred_leaders(world.leadview.kafka.bootstrap_servers)


@contextmanager
def coordinator_paused(world: World, random: Random) -> Iterator[None]:
    group = world.leadview.group + random.choice(["", ".access"])
    node = brokers.coordinator(world.leadview.kafka.bootstrap_servers, group) - 1
    world.brokers.pause(node)
    yield
    world.brokers.resume(node)
