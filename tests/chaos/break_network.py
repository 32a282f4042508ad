"""Faults of the network between Redis and the others. Each begins on entry and ends on exit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from devstack.fault_proxy import Faults, FaultyProxy
from tests.chaos.world import World


@contextmanager
def _with(proxy: FaultyProxy, faults: Faults) -> Iterator[None]:
    proxy.faults = faults
    yield
    proxy.faults = Faults()


@contextmanager
def latency(world: World, random: Random) -> Iterator[None]:
    late, later = (Faults(delay_seconds=random.uniform(0.01, most), both_ways=True) for most in (0.1, 0.3))
    with _with(world.to_api, late), _with(world.to_projector, later):
        yield


@contextmanager
def sliced(world: World, random: Random) -> Iterator[None]:
    small, larger = (Faults(slice_bytes=random.randint(*sizes), both_ways=True) for sizes in ((1, 7), (50, 400)))
    with _with(world.to_api, small), _with(world.to_projector, larger):
        yield


@contextmanager
def api_stalled(world: World, _: Random) -> Iterator[None]:
    with _with(world.to_api, Faults(stalled=True)):
        yield


@contextmanager
def projector_stalled(world: World, _: Random) -> Iterator[None]:
    with _with(world.to_projector, Faults(stalled=True)):
        yield


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
