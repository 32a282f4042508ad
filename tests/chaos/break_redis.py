"""Faults of Redis, of its shards, and of the network between Redis and the others. Each begins on entry and ends on
exit.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from random import Random

import orjson
from redis import Redis
from redis.exceptions import ResponseError

from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_server import RedisServer
from schemas import names
from tests.chaos.core import ORGANIZATIONS
from tests.chaos.history import Loss, now
from tests.chaos.world import RECOVER_SECONDS, World
from tests.harness import control
from tests.harness.programs import asleep
from tests.harness.waiting import wait_until

_LOG = "appendonlydir"
"""The folder of the log of Redis 7; older ones have one file."""
_EVICTED_BYTES = 30_000
_SAVED = "dump.rdb"
_ALL_BUT_LOG = shutil.ignore_patterns("temp-*", "nodes.conf*", _SAVED, "redis.log")


@contextmanager
def killed(world: World, random: Random) -> Iterator[None]:
    server = unavailable(world, random)
    server.kill()
    yield
    server.restart()
    world.wait_until_in_step(server)


@contextmanager
def went_back(world: World, random: Random) -> Iterator[None]:
    """A primary is restarted with an old copy of its data."""
    server = random.choice(world.primaries)
    organizations, copy, back_to = world.organizations_of(server), world.directory / "copy", now()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(server.directory, copy, ignore=_ALL_BUT_LOG)
    yield
    with world.losing(back_to, organizations):
        server.kill()
        shutil.rmtree(server.directory / _LOG, ignore_errors=True)
        shutil.copytree(copy, server.directory, dirs_exist_ok=True)
        server.restart()
    world.wait_until_in_step(server)


@contextmanager
def redis_emptied(world: World, _: Random) -> Iterator[None]:
    yield
    with world.losing() as loss:
        for server in world.primaries:
            with server.client() as client:
                client.flushall()
        dark_from = now()
        loss.dark = dark_from, world.dark_until(dark_from)


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
def disk_full(world: World, _: Random) -> Iterator[None]:
    """Redis cannot save its data, and therefore refuses writes (MISCONF): a folder has the name of the file."""
    for server in world.primaries:
        with server.client() as client:
            # It is there already after a replica got all data of its primary. Nothing reads it: there is the log.
            (server.directory / _SAVED).unlink(missing_ok=True)
            (server.directory / _SAVED).mkdir()
            client.config_set("save", "3600 1")
            wait_until(lambda client=client: _fails_to_save(client), "Redis cannot save")  # type: ignore[misc]
    yield
    for server in world.primaries:
        with server.client() as client:
            client.config_set("save", "")
            (server.directory / _SAVED).rmdir()


def _fails_to_save(client: Redis) -> bool:
    with suppress(ResponseError):  # it is saving already, or begins to rewrite its log
        client.bgsave()
    return bool(client.info("persistence")["rdb_last_bgsave_status"] == "err")


def _evicts(client: Redis, before: int) -> bool:
    """Lower the limit of memory below what is used now, because some of what was used is free already. Returns whether
    more keys were evicted than `before`."""
    memory = client.info("memory")
    client.config_set("maxmemory", memory["used_memory"] - memory["mem_not_counted_for_evict"] - _EVICTED_BYTES)
    return bool(client.info("stats")["evicted_keys"] > before)


@contextmanager
def redis_evicted(world: World, random: Random) -> Iterator[None]:
    """Redis evicts what was not used lately, for a second. Projectors have to put that right by themselves."""
    began_at = now()
    world.unavailable(frozenset(ORGANIZATIONS))  # it may evict a copy of the control record, too
    servers = random.sample(world.primaries, 1)
    with world.operating, servers[0].client() as client:
        before, copies = client.info("stats")["evicted_keys"], _incarnations(world)
        client.config_set("maxmemory-policy", "allkeys-lru")
        wait_until(lambda: _evicts(client, before), "Redis has evicted something")
        time.sleep(random.uniform(0.0, 1.0))
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        if _incarnations(world) == copies:
            world.judge("evicted", began_at, lambda: None)
        else:  # what a shard without a copy of the control record holds is read again from the beginning
            world.wait_until(world.leadview.is_served, "it is filled again")
            # What is not there any more was read again; but the index of a contact that is there may be gone.
            wait_until(lambda: "evicted" not in world.problems(), "what was evicted is put right", RECOVER_SECONDS)
            world.history.losses.append(Loss(began_at, now(), -inf, named=True))
        with world.publishing:  # dead letters that were evicted are listed again only when their records are read again
            world.catch_up()
            listed = {orjson.loads(letter)["key"].encode() for letter in world.leadview.redis.hvals(names.DEAD_LETTERS)}
            world.unlisted |= world.leadview.topics.bad_keys - listed
            world.leadview.topics.bad_keys &= listed
    yield


def _incarnations(world: World) -> dict[str, str]:
    """Returns the incarnation of each copy of the control record that exists."""
    return {tag: copy.incarnation for tag, copy in control.read_all(world.leadview.redis).items() if copy}


@contextmanager
def clock_jumped(world: World, random: Random) -> Iterator[None]:
    """The clock of Redis is an hour ahead or behind for a while."""
    world.set_clock(random.choice((3600, -3600)))
    world.is_told("clock_differs")
    yield
    world.set_clock(0)


@contextmanager
def redis_demoted(world: World, _: Random) -> Iterator[None]:
    world.leadview.redis.replicaof("127.0.0.1", "1")
    yield
    world.leadview.redis.replicaof("NO", "ONE")


@contextmanager
def sentinel_failover(world: World, _: Random) -> Iterator[None]:
    """The primary is killed, and the Sentinel promotes a replica that is behind; then a new one joins.

    What the primary acknowledged meanwhile is lost.
    """
    assert world.sentinel
    back_to = now()
    with world.sentinel.losing():
        yield
        with world.losing(back_to):
            world.sentinel.fail_over()
    world.sentinel.join()


@contextmanager
def two_masters(world: World, _: Random) -> Iterator[None]:
    """A master that stood still wakes up after another was promoted, and acknowledges until the Sentinel demotes it."""
    assert world.sentinel
    with world.losing(now()):
        world.sentinel.split()
        yield
        world.sentinel.heal()


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
        with world.losing(back_to):
            world.redis.kill()
            client.replicaof("NO", "ONE")
            world.promote(replica)


# The network between Redis and the others.

Way = Callable[[Random], Faults]


@contextmanager
def proxied(api: Way, projectors: Way, world: World, random: Random) -> Iterator[None]:
    """The proxies on the ways of the API and of the projectors have these faults. Where new connections are refused,
    those that are open break.
    """
    for proxy, faults in ((world.to_api, api), (world.to_projector, projectors)):
        proxy.faults = faults(random)
        if proxy.faults.refusing:
            proxy.reset_all()
    yield
    world.to_api.faults = world.to_projector.faults = Faults()


def always(faults: Faults) -> Way:
    return lambda _: faults


def late(most_seconds: float) -> Way:
    return lambda random: Faults(delay_seconds=random.uniform(0.01, most_seconds), both_ways=True)


def sliced(least: int, most: int) -> Way:
    return lambda random: Faults(slice_bytes=random.randint(least, most), both_ways=True)


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


@contextmanager
def shard_emptied(world: World, random: Random) -> Iterator[None]:
    """While no projector can fill it again, `status` says that a shard is not complete."""
    server = random.choice(world.primaries)
    organizations = world.organizations_of(server)
    yield
    with world.losing(organizations=organizations) as loss:
        with asleep(*world.projectors.values()), server.client() as client:
            client.flushall()
            dark_from = now()
            dark_until = world.expect_incomplete_shards("a shard was emptied")
        loss.dark = dark_from, world.dark_until(dark_until)


@contextmanager
def shard_failover(world: World, random: Random) -> Iterator[None]:
    """A replica that is behind is promoted: what its primary acknowledged meanwhile is lost."""
    number = random.randrange(len(world.primaries))
    organizations, back_to = world.organizations_of(world.primaries[number]), now()
    with world.cluster.losing(number):
        yield
        with world.losing(back_to, organizations):
            world.cluster.fail_over(number)
    world.cluster.join(number)


@contextmanager
def shard_lost(world: World, random: Random) -> Iterator[None]:
    """A shard is lost for good, and its slots are given, empty, to another one. Later a new, empty one takes its place.

    The heir may answer 503 for what it had before as well: it is not complete. The new shard may get the slots before
    the projectors have filled them again.
    """
    lost, heir = random.sample(world.primaries, 2)
    number, organizations = world.primaries.index(lost), world.organizations_of(lost)
    is_early, nobody_fills = random.random() < 0.3, random.random() < 0.5
    world.unavailable(frozenset(ORGANIZATIONS))  # until all nodes agree about the slots
    with world.losing(organizations=organizations) as loss:
        with asleep(*world.projectors.values() if nobody_fills else ()):
            world.cluster.lose(number, heir)
            dark_from = dark_until = now()
            if nobody_fills:
                dark_until = world.expect_incomplete_shards("a shard was lost")
        yield
        if is_early:
            world.cluster.replace(number)
        last_dark = world.dark_until(dark_until)
        # The heir may have been complete before the new shard came, which is not.
        loss.dark = dark_from, dark_until if is_early else last_dark
    if not is_early:
        world.cluster.replace(number)


@contextmanager
def copy_moved(world: World, random: Random) -> Iterator[None]:
    """The slot of a copy of the control record is moved to another shard, and back."""
    with _moved(world, random, random.choice(world.leadview.state().copies).encode()):
        yield


@contextmanager
def organization_moved(world: World, random: Random) -> Iterator[None]:
    """The slot of an organization is moved to another shard, and back.

    While both have a part of its keys, Redis answers TRYAGAIN; on a busy machine, longer than a request waits.
    """
    organization = random.choice(ORGANIZATIONS)
    world.unavailable(frozenset({organization}))
    with _moved(world, random, names.tag(names.organization(organization))):
        yield


@contextmanager
def _moved(world: World, random: Random, tag: bytes) -> Iterator[None]:
    slot = names.tag_slot(tag)
    owner = world.cluster.owner(slot)
    world.cluster.move_slot(slot, random.choice([server for server in world.primaries if server is not owner]))
    yield
    world.cluster.move_slot(slot, owner)


def unavailable(world: World, random: Random) -> RedisServer:
    """Returns any primary, of which it is noted that it is not there from now on."""
    server = random.choice(world.primaries)
    world.unavailable(world.organizations_of(server))
    return server
