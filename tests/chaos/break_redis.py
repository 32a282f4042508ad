"""Faults of Redis, of its shards, and of the network between Redis and the others. Each begins on entry and ends on
exit.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random

from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_server import RedisServer
from schemas import names
from tests.chaos.core import ORGANIZATIONS
from tests.chaos.history import CaughtUp, now
from tests.chaos.world import Strike, World
from tests.harness.waiting import wait_until


@contextmanager
def killed(world: World, random: Random) -> Iterator[None]:
    """A primary is killed and restarted with all of its data."""
    server = unavailable(world, random)
    server.kill()
    yield
    server.restart()
    world.wait_until_in_step(server)


@contextmanager
def went_back(world: World, random: Random) -> Iterator[None]:
    """A primary is restarted with an old copy of its data."""
    server, organizations = _any_primary(world, random)
    back_to = now()
    copy(server, world.directory / "copy")
    yield
    began_at = now()
    world.unavailable(organizations)
    server.kill()
    restore(server, world.directory / "copy")
    world.lost(began_at, back_to, organizations=organizations)
    world.wait_until_in_step(server)


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


def no_fault(_: Random) -> Faults:
    return Faults()


def proxied(api: Callable[[Random], Faults] = no_fault, projectors: Callable[[Random], Faults] = no_fault) -> Strike:
    """The proxies on the ways of the API and of the projectors have these faults."""

    @contextmanager
    def strike(world: World, random: Random) -> Iterator[None]:
        world.to_api.faults, world.to_projector.faults = api(random), projectors(random)
        yield
        world.to_api.faults = world.to_projector.faults = Faults()

    return strike


def late(most_seconds: float) -> Callable[[Random], Faults]:
    return lambda random: Faults(delay_seconds=random.uniform(0.01, most_seconds), both_ways=True)


def sliced(least: int, most: int) -> Callable[[Random], Faults]:
    return lambda random: Faults(slice_bytes=random.randint(least, most), both_ways=True)


def stalled(_: Random) -> Faults:
    return Faults(stalled=True)


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


# Of a cluster, each of these harms one shard, and the others must not notice it.

_EARLY_SHARE = 0.3
_UNFILLED_SHARE = 0.5


@contextmanager
def shard_emptied(world: World, random: Random) -> Iterator[None]:
    """While no projector can fill it again, `status` says that a shard is not complete."""
    server, organizations = _any_primary(world, random)
    yield
    began_at = now()
    world.unavailable(organizations)
    with world.asleep(*world.projectors.values()), server.client() as client:
        client.flushall()
        dark_from = now()
        world.expect_incomplete_shards("a shard was emptied")
        dark_until = now()
    world.lost(began_at, -inf, (dark_from, world.dark_until(dark_until)), organizations)
    # A shard is complete when it holds all that the topics held.
    world.history.caught_up.append(CaughtUp(began_at, now()))


@contextmanager
def shard_failover(world: World, random: Random) -> Iterator[None]:
    """A replica that is behind is promoted: what its primary acknowledged meanwhile is lost."""
    server, organizations = _any_primary(world, random)
    number = world.primaries.index(server)
    back_to = now()
    with world.cluster.losing(number):
        yield
        began_at = now()
        world.unavailable(organizations)
        world.cluster.fail_over(number)
    world.lost(began_at, back_to, organizations=organizations)
    world.cluster.join(number)


@contextmanager
def shard_lost(world: World, random: Random) -> Iterator[None]:
    """A shard is lost for good, and its slots are given, empty, to another one. Later a new, empty one takes its place.

    The heir may answer 503 for what it had before as well: it is not complete. The new shard may get the slots before
    the projectors have filled them again.
    """
    lost, heir = random.sample(world.primaries, 2)
    number, organizations = world.primaries.index(lost), world.organizations_of(lost)
    began_at = now()
    world.unavailable(frozenset(ORGANIZATIONS))  # until all nodes agree about the slots
    nobody_fills = random.random() < _UNFILLED_SHARE
    with world.asleep(*world.projectors.values() if nobody_fills else ()):
        world.cluster.lose(number, heir)
        dark_from = dark_until = now()
        if nobody_fills:
            world.expect_incomplete_shards("a shard was lost")
            dark_until = now()
    yield
    early = random.random() < _EARLY_SHARE
    if early:
        world.cluster.replace(number)
    last_dark = world.dark_until(dark_until)
    # The heir may have been complete before the new shard came, which is not.
    world.lost(began_at, -inf, (dark_from, dark_until if early else last_dark), organizations)
    # The heir is complete when it holds all that the topics held.
    world.history.caught_up.append(CaughtUp(began_at, now()))
    if not early:
        world.cluster.replace(number)


@contextmanager
def copy_moved(world: World, random: Random) -> Iterator[None]:
    """The slot of a copy of the control record is moved to another shard, and back."""
    tag = random.choice(world.leadview.state().copies)
    with _moved(world, random, names.tag_slot(tag.encode())):
        yield


@contextmanager
def organization_moved(world: World, random: Random) -> Iterator[None]:
    """The slot of an organization is moved to another shard, and back.

    While both have a part of its keys, Redis answers TRYAGAIN; on a busy machine, longer than a request waits.
    """
    organization = random.choice(ORGANIZATIONS)
    world.unavailable(frozenset({organization}))
    with _moved(world, random, names.tag_slot(names.tag(names.organization(organization)))):
        yield


@contextmanager
def _moved(world: World, random: Random, slot: int) -> Iterator[None]:
    owner = world.cluster.owner(slot)
    world.cluster.move_slot(slot, random.choice([server for server in world.primaries if server is not owner]))
    yield
    world.cluster.move_slot(slot, owner)


def _any_primary(world: World, random: Random) -> tuple[RedisServer, frozenset[str]]:
    server = random.choice(world.primaries)
    return server, world.organizations_of(server)


def unavailable(world: World, random: Random) -> RedisServer:
    """Returns any primary, of which it is noted that it is not there from now on."""
    server, organizations = _any_primary(world, random)
    world.unavailable(organizations)
    return server


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
