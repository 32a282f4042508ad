"""The faults of a world. Each begins on entry and ends on exit, as those of `tests/chaos` do."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial as bind
from math import inf
from random import Random

from msgspec import Struct

from schemas import resources
from tests.chaos.history import Window
from tests.harness import crm
from tests.simulation.loop import Process
from tests.simulation.operator import judge
from tests.simulation.people import Reader
from tests.simulation.world import REDIS, World

_NOTHING: frozenset[int] = frozenset()
NO_ANSWER, UNAVAILABLE, LIMITED = frozenset({0}), frozenset({503}), frozenset({429})
_STEP_SECONDS, _SERVED_SECONDS = 0.05, 60.0


class Fault(Struct, frozen=True):
    """Something that breaks. `allows`: statuses that readers may get meanwhile, besides those that the history
    explains. `seconds`: how long it lasts, at least and at most. `pairs`: others may happen during it.
    """

    name: str
    strike: Callable[[World, Random], AbstractAsyncContextManager[None]]
    allows: frozenset[int] = _NOTHING
    seconds: tuple[float, float] = (0.3, 3.0)
    pairs: bool = False


@asynccontextmanager
async def projectors_killed(most: int, world: World, random: Random) -> AsyncIterator[None]:
    chosen = random.sample([*world.projectors], min(most, len(world.projectors)))
    for host in chosen:
        world.kill(world.projectors[host])
    yield
    for host in chosen:
        world.start_projector(host)


@asynccontextmanager
async def projector_stopped(world: World, random: Random) -> AsyncIterator[None]:
    host = random.choice([host for host, process in world.projectors.items() if not process.suspended])
    process = world.projectors[host]
    if end := process.signals.get(signal.SIGTERM):
        process.context().run(world.loop.call_soon, end)
        await world.wait_until(lambda: all(task.done() for task in process.tasks), "the projector has stopped")
    world.kill(process)
    yield
    world.start_projector(host)


@asynccontextmanager
async def suspended(chosen: Callable[[World, Random], Process], world: World, random: Random) -> AsyncIterator[None]:
    process = chosen(world, random)
    process.stop()
    yield
    process.resume()


def any_projector(world: World, random: Random) -> Process:
    return random.choice([*world.projectors.values()])


def any_worker(world: World, random: Random) -> Process:
    return random.choice([*world.workers.values()])


def redis_process(world: World, _: Random) -> Process:
    world.unavailable()
    return world.server.process


def any_broker(world: World, random: Random) -> Process:
    return random.choice([*world.cluster.alive.values()])


@asynccontextmanager
async def worker_killed(world: World, random: Random) -> AsyncIterator[None]:
    host = random.choice([*world.workers])
    world.kill(world.workers[host])
    yield
    world.start_worker(host)


@asynccontextmanager
async def redis_killed(world: World, _: Random) -> AsyncIterator[None]:
    """Redis has what it acknowledged when it is back."""
    world.unavailable()
    world.kill(world.server.process)
    yield
    world.restart_redis()


@asynccontextmanager
async def redis_went_back(world: World, random: Random) -> AsyncIterator[None]:
    """Redis restarts, or fails over, and has lost what it acknowledged lately."""
    back_to, held = world.loop.now, world.server.snapshot()
    yield
    world.unavailable()
    world.kill(world.server.process)
    with world.history.losing(back_to):
        world.server.go_back(held)
    await asyncio.sleep(random.choice((0.0, 0.001, 0.1, 1.0)))
    world.restart_redis()


@asynccontextmanager
async def redis_emptied(world: World, _: Random) -> AsyncIterator[None]:
    yield
    with world.history.losing() as loss:
        world.server.client.flushall()
        dark_from = last = world.loop.now
        until = last + 120.0
        while not world.leadview.is_served():
            last = world.loop.now
            if last > until:
                raise TimeoutError("Redis is not filled again")
            await asyncio.sleep(_STEP_SECONDS)
        loss.dark = dark_from, last


@asynccontextmanager
async def scripts_flushed(world: World, random: Random) -> AsyncIterator[None]:
    for _ in range(random.randint(1, 5)):
        world.server.client.script_flush()
        await asyncio.sleep(random.uniform(0.0, 0.3))
    yield


def _hosts(world: World, random: Random, kinds: str) -> list[tuple[str, str]]:
    """Returns links of one kind: of projectors to Redis, of workers to Redis, or of projectors to brokers."""
    if kinds == "projector-kafka":
        brokers = random.sample([*world.cluster.hosts.values()], random.randint(1, len(world.cluster.hosts)))
        return [(host, broker) for host in world.projectors for broker in brokers]
    hosts = [*world.projectors] if kinds == "projector-redis" else [*world.workers]
    return [(host, REDIS) for host in random.sample(hosts, random.randint(1, len(hosts)))]


@asynccontextmanager
async def cut(kinds: str, world: World, random: Random) -> AsyncIterator[None]:
    links = [world.network.link(*ends) for ends in _hosts(world, random, kinds)]
    for link in links:
        link.is_cut = True
    yield
    for link in links:
        world.network.heal(link)


@asynccontextmanager
async def slow(kinds: str, world: World, random: Random) -> AsyncIterator[None]:
    links = [world.network.link(*ends) for ends in _hosts(world, random, kinds)]
    usual = links[0].latency
    for link in links:
        link.latency = (0.001, random.choice((0.03, 0.15)))
    yield
    for link in links:
        link.latency = usual


@asynccontextmanager
async def reset(kinds: str, world: World, random: Random) -> AsyncIterator[None]:
    """All connections are reset, again and again."""
    for _ in range(random.randint(1, 4)):
        for ends in _hosts(world, random, kinds):
            for transport in world.network.of(*ends):
                transport.context.run(world.loop.call_soon, transport._reset)
        await asyncio.sleep(random.uniform(0.02, 0.4))
    yield


@asynccontextmanager
async def forgotten(kinds: str, world: World, random: Random) -> AsyncIterator[None]:
    """A device on the way forgets the connections that are open."""
    for ends in _hosts(world, random, kinds):
        for transport in world.network.of(*ends):
            transport.forget()
    yield


@asynccontextmanager
async def broker_killed(world: World, random: Random) -> AsyncIterator[None]:
    number = random.choice([*world.cluster.alive])
    process = world.cluster.alive[number]
    world.cluster.stop(number)
    world.kill(process)
    yield
    world.start_broker(number)


@asynccontextmanager
async def clock_differs(world: World, random: Random) -> AsyncIterator[None]:
    """The clock of a projector is seconds, or an hour, ahead or behind."""
    process = any_projector(world, random)
    process.clock = random.choice((-3600.0, -10.0, -1.5, 1.5, 10.0, 3600.0))
    yield
    process.clock = 0.0


@asynccontextmanager
async def clock_of_redis(world: World, random: Random) -> AsyncIterator[None]:
    """The clock of Redis is behind, by seconds or an hour, and then right again. (If it was ahead, each bucket of a
    rate limit would seem to be full when it is used next.)
    """
    world.server.ahead = -random.choice((1.5, 30.0, 3600.0))
    yield
    world.server.ahead = 0.0


@asynccontextmanager
async def transaction_open(world: World, random: Random) -> AsyncIterator[None]:
    """A producer leaves a transaction open, while others publish behind it, and then commits or aborts it."""
    kind, commits = random.choice(resources.KINDS), random.random() < 0.5
    entities = [entity for entity in world.core._newest if entity[0] is kind]
    messages = [world.core.newest_of(entity) for entity in random.sample(entities, min(3, len(entities)))]
    if not commits:
        messages = [world.core.never(kind)]
    places = {world.place(message) for message in messages}
    producer = world.loop.random.randrange(1, 10_000)
    for message in messages:
        world.cluster.append(world.place(message), [message], producer)
    yield
    for at in sorted(places):
        world.cluster.logs[at].finish(producer, commits=commits)
    world.cluster.wake()


@asynccontextmanager
async def compacted(world: World, _: Random) -> AsyncIterator[None]:
    """Compaction leaves the newest record of each key."""
    yield
    for log in world.cluster.logs.values():
        log.compact(forgets=lambda _: False)


@asynccontextmanager
async def deletes_missed(world: World, random: Random) -> AsyncIterator[None]:
    """Kafka removes tombstones while no projector runs. Projectors have to put that right by themselves."""
    kind = random.choice(resources.KINDS)
    with world.core.at_rest(kind) as victims:
        await world.publish([world.core.put(victim) for victim in victims])
        await world.catch_up()
        began_at = world.loop.now
        world.cluster.settings[world.topic(kind)] = {"delete.retention.ms": "1000"}
        async with projectors_killed(99, world, random):
            await world.publish([world.core.tombstone(victim) for victim in victims])
            keys = {crm.message_key(*victim) for victim in victims}
            await asyncio.sleep(8.0)  # longer than the pause that projectors may make
            for log in world.cluster.logs.values():
                log.compact(forgets=lambda entry: entry.value is None and entry.key in keys)
        await judge(world, "deletes_missed", began_at)
        world.cluster.settings.clear()
    yield


_LONG = (4.0, 8.0)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("projector-killed", bind(projectors_killed, 1), pairs=True),
        Fault("projectors-killed", bind(projectors_killed, 99)),
        Fault("projector-stopped", projector_stopped),
        Fault("projector-suspended", bind(suspended, any_projector), pairs=True),
        Fault("projector-zombie", bind(suspended, any_projector), seconds=_LONG, pairs=True),
        Fault("api-killed", worker_killed, NO_ANSWER),
        Fault("api-suspended", bind(suspended, any_worker), NO_ANSWER | UNAVAILABLE),
        Fault("redis-killed", redis_killed),
        Fault("redis-suspended", bind(suspended, redis_process)),
        Fault("redis-went-back", redis_went_back, pairs=True),
        Fault("redis-emptied", redis_emptied, UNAVAILABLE),
        Fault("scripts-flushed", scripts_flushed),
        Fault("projector-cut", bind(cut, "projector-redis"), seconds=(0.5, 15.0), pairs=True),
        Fault("projector-slow", bind(slow, "projector-redis"), pairs=True),
        Fault("projector-reset", bind(reset, "projector-redis"), pairs=True),
        Fault("projector-forgotten", bind(forgotten, "projector-redis"), seconds=(5.0, 12.0)),
        Fault("api-cut", bind(cut, "api-redis"), UNAVAILABLE),
        Fault("api-slow", bind(slow, "api-redis"), UNAVAILABLE),
        Fault("api-reset", bind(reset, "api-redis"), UNAVAILABLE),
        Fault("api-forgotten", bind(forgotten, "api-redis"), UNAVAILABLE, (1.0, 5.0)),
        Fault("kafka-cut", bind(cut, "projector-kafka"), seconds=(1.0, 8.0), pairs=True),
        Fault("kafka-slow", bind(slow, "projector-kafka"), pairs=True),
        Fault("kafka-reset", bind(reset, "projector-kafka"), pairs=True),
        Fault("broker-killed", broker_killed, pairs=True),
        Fault("broker-suspended", bind(suspended, any_broker), seconds=(1.0, 6.0), pairs=True),
        Fault("clock-of-projector", clock_differs, pairs=True),
        Fault("clock-of-redis", clock_of_redis, LIMITED),
        Fault("transaction-open", transaction_open, pairs=True),
        Fault("deletes-missed", deletes_missed, seconds=(0.0, 0.1)),
        Fault("compacted", compacted, pairs=True),
    )
}


class Step(Struct, frozen=True):
    """One strike of the nemesis: these faults, one inside of the other, after a quiet time."""

    faults: tuple[str, ...]
    seed: int
    quiet: float


def plan(random: Random, names: list[str], steps: int) -> list[Step]:
    """Returns what the nemesis does: in random order, none twice before all others, sometimes two together."""
    planned: list[Step] = []
    left: list[str] = []
    for _ in range(steps):
        left = left or random.sample(names, len(names))
        chosen = [left.pop()]
        if FAULTS[chosen[0]].pairs and random.random() < 0.5:
            chosen.append(random.choice(names))
        planned.append(Step(tuple(dict.fromkeys(chosen)), random.getrandbits(32), random.choice((0.5, 1.0, 4.0))))
    return planned


async def strike(world: World, step: Step, reader: Reader) -> None:
    """Begin these faults one after the other, end them in the opposite order, and wait until all is recovered. Raises
    TimeoutError.
    """
    random = Random(step.seed)
    windows = [Window(name, FAULTS[name].allows, world.loop.now) for name in step.faults]
    world.history.windows += windows
    async with AsyncExitStack() as stack:
        for name in step.faults:
            await stack.enter_async_context(FAULTS[name].strike(world, random))
            await asyncio.sleep(random.uniform(*FAULTS[name].seconds))
    healed_at, world.mark = world.loop.now, world.stable_ends()
    for window in windows:
        window.healed_at = healed_at
    try:
        await world.catch_up()
        await world.wait_until(world.is_settled, "each projector is a member of each group")
        async with asyncio.timeout(_SERVED_SECONDS):
            while not await reader.is_served():  # noqa: ASYNC110 - readers are told nothing
                await asyncio.sleep(_STEP_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"after {' with '.join(step.faults)}: {error}") from error
    for window in windows:
        window.recovered_at = world.loop.now
    for outage in world.history.outages:
        outage.ended_at = min(outage.ended_at, world.loop.now)
    assert inf not in [window.recovered_at for window in windows]
