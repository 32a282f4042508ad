"""The nemesis: one fault after the other, each at work for a while, mended, and waited for until all is well again."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from random import Random
from typing import Literal

from msgspec import Struct

from tests.chaos.history import Window, now
from tests.chaos.world import World

_QUIET_SECONDS = 1.0

Needs = Literal["", "brokers", "address", "sentinel"]
Strike = Callable[[World, Random], AbstractContextManager[None]]


class Fault(Struct, frozen=True):
    """Something that breaks. `strike` breaks it on entry and mends it on exit.

    `allows`: the statuses that readers may get meanwhile, besides those that the history explains (0: no answer).
    `seconds`: how long it is at work, from and to. `needs`: only where brokers may be harmed; where
    Redis has an address of its own, with a proxy before it; where a Sentinel says which server it is.
    """

    name: str
    strike: Strike
    allows: frozenset[int] = frozenset()
    seconds: tuple[float, float] = (0.3, 1.5)
    needs: Needs = ""
    beside: bool = False
    """Another fault may be at work inside of it."""
    inside: bool = False
    """It may be at work inside of another one."""


class Nemesis:
    """Works through `faults` in an order by chance, again and again; each once before any comes twice.

    `pairs` is the share of those faults, where they allow it, in which another one is at work at the same time.
    """

    def __init__(
        self, world: World, faults: Sequence[Fault], seed: int, *, pace: float = 1.0, pairs: float = 0.0
    ) -> None:
        """`pace` makes everything last so much longer, or shorter."""
        self._world = world
        self._faults = faults
        self._random = Random(seed)
        self._pace = pace
        self._pairs = pairs

    def run(self, seconds: float) -> None:
        """For so long, and each fault once at least. Raises TimeoutError where something stays broken."""
        until = now() + seconds
        for count, fault in enumerate(chain.from_iterable(self._rounds())):
            if count >= len(self._faults) and now() >= until:
                return
            self.strike([fault, *self._inside(fault)])
            time.sleep(_QUIET_SECONDS * self._pace)

    def strike(self, faults: Sequence[Fault]) -> None:
        """Break this, and inside of it the next; mend in the opposite order; wait until all is well again."""
        world, windows = self._world, [Window(fault.name, fault.allows, now()) for fault in faults]
        world.history.windows += windows
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault.strike(world, self._random))
                time.sleep(self._random.uniform(*fault.seconds) * self._pace)
        healed_at = now()
        try:
            world.catch_up()
        except TimeoutError as error:
            raise TimeoutError(f"after {' with '.join(fault.name for fault in faults)}: {error}") from error
        for window in windows:
            window.healed_at, window.recovered_at = healed_at, now()

    def _inside(self, fault: Fault) -> list[Fault]:
        if not fault.beside or self._random.random() >= self._pairs:
            return []
        return self._random.sample([other for other in self._faults if other.inside], 1)

    def _rounds(self) -> Iterator[list[Fault]]:
        while True:
            yield self._random.sample(self._faults, len(self._faults))
