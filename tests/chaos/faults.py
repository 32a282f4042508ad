"""What the nemesis can do. Each is a context manager that breaks something and mends it again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from random import Random

from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from projector.record import Kind
from schemas import names
from tests.chaos import brokers
from tests.chaos.history import CaughtUp, now
from tests.chaos.nemesis import Fault
from tests.chaos.proxy import CALM, FaultProxy, Mood
from tests.chaos.world import PROJECTORS, World

NO_ANSWER, UNAVAILABLE = frozenset({0}), frozenset({503})
_MOST_PARTITIONS = 6
_SESSION_SECONDS = 2.0


# Projectors.


@contextmanager
def _projector_killed(world: World, random: Random) -> Iterator[None]:
    name = random.choice(PROJECTORS)
    world.projectors[name].kill()
    yield
    world.start_projector(name)


@contextmanager
def _projectors_killed(world: World, _: Random) -> Iterator[None]:
    for projector in world.projectors.values():
        projector.kill()
    yield
    for name in PROJECTORS:
        world.start_projector(name)


@contextmanager
def _projector_stopped(world: World, random: Random) -> Iterator[None]:
    """As a deployment does."""
    name = random.choice(PROJECTORS)
    world.projectors[name].stop()
    yield
    world.start_projector(name)


@contextmanager
def _projector_paused(world: World, random: Random) -> Iterator[None]:
    projector = world.projectors[random.choice(PROJECTORS)]
    projector.pause()
    yield
    projector.resume()


# The API.


@contextmanager
def _api_killed(world: World, _: Random) -> Iterator[None]:
    world.api.kill()
    yield
    world.start_api()


@contextmanager
def _api_paused(world: World, _: Random) -> Iterator[None]:
    world.api.pause()
    yield
    world.api.resume()


# Redis.


@contextmanager
def _redis_killed(world: World, _: Random) -> Iterator[None]:
    world.redis.kill()
    yield
    world.redis.restart()


@contextmanager
def _redis_paused(world: World, _: Random) -> Iterator[None]:
    world.redis.pause()
    yield
    world.redis.resume()


@contextmanager
def _redis_went_back(world: World, _: Random) -> Iterator[None]:
    """It is restarted with an old copy of its data."""
    back_to = now()
    copy = world.copy_redis()
    yield
    began_at = now()
    world.redis.kill()
    world.restore_redis(copy)
    world.lost(began_at, back_to)


@contextmanager
def _redis_emptied(world: World, random: Random) -> Iterator[None]:
    yield
    began_at = now()
    world.client.flushall()
    dark_from = dark_until = now()
    while not world.live():
        dark_until = now()
        assert dark_until < began_at + 60, "generation 1 is never served again"
        time.sleep(0.005)
    world.lost(began_at, -inf, (dark_from, dark_until))
    # A generation is served when it holds all that the topics held.
    world.history.caught_up.append(CaughtUp(began_at, now()))


@contextmanager
def _scripts_flushed(world: World, random: Random) -> Iterator[None]:
    for _ in range(random.randint(1, 5)):
        world.client.script_flush()
        time.sleep(0.05)
    yield


@contextmanager
def _redis_full(world: World, _: Random) -> Iterator[None]:
    """Nothing can be written; what there is can be read."""
    world.client.config_set("maxmemory", world.client.info("memory")["used_memory"] // 2)
    yield
    world.client.config_set("maxmemory", 0)


@contextmanager
def _redis_demoted(world: World, _: Random) -> Iterator[None]:
    """It is a replica, and refuses writes; then it is the primary again."""
    world.client.replicaof("127.0.0.1", "1")
    yield
    world.client.replicaof("NO", "ONE")


@contextmanager
def _failover(world: World, _: Random) -> Iterator[None]:
    """A replica that had fallen behind is promoted: what the primary acknowledged meanwhile is lost."""
    replica = world.new_redis()
    with FaultProxy(world.redis.port) as link, replica.client() as client:
        client.replicaof("127.0.0.1", str(link.port))
        wait_until(partial(_is_in_step, replica), "the replica is in step", 20)
        back_to = now()
        link.mood = Mood(stalled=True)
        yield
        began_at = now()
        world.redis.kill()
        client.replicaof("NO", "ONE")
    world.promote(replica)
    world.lost(began_at, back_to)


def _is_in_step(replica: RedisServer) -> bool:
    with replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


# The network between Redis and the others.


@contextmanager
def _in_mood(proxy: FaultProxy, mood: Mood) -> Iterator[None]:
    proxy.mood = mood
    yield
    proxy.mood = CALM


@contextmanager
def _latency(world: World, random: Random) -> Iterator[None]:
    late, later = Mood(latency=random.uniform(0.01, 0.1)), Mood(latency=random.uniform(0.01, 0.3))
    with _in_mood(world.to_api, late), _in_mood(world.to_projector, later):
        yield


@contextmanager
def _sliced(world: World, random: Random) -> Iterator[None]:
    small, larger = Mood(slice=random.randint(1, 7)), Mood(slice=random.randint(50, 400))
    with _in_mood(world.to_api, small), _in_mood(world.to_projector, larger):
        yield


@contextmanager
def _api_stalled(world: World, _: Random) -> Iterator[None]:
    with _in_mood(world.to_api, Mood(stalled=True)):
        yield


@contextmanager
def _projector_stalled(world: World, _: Random) -> Iterator[None]:
    with _in_mood(world.to_projector, Mood(stalled=True)):
        yield


@contextmanager
def _refused(world: World, _: Random) -> Iterator[None]:
    for proxy in (world.to_api, world.to_projector):
        proxy.mood = Mood(refusing=True)
        proxy.reset()
    yield
    world.to_api.mood = world.to_projector.mood = CALM


@contextmanager
def _reset(world: World, random: Random) -> Iterator[None]:
    for _ in range(random.randint(1, 4)):
        world.to_api.reset()
        world.to_projector.reset()
        time.sleep(random.uniform(0.05, 0.3))
    yield


@contextmanager
def _half_closed(world: World, _: Random) -> Iterator[None]:
    world.to_api.half_close()
    world.to_projector.half_close()
    yield


# Kafka.


@contextmanager
def _partitions_raised(world: World, random: Random) -> Iterator[None]:
    kind = random.choice(list(Kind))
    if world.partitions[kind] < _MOST_PARTITIONS:
        world.add_partition(kind)
    yield


@contextmanager
def _topic_made_again(world: World, random: Random) -> Iterator[None]:
    """Offsets start over. The core product publishes all of it once more, and the operator rebuilds."""
    kind = random.choice(list(Kind))
    with world.operating:
        _drop_all(world)
        with world.publishing:
            world.catch_up()
            began_at = now()
            world.make_topic_again(kind)
            if kind is Kind.LEAD:  # letters that speak of offsets of the former one
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
def _leader_killed(world: World, random: Random) -> Iterator[None]:
    topic = world.flow.topic(random.choice(list(Kind)))
    with _broker_killed(world, brokers.leader(world.flow.kafka.bootstrap_servers, topic)):
        yield


@contextmanager
def _coordinator_killed(world: World, random: Random) -> Iterator[None]:
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
def _broker_paused(world: World, random: Random) -> Iterator[None]:
    assert world.brokers is not None
    node = random.randrange(3)
    world.brokers.pause(node)
    yield
    world.brokers.resume(node)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("projector-killed", _projector_killed, beside=True),
        Fault("projectors-killed", _projectors_killed),
        Fault("projector-stopped", _projector_stopped),
        Fault("projector-paused", _projector_paused, seconds=(0.2, 1.0), beside=True),
        Fault("projector-zombie", _projector_paused, seconds=(2 * _SESSION_SECONDS, 3 * _SESSION_SECONDS), beside=True),
        Fault("api-killed", _api_killed, NO_ANSWER, inside=True),
        Fault("api-paused", _api_paused, NO_ANSWER | UNAVAILABLE),
        Fault("redis-killed", _redis_killed, UNAVAILABLE, inside=True),
        Fault("redis-paused", _redis_paused, UNAVAILABLE, inside=True),
        Fault("redis-went-back", _redis_went_back, UNAVAILABLE, seconds=(0.5, 4.0), inside=True),
        Fault("redis-emptied", _redis_emptied, UNAVAILABLE, inside=True),
        Fault("redis-full", _redis_full, seconds=(1.0, 3.0), inside=True),
        Fault("redis-demoted", _redis_demoted, UNAVAILABLE),
        Fault("redis-failover", _failover, UNAVAILABLE, seconds=(0.5, 3.0), inside=True),
        Fault("scripts-flushed", _scripts_flushed),
        Fault("latency", _latency, seconds=(1.0, 3.0), inside=True),
        Fault("sliced", _sliced, seconds=(1.0, 3.0), inside=True),
        Fault("api-stalled", _api_stalled, UNAVAILABLE),
        Fault("projector-stalled", _projector_stalled, seconds=(0.5, 4.0)),
        Fault("refused", _refused, UNAVAILABLE, inside=True),
        Fault("reset", _reset, UNAVAILABLE, inside=True),
        Fault("half-closed", _half_closed, UNAVAILABLE, inside=True),
        Fault("partitions-raised", _partitions_raised, beside=True),
        Fault("topic-made-again", _topic_made_again, seconds=(0.0, 0.1)),
        Fault("leader-killed", _leader_killed, seconds=(1.0, 5.0), needs_brokers=True, beside=True),
        Fault("coordinator-killed", _coordinator_killed, seconds=(1.0, 5.0), needs_brokers=True, beside=True),
        Fault("broker-paused", _broker_paused, seconds=(1.0, 6.0), needs_brokers=True, beside=True),
    )
}
