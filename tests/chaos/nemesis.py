"""The nemesis: one fault after the other, each at work for a while, mended, and waited for until all is well again."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from random import Random

from msgspec import Struct

from tests.chaos.history import Window, now
from tests.chaos.world import World

_QUIET_SECONDS = 1.0

Strike = Callable[[World, Random], AbstractContextManager[None]]


class Fault(Struct, frozen=True):
    """Something that breaks. `strike` breaks it on entry and mends it on exit.

    `allows`: the statuses that readers may get meanwhile, besides those that the history explains (0: no answer).
    `seconds`: how long it is at work, from and to. `needs_brokers`: only where brokers may be harmed.
    """

    name: str
    strike: Strike
    allows: frozenset[int] = frozenset()
    seconds: tuple[float, float] = (0.3, 1.5)
    needs_brokers: bool = False


class Nemesis:
    """Works through `faults` in an order by chance, again and again; each once before any comes twice."""

    def __init__(self, world: World, faults: Sequence[Fault], seed: int, *, pace: float = 1.0) -> None:
        """`pace` makes everything last so much longer, or shorter."""
        self._world = world
        self._faults = faults
        self._random = Random(seed)
        self._pace = pace

    def run(self, seconds: float) -> None:
        """For so long, and each fault once at least. Raises TimeoutError where something stays broken."""
        until = now() + seconds
        for count, fault in enumerate(chain.from_iterable(self._rounds())):
            if count >= len(self._faults) and now() >= until:
                return
            self.strike(fault)
            time.sleep(_QUIET_SECONDS * self._pace)

    def strike(self, fault: Fault) -> None:
        world = self._world
        window = Window(fault.name, fault.allows, now())
        world.history.windows.append(window)
        with fault.strike(world, self._random):
            time.sleep(self._random.uniform(*fault.seconds) * self._pace)
        window.healed_at = now()
        world.catch_up()
        window.recovered_at = now()

    def _rounds(self) -> Iterator[list[Fault]]:
        while True:
            yield self._random.sample(self._faults, len(self._faults))
