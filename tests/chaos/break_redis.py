"""Faults of Redis, and of the network between Redis and the others. Each begins on entry and ends on exit."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random

from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from devstack.redis_server import RedisServer
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
    copy(world.redis, world.directory / "copy")
    yield
    began_at = now()
    world.redis.kill()
    restore(world.redis, world.directory / "copy")
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


@contextmanager
def _with(proxy: FaultyProxy, faults: Faults) -> Iterator[None]:
    proxy.faults = faults
    yield
    proxy.faults = Faults()


@contextmanager
def latency(world: World, random: Random) -> Iterator[None]:
    late, later = (Faults(delay_seconds=random.uniform(0.01, most), both_ways=True) for most in (0.1, 0.3))
    with _with(world.to_api, late), _with(world.to_projector, later):
        yield


@contextmanager
def sliced(world: World, random: Random) -> Iterator[None]:
    small, larger = (Faults(slice_bytes=random.randint(*sizes), both_ways=True) for sizes in ((1, 7), (50, 400)))
    with _with(world.to_api, small), _with(world.to_projector, larger):
        yield


@contextmanager
def api_stalled(world: World, _: Random) -> Iterator[None]:
    with _with(world.to_api, Faults(stalled=True)):
        yield


@contextmanager
def projector_stalled(world: World, _: Random) -> Iterator[None]:
    with _with(world.to_projector, Faults(stalled=True)):
        yield


@contextmanager
def refused(world: World, _: Random) -> Iterator[None]:
    for proxy in (world.to_api, world.to_projector):
        proxy.faults = Faults(refusing=True)
        proxy.reset_all()
    yield
    world.to_api.faults = world.to_projector.faults = Faults()


@contextmanager
def reset(world: World, random: Random) -> Iterator[None]:
    for _ in range(random.randint(1, 4)):
        world.to_api.reset_all()
        world.to_projector.reset_all()
        time.sleep(random.uniform(0.05, 0.3))
    yield


@contextmanager
def half_closed(world: World, _: Random) -> Iterator[None]:
    world.to_api.half_close()
    world.to_projector.half_close()
    yield


def copy(server: RedisServer, target: Path) -> None:
    """Copy the log of a server, as it is now, into this directory: put back later, Redis goes back in time."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in _files(server):
        into = target / path.relative_to(server.directory)
        into.parent.mkdir(exist_ok=True)
        shutil.copy(path, into)


def restore(server: RedisServer, source: Path) -> None:
    """Replace the log of a server that does not run by the copy, and start it."""
    for path in _files(server):
        path.unlink()
    shutil.copytree(source, server.directory, dirs_exist_ok=True)
    server.restart()


def _files(server: RedisServer) -> list[Path]:
    """Returns the files of the log: Redis 7 has a folder of them, older ones have one file."""
    folder = server.directory / "appendonlydir"
    return [path for path in (server.directory / "appendonly.aof", *folder.glob("*")) if path.is_file()]
