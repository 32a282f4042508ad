"""Breaks Kafka. Each breaks on entry and mends on exit."""

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
        world.add_partition(kind)
    yield


@contextmanager
def topic_made_again(world: World, random: Random) -> Iterator[None]:
    """Offsets start over. The core product publishes all of it once more, and the operator rebuilds."""
    kind = random.choice(resources.KINDS)
    with world.operating:
        _drop_all(world)
        with world.publishing:
            world.catch_up()
            began_at = now()
            world.make_topic_again(kind)
            if kind is resources.LEAD:  # letters that speak of offsets of the former one
                world.client.delete(names.DEAD_LETTERS)
                world.bad_keys.clear()
            ends = {place: end for place, end in world.flow.ends.items() if place[0] == world.flow.topic(kind)}
            world.wait_until(lambda: ends.items() <= world.flow.positions().items(), "it is read from the beginning")
        for words in (["rebuild"], ["promote", "--force"], ["drop"]):
            done = world.command(*words)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        world.lost(began_at, -inf)
    yield


def _drop_all(world: World) -> None:
    """Every generation but the live one."""
    while world.command("drop").returncode == 0:
        pass


@contextmanager
def leader_killed(world: World, random: Random) -> Iterator[None]:
    topic = world.flow.topic(random.choice(resources.KINDS))
    with _broker_killed(world, brokers.leader(world.flow.kafka.bootstrap_servers, topic)):
        yield


@contextmanager
def coordinator_killed(world: World, random: Random) -> Iterator[None]:
    group = world.flow.group + random.choice(["", ".access"])
    with _broker_killed(world, brokers.coordinator(world.flow.kafka.bootstrap_servers, group)):
        yield


@contextmanager
def _broker_killed(world: World, node: int) -> Iterator[None]:
    assert world.brokers is not None
    world.brokers.kill(node - 1)
    yield
    world.brokers.restart(node - 1)


@contextmanager
def coordinator_paused(world: World, random: Random) -> Iterator[None]:
    assert world.brokers is not None
    group = world.flow.group + random.choice(["", ".access"])
    node = brokers.coordinator(world.flow.kafka.bootstrap_servers, group) - 1
    world.brokers.pause(node)
    yield
    world.brokers.resume(node)
