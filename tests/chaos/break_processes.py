"""Faults of projectors and the API. Each begins on entry and ends on exit."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.chaos.world import World


@contextmanager
def projector_killed(world: World, random: Random) -> Iterator[None]:
    name = random.choice([*world.projectors])
    world.projectors[name].kill()
    yield
    world.start_projector(name)


@contextmanager
def projectors_killed(world: World, _: Random) -> Iterator[None]:
    for projector in world.projectors.values():
        projector.kill()
    yield
    for name in [*world.projectors]:
        world.start_projector(name)


@contextmanager
def projector_stopped(world: World, random: Random) -> Iterator[None]:
    """As a deployment does."""
    name = random.choice([*world.projectors])
    world.projectors[name].stop()
    yield
    world.start_projector(name)


@contextmanager
def projector_paused(world: World, random: Random) -> Iterator[None]:
    projector = world.projectors[random.choice([*world.projectors])]
    projector.pause()
    yield
    projector.resume()


@contextmanager
def api_killed(world: World, random: Random) -> Iterator[None]:
    number = random.randrange(len(world.apis))
    world.apis[number].kill()
    yield
    world.restart_api(number)


@contextmanager
def api_paused(world: World, random: Random) -> Iterator[None]:
    """The process resumes with all that it believed."""
    api = random.choice(world.apis)
    api.pause()
    yield
    api.resume()
