"""One world from its beginning to its verdict, and many of them, one after the other."""

import asyncio
import gc
import io
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from random import Random
from typing import Any, cast

import orjson
from msgspec import Struct, field

from projector.health.watch import Watch
from projector.kafka import brokers as known_brokers
from projector.line.metrics import REGISTRY
from projector.reference import Entity
from schemas import names, resources
from tests.chaos import run as chaos
from tests.chaos.checker import REFUSED, Verdict
from tests.chaos.core import KEY_IDS, ORGANIZATIONS
from tests.chaos.reader import check
from tests.chaos.world import World as ChaosWorld
from tests.simulation.bridge import Server
from tests.simulation.faults import FAULTS, Step, plan, strike
from tests.simulation.loop import Loop, process
from tests.simulation.nature import nature, wall_clock
from tests.simulation.operator import operate
from tests.simulation.people import Reader, RestlessCore, probe
from tests.simulation.reached import Reached
from tests.simulation.world import World

STEPS = 6
_RATES = (5.0, 20.0, 60.0)
_READERS, _QUESTIONS = 3, 8.0
_WAIT, _WAITING_SHARE = 2, 3
"""In one of three worlds, a further reader waits so many seconds for changes."""
_OPERATED_SHARE = 2
"""In one of two worlds, an operator rebuilds, promotes, rolls back and drops."""
_TICK_SECONDS, _LAST_PRODUCER = 0.1, 10_001
_LOGGED = ("line", "error", "partitions", "reason")


class Scenario(Struct, frozen=True):
    """Everything that decides what happens in a world."""

    seed: int
    steps: tuple[Step, ...]


class Outcome(Struct):
    """What has happened in a world. `digest` is that of all commands that reached Redis."""

    scenario: Scenario
    seconds: float = 0.0
    commands: int = 0
    digest: str = ""
    published: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    wrong: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not self.wrong and not self.verdict.anomalies

    def complaints(self) -> list[str]:
        return [*map(str, self.verdict.anomalies[:5]), *self.wrong[:5]]


def scenario_of(seed: int, faults: Sequence[str] = tuple(FAULTS), steps: int = STEPS) -> Scenario:
    return Scenario(seed, tuple(plan(Random(seed), list(faults), steps)))


def simulate(server: Server, scenario: Scenario) -> Outcome:
    """Run a world. Everything that happens in it follows from the scenario."""
    outcome, loop, reached = Outcome(scenario), Loop(scenario.seed), Reached()
    with _alone(outcome, loop, reached), nature(loop):
        known_brokers._named.clear()
        server.begin(loop.outside, partial(wall_clock, loop))
        server.observe.append(reached.look)
        core = RestlessCore(scenario.seed, leads=12, contacts=5)
        world = World(loop, server, core)
        waits = [0] * _READERS + [_WAIT] * (scenario.seed % _WAITING_SHARE == 0)
        readers = [Reader(world, core, scenario.seed + number, _QUESTIONS, wait) for number, wait in enumerate(waits)]
        try:
            loop.run_until_complete(loop.outside.run(_story(world, scenario, readers)))
        except TimeoutError as error:
            world.wrong.append(f"it took too long: {error}")
        finally:
            outcome.seconds, outcome.commands, outcome.digest = loop.now, server.commands, server.log.hexdigest()
            outcome.published, outcome.wrong = world.writer.number, world.wrong
            outcome.reached = world.reached + reached.times
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(loop.outside.run(world.end()))
            loop.close()
    outcome.verdict = check(world.writer, cast(Any, readers))
    return outcome


