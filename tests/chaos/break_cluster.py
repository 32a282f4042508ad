"""Faults of a Redis Cluster: each harms one shard, and the others must not notice it.

Each begins on entry and ends on exit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from random import Random

from devstack.redis_server import RedisServer
from schemas import names
from tests.chaos.break_redis import copy, restore
from tests.chaos.core import ORGANIZATIONS
from tests.chaos.history import CaughtUp, now
from tests.chaos.world import World

_EARLY_SHARE = 0.3
_UNFILLED_SHARE = 0.5


@contextmanager
def shard_emptied(world: World, random: Random) -> Iterator[None]:
    """While no projector can fill it again, `status` says that a shard is not complete."""
    server, organizations = _any_shard(world, random)
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
def shard_went_back(world: World, random: Random) -> Iterator[None]:
    """A primary is restarted with an old copy of its data."""
    server, organizations = _any_shard(world, random)
    back_to = now()
    copy(server, world.directory / "copy")
    yield
    began_at = now()
    world.unavailable(organizations)
    server.kill()
    restore(server, world.directory / "copy")
    world.lost(began_at, back_to, organizations=organizations)
    world.cluster.wait_until_in_step(world.primaries.index(server))


@contextmanager
def shard_failover(world: World, random: Random) -> Iterator[None]:
    """A replica that is behind is promoted: what its primary acknowledged meanwhile is lost."""
    server, organizations = _any_shard(world, random)
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
def shard_killed(world: World, random: Random) -> Iterator[None]:
    """A primary is killed and restarted with all of its data."""
    server, organizations = _any_shard(world, random)
    world.unavailable(organizations)
    server.kill()
    yield
    server.restart()
    world.cluster.wait_until_in_step(world.primaries.index(server))


@contextmanager
def shard_paused(world: World, random: Random) -> Iterator[None]:
    server, organizations = _any_shard(world, random)
    world.unavailable(organizations)
    server.pause()
    yield
    server.resume()


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


def _any_shard(world: World, random: Random) -> tuple[RedisServer, frozenset[str]]:
    server = random.choice(world.primaries)
    return server, world.organizations_of(server)
