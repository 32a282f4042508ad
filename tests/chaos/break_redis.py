"""Faults of Redis. Each begins on entry and ends on exit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from random import Random

from devstack.fault_proxy import Faults, faulty_proxy
from tests.chaos import saved
from tests.chaos.history import CaughtUp, now
from tests.chaos.world import World
from tests.harness.waiting import wait_until


@contextmanager
def redis_killed(world: World, _: Random) -> Iterator[None]:
    world.redis.kill()
    yield
    world.redis.restart()


@contextmanager
def redis_paused(world: World, _: Random) -> Iterator[None]:
    world.redis.pause()
    yield
    world.redis.resume()


@contextmanager
def redis_went_back(world: World, _: Random) -> Iterator[None]:
    """Redis is restarted with an old copy of its data."""
    back_to = now()
    saved.copy(world.redis, world.directory / "copy")
    yield
    began_at = now()
    world.redis.kill()
    saved.restore(world.redis, world.directory / "copy")
    world.lost(began_at, back_to)


@contextmanager
def redis_emptied(world: World, random: Random) -> Iterator[None]:
    yield
    began_at = now()
    for server in world.primaries:
        with server.client() as client:
            client.flushall()
    dark_from = now()
    world.lost(began_at, -inf, (dark_from, world.dark_until(dark_from)))
    # A generation is served when it holds all that the topics held.
    world.history.caught_up.append(CaughtUp(began_at, now()))


@contextmanager
def scripts_flushed(world: World, random: Random) -> Iterator[None]:
    for _ in range(random.randint(1, 5)):
        for server in world.primaries:
            with server.client() as client:
                client.script_flush()
        time.sleep(0.05)
    yield


@contextmanager
def redis_full(world: World, _: Random) -> Iterator[None]:
    """Redis refuses writes and serves reads."""
    for server in world.primaries:
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
    yield
    for server in world.primaries:
        with server.client() as client:
            client.config_set("maxmemory", 0)


@contextmanager
def redis_demoted(world: World, _: Random) -> Iterator[None]:
    """Redis becomes a replica, which refuses writes; then it is the primary again."""
    world.client.replicaof("127.0.0.1", "1")
    yield
    world.client.replicaof("NO", "ONE")


@contextmanager
def sentinel_failover(world: World, _: Random) -> Iterator[None]:
    """The Sentinel finds out that the primary was killed, and promotes a replica that is behind; then a new one joins.

    What the primary acknowledged meanwhile is lost.
    """
    sentinel = world.sentinel
    assert sentinel is not None
    back_to = now()
    with sentinel.losing():
        yield
        began_at = now()
        sentinel.fail_over()
    world.lost(began_at, back_to)
    sentinel.join()


@contextmanager
def two_masters(world: World, _: Random) -> Iterator[None]:
    """A master that stood still wakes up after another was promoted, and acknowledges until the Sentinel demotes it."""
    assert world.sentinel is not None
    began_at = now()
    world.sentinel.split()
    yield
    world.sentinel.heal()
    world.lost(began_at, began_at)


@contextmanager
def failover(world: World, _: Random) -> Iterator[None]:
    """The address of the primary becomes that of a replica that is behind: what was acknowledged meanwhile is lost."""
    replica = world.new_redis()
    with faulty_proxy(world.redis.port) as link, replica.client() as client:
        client.replicaof("127.0.0.1", str(link.port))
        wait_until(replica.is_in_step, "the replica is in step")
        back_to = now()
        link.faults = Faults(stalled=True)
        yield
        began_at = now()
        world.redis.kill()
        client.replicaof("NO", "ONE")
    world.promote(replica)
    world.lost(began_at, back_to)
