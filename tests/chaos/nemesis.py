"""The nemesis: one fault after the other. Each lasts for a while and ends, and then everything has to recover."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from random import Random
from typing import Literal

from msgspec import Struct

from devstack.child import Child
from tests.chaos import break_kafka, break_redis, operators
from tests.chaos.break_processes import any_api, any_projector, api_killed, greedy_tenant, projectors_end, stands_still
from tests.chaos.break_redis import killed, late, proxied, sliced, stalled, unavailable, went_back
from tests.chaos.history import Window, now
from tests.chaos.world import Strike, World

_QUIET_SECONDS = (1.0, 1.0, 1.0, 6.0)
"""Longer now and then: only in a quiet time is it judged whether a change of access is late."""

Needs = Literal["", "brokers", "address", "sentinel", "cluster"]


class Fault(Struct, frozen=True):
    """Something that breaks. `strike` breaks it on entry and repairs it on exit.

    `allows`: the statuses that readers may get meanwhile, besides those that the history explains (0: no answer).
    `seconds`: the shortest and the longest time that it lasts. `needs`: it is used only if brokers may be harmed; if
    Redis has an address of its own, behind a proxy; if a Sentinel says which server Redis is; or if it is a cluster.
    """

    name: str
    strike: Strike
    allows: frozenset[int] = frozenset()
    seconds: tuple[float, float] = (0.3, 1.5)
    needs: Needs = ""
    beside: bool = False
    """Another fault may begin and end during this one."""
    inside: bool = False
    """It may begin and end during another one."""
    alone: bool = True
    """It may also begin and end without another one during it."""
    groups: bool = False
    """It needs a Kafka whose groups have several members, and whose topics can be changed."""


NO_ANSWER, UNAVAILABLE = frozenset({0}), frozenset({503})
_SESSION_SECONDS = 2.0

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("projector-killed", projectors_end(Child.kill), beside=True),
        Fault("projectors-killed", projectors_end(Child.kill, all_of_them=True)),
        Fault("projector-stopped", projectors_end(Child.stop)),
        Fault("projector-paused", stands_still(any_projector), seconds=(0.2, 1.0), beside=True),
        Fault(
            "projector-zombie",
            stands_still(any_projector),
            seconds=(2 * _SESSION_SECONDS, 3 * _SESSION_SECONDS),
            beside=True,
        ),
        Fault("api-killed", api_killed, NO_ANSWER, inside=True),
        Fault("api-paused", stands_still(any_api), NO_ANSWER | UNAVAILABLE),
        Fault("redis-killed", killed, inside=True, needs="address"),
        Fault("redis-paused", stands_still(unavailable), inside=True, needs="address"),
        Fault("redis-went-back", went_back, seconds=(0.5, 4.0), inside=True, needs="address"),
        Fault("redis-emptied", break_redis.redis_emptied, UNAVAILABLE, inside=True),
        Fault("redis-full", break_redis.redis_full, seconds=(1.0, 3.0), inside=True),
        Fault("redis-demoted", break_redis.redis_demoted, UNAVAILABLE, needs="address"),
        Fault("redis-failover", break_redis.failover, UNAVAILABLE, seconds=(0.5, 3.0), inside=True, needs="address"),
        Fault(
            "sentinel-failover",
            break_redis.sentinel_failover,
            UNAVAILABLE,
            seconds=(0.5, 3.0),
            inside=True,
            needs="sentinel",
        ),
        Fault("redis-two-masters", break_redis.two_masters, UNAVAILABLE, inside=True, needs="sentinel"),
        Fault("scripts-flushed", break_redis.scripts_flushed),
        Fault("shard-emptied", break_redis.shard_emptied, inside=True, needs="cluster"),
        Fault("shard-went-back", went_back, seconds=(0.5, 4.0), inside=True, needs="cluster"),
        Fault("shard-failover", break_redis.shard_failover, seconds=(0.5, 3.0), inside=True, needs="cluster"),
        Fault("shard-killed", killed, inside=True, needs="cluster"),
        Fault("shard-paused", stands_still(unavailable), inside=True, needs="cluster"),
        Fault("shard-lost", break_redis.shard_lost, seconds=(0.5, 3.0), needs="cluster"),
        Fault("copy-moved", break_redis.copy_moved, seconds=(1.0, 3.0), inside=True, needs="cluster"),
        Fault("organization-moved", break_redis.organization_moved, inside=True, needs="cluster"),
        Fault("latency", proxied(late(0.1), late(0.3)), seconds=(1.0, 3.0), inside=True, needs="address"),
        Fault("sliced", proxied(sliced(1, 7), sliced(50, 400)), seconds=(1.0, 3.0), inside=True, needs="address"),
        Fault("api-stalled", proxied(api=stalled), UNAVAILABLE, needs="address"),
        Fault("projector-stalled", proxied(projectors=stalled), seconds=(0.5, 4.0), needs="address"),
        Fault("refused", break_redis.refused, UNAVAILABLE, inside=True, needs="address"),
        Fault("reset", break_redis.reset, UNAVAILABLE, inside=True, needs="address"),
        Fault("half-closed", break_redis.half_closed, UNAVAILABLE, inside=True, needs="address"),
        Fault("partitions-raised", break_kafka.partitions_raised, beside=True, groups=True),
        Fault("topic-recreated", break_kafka.topic_recreated, seconds=(0.0, 0.1), groups=True),
        Fault("rolled-back", operators.rolled_back, beside=True, groups=True),
        Fault("dropped-asleep", operators.dropped_asleep, beside=True),
        Fault("command-suspended", operators.command_suspended, beside=True, alone=False),
        Fault("greedy-tenant", greedy_tenant, seconds=(2.0, 4.0)),
        Fault("leader-killed", break_kafka.leader_killed, seconds=(1.0, 5.0), needs="brokers", beside=True),
        Fault("coordinator-killed", break_kafka.coordinator_killed, seconds=(1.0, 5.0), needs="brokers", beside=True),
        Fault("coordinator-paused", break_kafka.coordinator_paused, seconds=(1.0, 6.0), needs="brokers", beside=True),
    )
}


class Nemesis:
    """Uses `faults` repeatedly, in random order: each one once before any is used twice.

    `pairs` is the share of faults during which another one begins and ends, among those that allow it.
    """

    def __init__(
        self, world: World, faults: Sequence[Fault], seed: int, *, pace: float = 1.0, pairs: float = 0.0
    ) -> None:
        """Every duration is multiplied by `pace`."""
        self._world = world
        self._faults = faults
        self._random = Random(seed)
        self._pace = pace
        self._pairs = pairs

    def run(self, seconds: float) -> None:
        """Run for this time, and use each fault at least once. Raises TimeoutError if something does not recover."""
        until = now() + seconds
        for count, fault in enumerate(chain.from_iterable(self._rounds())):
            if count >= len(self._faults) and now() >= until:
                return
            self.strike([fault, *self._inside(fault)])
            time.sleep(self._random.choice(_QUIET_SECONDS) * self._pace)

    def strike(self, faults: Sequence[Fault]) -> None:
        """Begin these faults one after the other, end them in the opposite order, and wait until all is recovered."""
        world, windows = self._world, [Window(fault.name, fault.allows, now()) for fault in faults]
        world.history.windows += windows
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault.strike(world, self._random))
                time.sleep(self._random.uniform(*fault.seconds) * self._pace)
        healed_at, world.mark = now(), dict(world.leadview.topics.end_offsets)
        for window in windows:
            window.healed_at = healed_at
        name = " with ".join(fault.name for fault in faults)
        try:
            world.catch_up()
            world.wait_until(world.is_settled, "each partition is read by one of the projectors")
        except TimeoutError as error:
            raise TimeoutError(f"after {name}: {error}") from error
        for window in windows:
            window.recovered_at = world.recovered()
        with world.operating:
            world.wrong += [f"after {name}: {keys}" for keys in world.unexplained_keys()]

    def _inside(self, fault: Fault) -> list[Fault]:
        others = [other for other in self._faults if other.inside]
        if not fault.beside or not others or (fault.alone and self._random.random() >= self._pairs):
            return []
        return [self._random.choice(others)]

    def _rounds(self) -> Iterator[list[Fault]]:
        while True:
            yield self._random.sample(self._faults, len(self._faults))