@contextmanager
def _alone(outcome: Outcome, loop: Loop, reached: Reached) -> Iterator[None]:
    """Keep what programs print and log, and let no garbage collector decide when something happens."""
    notes, root, printed = _Notes(outcome, loop), logging.getLogger(), sys.stdout
    level, handlers, root.handlers = root.level, root.handlers, [notes, reached]
    root.setLevel(logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    sys.stdout = io.StringIO()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        root.handlers, sys.stdout = handlers, printed
        root.setLevel(level)
        for collector in [one for one in REGISTRY._collector_to_names if isinstance(one, Watch)]:
            REGISTRY.unregister(collector)


class _Notes(logging.Handler):
    def __init__(self, outcome: Outcome, loop: Loop) -> None:
        super().__init__(logging.WARNING)
        self._outcome, self._loop = outcome, loop

    def emit(self, record: logging.LogRecord) -> None:
        about = {name: value for name, value in vars(record).items() if name in _LOGGED}
        host = (process() or self._loop.outside).host
        text = f"{self._loop.now:9.3f} {host}: {record.getMessage()} {about or ''}"
        if record.exc_info and record.exc_info[1]:
            text += f" ({record.exc_info[1]!r})"
        self._outcome.log.append(text)


async def _story(world: World, scenario: Scenario, readers: Sequence[Reader]) -> None:
    world.start()
    core, writing = world.core, Random(scenario.seed)
    await world.publish(core.first())
    await world.catch_up()
    works = [probe(world), _write(world, writing), *(reader.read() for reader in readers)]
    if scenario.seed % _OPERATED_SHARE == 0:
        works.append(operate(world, Random(scenario.seed)))
    tasks = [world.loop.outside.run(work) for work in works]
    operator = Reader(world, core, scenario.seed, _QUESTIONS)
    for step in scenario.steps:
        await asyncio.sleep(step.quiet)
        await strike(world, step, operator)
    await asyncio.sleep(1.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for at, log in world.cluster.logs.items():  # each partition ends with the marker of a transaction
        world.cluster.append(at, [core.never(resources.LEAD)], _LAST_PRODUCER)
        log.finish(_LAST_PRODUCER, commits=False)
    await world.catch_up()
    world.wrong += [str(task.exception()) for task in tasks if not task.cancelled() and task.exception()]
    await _judge(world, operator)


async def _write(world: World, random: Random) -> None:
    """Publish changes at rates that differ, and rest now and then."""
    changes = world.core.more()
    while True:
        rate, until = random.choice(_RATES), world.loop.now + random.uniform(1.0, 6.0)
        while world.loop.now < until:
            await world.publish(islice(changes, max(1, round(rate * _TICK_SECONDS))))
            await asyncio.sleep(_TICK_SECONDS)
        await asyncio.sleep(random.choice((0.0, 0.5, 3.0)))


async def _judge_letters(world: World, gone: Sequence[str]) -> None:
    """Check that each bad record has a dead letter, except those of organizations that are deleted."""
    owners = tuple(owner.encode() for owner in gone)
    wanted = sorted(key for key in world.leadview.topics.bad_keys if not key.startswith(owners))
    client = world.server.client

    def listed() -> list[bytes]:
        return sorted(orjson.loads(letter)["key"].encode() for letter in client.hvals(names.DEAD_LETTERS))

    with suppress(TimeoutError):
        await world.wait_until(lambda: listed() == wanted, "the dead letters are right")
    if (letters := listed()) != wanted:
        world.wrong.append(f"dead letters of {letters}, and not of {wanted}")


async def _judge(world: World, reader: Reader) -> None:
    """Compare all that Redis holds in the end with the reference."""
    looked_at = cast(ChaosWorld, world)
    published = world.history.published
    access = {owner: published.of((resources.ORGANIZATION, owner, owner))[-1].value for owner in ORGANIZATIONS}
    gone = [owner for owner, value in access.items() if value is None]
    deleted = [names.of_organization(names.organization(owner)) for owner in gone]
    client = world.server.client

    def left() -> list[Any]:
        return [key for owner in deleted for key in client.scan_iter(owner, count=5000)]

    await _judge_letters(world, gone)
    with suppress(TimeoutError):
        await world.wait_until(lambda: not left(), "nothing of the deleted organizations is left")
    world.wrong += [f"{len(keys)} keys of deleted organizations: {keys[:5]}" for keys in [left()] if keys]
    world.wrong += [*chaos._wrong_documents(looked_at), *ChaosWorld.unexplained_keys(looked_at)]
    for owner in ORGANIZATIONS:
        for key_id in KEY_IDS:
            key = (resources.API_KEY, owner, key_id)
            is_active = published.of(key)[-1].value == "active"
            expected = {None: 401, "off": 403}.get(access[owner], 200) if is_active else REFUSED
            for number in range(len(world.workers)):
                status = await _asked(world, reader, number, key, expected)
                if status != expected:
                    world.wrong.append(f"key {key_id[-4:]} of {owner[-4:]}: {status}, and not {expected}")


async def _asked(world: World, reader: Reader, number: int, key: Entity, expected: int) -> int:
    """Returns the status of an answer: that a key was refused is remembered for half a second."""
    until = world.loop.now + 2.0
    while True:
        answer = await reader.ask(number, key, (resources.LEAD, key[1], world.core.leads[0]))
        status = 200 if answer.status == 304 else answer.status
        if status == expected or world.loop.now > until:
            return status
        await asyncio.sleep(_TICK_SECONDS)
