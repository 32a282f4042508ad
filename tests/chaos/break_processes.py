"""Faults of projectors and the API. Each begins on entry and ends on exit."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.chaos.world import PROJECTORS, World


@contextmanager
def projector_killed(world: World, random: Random) -> Iterator[None]:
    name = random.choice(PROJECTORS)
    world.projectors[name].kill()
    yield
    world.start_projector(name)


@contextmanager
def projectors_killed(world: World, _: Random) -> Iterator[None]:
    for projector in world.projectors.values():
        projector.kill()
    yield
    for name in PROJECTORS:
        world.start_projector(name)


@contextmanager
def projector_stopped(world: World, random: Random) -> Iterator[None]:
    """As a deployment does."""
    name = random.choice(PROJECTORS)
    world.projectors[name].stop()
    yield
    world.start_projector(name)


@contextmanager
def projector_paused(world: World, random: Random) -> Iterator[None]:
    projector = world.projectors[random.choice(PROJECTORS)]
    projector.pause()
    yield
    projector.resume()


@contextmanager
def api_killed(world: World, _: Random) -> Iterator[None]:
    world.api.kill()
    yield
    world.start_api()


@contextmanager
def api_paused(world: World, _: Random) -> Iterator[None]:
    world.api.pause()
    yield
    world.api.resume()
