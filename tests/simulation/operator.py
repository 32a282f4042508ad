"""An operator of a world: rebuilds, promotes, rolls back and drops, and now and then is killed or suspended."""

import asyncio
from math import inf
from random import Random

from operate.commands import status
from operate.commands.arguments import parse
from operate.commands.operator import act_of
from operate.main import _execute
from projector.errors import ProjectorError
from projector.redis.store import Store
from tests.chaos.history import Loss
from tests.chaos.world import REBUILD
from tests.simulation.world import RECOVER_SECONDS, World

_COMMANDS = (REBUILD, ("promote",), ("rollback",), ("rollback",), ("drop",))
_KILLED_SHARE, _SUSPENDED_SHARE = 0.15, 0.15
_MOST_SECONDS, _TOLD_SECONDS = 240.0, 10.0


async def operate(world: World, random: Random) -> None:
    """Run commands until it is cancelled."""
    while True:
        for words in _COMMANDS:
            await asyncio.sleep(random.uniform(0.0, 2.0))
            await _command(world, random, words)


async def problems(world: World) -> list[str]:
    """Returns the kinds of the problems that `status` names now."""

    async def read() -> list[str]:
        store = Store(world.settings)
        try:
            return (await status.read(store, world.settings)).kinds
        finally:
            await store.close()

    process = world.loop.start("operator")
    try:
        return await process.run(read())
    finally:
        world.kill(process)


async def judge(world: World, kind: str, began_at: float) -> None:
    """Check that `status` names a break soon, and that projectors end it. Until then, wrong answers are explained."""
    until = world.loop.now + _TOLD_SECONDS
    while kind not in await problems(world):
        if world.loop.now > until:
            world.wrong.append(f"status does not name {kind} within {_TOLD_SECONDS:.0f} s")
            return
    while kind in await problems(world):
        await asyncio.sleep(1.0)
        if world.loop.now > until + RECOVER_SECONDS:
            raise TimeoutError(f"{kind} does not end")
    world.reached[kind] += 1
    world.history.losses.append(Loss(began_at, world.loop.now, -inf, named=True))


async def _command(world: World, random: Random, words: tuple[str, ...]) -> None:
    began_at = world.loop.now
    process = world.loop.start("operator")
    arguments = parse(words)
    task = process.run(_execute(arguments, world.settings, act_of(arguments, words)))
    chance, moment = random.random(), random.uniform(0.0, 1.5)
    try:
        if chance < _KILLED_SHARE + _SUSPENDED_SHARE:
            await asyncio.wait([task], timeout=moment)
            if chance < _KILLED_SHARE:
                world.reached[f"{words[0]} killed"] += not task.done()
                return
            process.stop()
            await asyncio.sleep(random.choice((1.0, 5.0, 20.0)))
            process.resume()
        done, _ = await asyncio.wait([task], timeout=_MOST_SECONDS)
        if not done:
            world.wrong.append(f"{words[0]} has not ended after {_MOST_SECONDS:.0f} s")
            return
        error = task.exception()
        world.reached[words[0] if error is None else f"{words[0]} refused"] += 1
        if error and not isinstance(error, ProjectorError | ValueError):
            world.wrong.append(f"{words[0]} has failed: {error!r}")
        elif " documents differ" in str(error) and world.history.healthy(began_at, world.loop.now):
            world.wrong.append(f"{words[0]}: {error}")
    finally:
        world.kill(process)
