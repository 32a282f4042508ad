"""Faults of the network between Redis and the others. Each begins on entry and ends on exit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.chaos.proxy import CALM, FaultProxy, Mood
from tests.chaos.world import World


@contextmanager
def _in_mood(proxy: FaultProxy, mood: Mood) -> Iterator[None]:
    proxy.mood = mood
    yield
    proxy.mood = CALM


@contextmanager
def latency(world: World, random: Random) -> Iterator[None]:
    late, later = Mood(latency=random.uniform(0.01, 0.1)), Mood(latency=random.uniform(0.01, 0.3))
    with _in_mood(world.to_api, late), _in_mood(world.to_projector, later):
        yield


@contextmanager
def sliced(world: World, random: Random) -> Iterator[None]:
    small, larger = Mood(slice=random.randint(1, 7)), Mood(slice=random.randint(50, 400))
    with _in_mood(world.to_api, small), _in_mood(world.to_projector, larger):
        yield


@contextmanager
def api_stalled(world: World, _: Random) -> Iterator[None]:
    with _in_mood(world.to_api, Mood(stalled=True)):
        yield


@contextmanager
def projector_stalled(world: World, _: Random) -> Iterator[None]:
    with _in_mood(world.to_projector, Mood(stalled=True)):
        yield


@contextmanager
def refused(world: World, _: Random) -> Iterator[None]:
    for proxy in (world.to_api, world.to_projector):
        proxy.mood = Mood(refusing=True)
        proxy.reset()
    yield
    world.to_api.mood = world.to_projector.mood = CALM


@contextmanager
def reset(world: World, random: Random) -> Iterator[None]:
    for _ in range(random.randint(1, 4)):
        world.to_api.reset()
        world.to_projector.reset()
        time.sleep(random.uniform(0.05, 0.3))
    yield


@contextmanager
def half_closed(world: World, _: Random) -> Iterator[None]:
    world.to_api.half_close()
    world.to_projector.half_close()
    yield
