"""The nemesis: one fault after the other. Each lasts for a while and ends, and then everything has to recover. And an
operator, who rebuilds, promotes, rolls back and drops repeatedly meanwhile.
"""

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial as bind
from random import Random
from typing import Literal

from msgspec import Struct

from devstack.child import Child
from devstack.fault_proxy import Faults
from devstack.programs import PROJECTOR
from devstack.threads import Repeating
from tests.chaos import break_kafka, break_others, break_redis
from tests.chaos.break_kafka import coordinator, leader
from tests.chaos.break_others import any_api, any_projector, projectors_end, stands_still
from tests.chaos.break_redis import always, late, proxied, sliced
from tests.chaos.history import Window, now
from tests.chaos.world import REBUILD, World

_QUIET_SECONDS = (1.0, 1.0, 1.0, 6.0)
"""Longer now and then: only in a quiet time is it judged whether a change of access is late."""

Needs = Literal["", "groups", "ways", "brokers", "address", "clock", "sentinel", "cluster"]


class Fault(Struct, frozen=True):
    """Something that breaks. `strike` breaks it on entry and repairs it on exit.

    `allows`: the statuses that readers may get meanwhile, besides those that the history explains (0: no answer).
    `seconds`: the shortest and the longest time that it lasts. `needs`: it is used only if Kafka has groups of several
    members, and topics that can be changed; if proxies are on the way to Kafka; if brokers may be harmed; if Redis has
    an address of its own, behind a proxy; if its clock can be changed, too; if a Sentinel says which server Redis is;
    or if it is a cluster.
    """

    name: str
    strike: Callable[[World, Random], AbstractContextManager[None]]
    allows: frozenset[int] = frozenset()
    seconds: tuple[float, float] = (0.3, 1.5)
    needs: Needs = ""
    pairing: Literal["", "inside", "beside", "around"] = ""
    """With another fault: it may begin and end during one, or one may begin and end during it, or has to (`around`)."""


NO_ANSWER, UNAVAILABLE = frozenset({0}), frozenset({503})
# A bucket that is full only much later is taken for an empty one: its limit was lowered, or the clock was set back.
LIMITED = frozenset({429})
_ZOMBIE_SECONDS = (4.0, 6.0)  # two or three times as long as a session of a consumer
_AT_ONCE = (0.0, 0.1)
_NOTHING, _STALLED, _REFUSING = always(Faults()), always(Faults(stalled=True)), always(Faults(refusing=True))

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("projector-killed", bind(projectors_end, Child.kill, 1), pairing="beside"),
        Fault("projectors-killed", bind(projectors_end, Child.kill, 99)),
        Fault("projector-stopped", bind(projectors_end, Child.stop, 1)),
        Fault("projector-paused", bind(stands_still, any_projector), seconds=(0.2, 1.0), pairing="beside"),
        Fault("projector-zombie", bind(stands_still, any_projector), seconds=_ZOMBIE_SECONDS, pairing="beside"),
        Fault("api-killed", break_others.api_killed, NO_ANSWER, pairing="inside"),
        Fault("api-paused", bind(stands_still, any_api), NO_ANSWER | UNAVAILABLE),
        Fault("redis-killed", break_redis.killed, needs="address", pairing="inside"),
        Fault("redis-paused", bind(stands_still, break_redis.unavailable), needs="address", pairing="inside"),
        Fault("redis-went-back", break_redis.went_back, seconds=(0.5, 4.0), needs="address", pairing="inside"),
        Fault("redis-emptied", break_redis.redis_emptied, UNAVAILABLE, pairing="inside"),
        Fault("redis-full", break_redis.redis_full, seconds=(1.0, 3.0), pairing="inside"),
        Fault("disk-full", break_redis.disk_full, seconds=(1.0, 3.0), pairing="inside"),
        Fault("redis-evicted", break_redis.redis_evicted, seconds=_AT_ONCE),
        Fault("clock-jumped", break_redis.clock_jumped, LIMITED, (1.0, 4.0), needs="clock"),
        Fault("redis-demoted", break_redis.redis_demoted, UNAVAILABLE, needs="address"),
        Fault("redis-failover", break_redis.failover, UNAVAILABLE, (0.5, 3.0), needs="address", pairing="inside"),
        Fault(
            "sentinel-failover",
            break_redis.sentinel_failover,
            UNAVAILABLE,
            (0.5, 3.0),
            needs="sentinel",
            pairing="inside",
        ),
        Fault("redis-two-masters", break_redis.two_masters, UNAVAILABLE, needs="sentinel", pairing="inside"),
        Fault("scripts-flushed", break_redis.scripts_flushed),
        Fault("shard-emptied", break_redis.shard_emptied, needs="cluster", pairing="inside"),
        Fault("shard-went-back", break_redis.went_back, seconds=(0.5, 4.0), needs="cluster", pairing="inside"),
        Fault("shard-failover", break_redis.shard_failover, seconds=(0.5, 3.0), needs="cluster", pairing="inside"),
        Fault("shard-killed", break_redis.killed, needs="cluster", pairing="inside"),
        Fault("shard-paused", bind(stands_still, break_redis.unavailable), needs="cluster", pairing="inside"),
        Fault("shard-lost", break_redis.shard_lost, seconds=(0.5, 3.0), needs="cluster"),
        Fault("copy-moved", break_redis.copy_moved, seconds=(1.0, 3.0), needs="cluster", pairing="inside"),
        Fault("organization-moved", break_redis.organization_moved, needs="cluster", pairing="inside"),
        Fault("latency", bind(proxied, late(0.1), late(0.3)), seconds=(1.0, 3.0), needs="address", pairing="inside"),
        Fault(
            "sliced",
            bind(proxied, sliced(1, 7), sliced(50, 400)),
            seconds=(1.0, 3.0),
            needs="address",
            pairing="inside",
        ),
        Fault("api-stalled", bind(proxied, _STALLED, _NOTHING), UNAVAILABLE, needs="address"),
        Fault("projector-stalled", bind(proxied, _NOTHING, _STALLED), seconds=(0.5, 4.0), needs="address"),
        Fault("refused", bind(proxied, _REFUSING, _REFUSING), UNAVAILABLE, needs="address", pairing="inside"),
        Fault("reset", break_redis.reset, UNAVAILABLE, needs="address", pairing="inside"),
        Fault("half-closed", break_redis.half_closed, UNAVAILABLE, needs="address", pairing="inside"),
        Fault("partitions-raised", break_kafka.partitions_raised, UNAVAILABLE, needs="groups", pairing="beside"),
        Fault("topic-recreated", break_kafka.topic_recreated, seconds=_AT_ONCE, needs="groups"),
        Fault("deletes-missed", break_kafka.deletes_missed, seconds=_AT_ONCE, needs="groups"),
        Fault("records-missed", break_kafka.records_missed, seconds=_AT_ONCE, needs="groups"),
        Fault("published-late", break_kafka.published_late, UNAVAILABLE, _AT_ONCE, needs="groups"),
        Fault("transaction-open", break_kafka.transaction_open, seconds=(1.0, 4.0), needs="groups"),
        Fault("other-cluster", break_kafka.other_cluster, seconds=_AT_ONCE, needs="groups"),
        Fault("kafka-cut", break_kafka.cut, seconds=(1.0, 6.0), needs="ways", pairing="beside"),
        Fault("rolled-back", break_others.rolled_back, needs="groups", pairing="beside"),
        Fault("dropped-asleep", break_others.dropped_asleep, pairing="beside"),
        Fault("command-suspended", break_others.command_suspended, pairing="around"),
        Fault("greedy-tenant", break_others.greedy_tenant, seconds=(2.0, 4.0)),
        Fault(
            "leader-killed",
            bind(break_kafka.broker_killed, leader),
            seconds=(1.0, 5.0),
            needs="brokers",
            pairing="beside",
        ),
        Fault(
            "coordinator-killed",
            bind(break_kafka.broker_killed, coordinator),
            seconds=(1.0, 5.0),
            needs="brokers",
            pairing="beside",
        ),
        Fault(
            "coordinator-paused",
            break_kafka.coordinator_paused,
            seconds=(1.0, 6.0),
            needs="brokers",
            pairing="beside",
        ),
    )
}


def run(
    world: World, faults: Sequence[Fault], seconds: float, random: Random, *, pace: float = 1.0, pairs: float = 0.0
) -> None:
    """Use these faults repeatedly for this time, in random order: each one at least once, and none twice before all
    others. Every duration is multiplied by `pace`. `pairs` is the share of faults during which another one begins and
    ends, among those that allow it. Raises TimeoutError if something does not recover.
    """
    until, count, left = now() + seconds, 0, list[Fault]()
    inside = [fault for fault in faults if fault.pairing == "inside"]
    while count < len(faults) or now() < until:
        left = left or random.sample(faults, len(faults))
        chosen = [left.pop()]
        share = {"beside": pairs, "around": 1.0}.get(chosen[0].pairing, 0.0)
        if inside and random.random() < share:
            chosen.append(random.choice(inside))
        strike(world, chosen, random, pace)
        time.sleep(random.choice(_QUIET_SECONDS) * pace)
        count += 1


def strike(world: World, faults: Sequence[Fault], random: Random, pace: float) -> None:
    """Begin these faults one after the other, end them in the opposite order, and wait until all is recovered."""
    windows = [Window(fault.name, fault.allows, now()) for fault in faults]
    world.history.windows += windows
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault.strike(world, random))
            time.sleep(random.uniform(*fault.seconds) * pace)
    healed_at, world.mark = now(), dict(world.leadview.topics.end_offsets)
    for window in windows:
        window.healed_at = healed_at
    name = " with ".join(fault.name for fault in faults)
    try:
        world.catch_up()
        world.wait_until(world.is_settled, "each partition is read by one of the projectors")
    except TimeoutError as error:
        raise TimeoutError(f"after {name}: {error}") from error
    recovered_at = now()
    for window in windows:
        window.recovered_at = recovered_at
    for outage in world.history.outages:
        outage.ended_at = min(outage.ended_at, recovered_at)
    with world.operating:
        world.wrong += [f"after {name}: {keys}" for keys in world.unexplained_keys()]


_KILLED_SHARE = 0.15
"""Of the commands of the operator, the share before which the same command is begun and killed."""


class Operator(Repeating):
    """Runs until `stop`. It counts what succeeded, and says what was refused although there was no fault."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__()
        self._world = world
        self._random = Random(seed)

    def _work(self) -> None:
        for words in (REBUILD, ["promote"], ["rollback"], ["rollback"], ["drop"]):
            if self._ended.wait(self._random.uniform(0.0, 1.0)):
                return
            if self._random.random() < _KILLED_SHARE:
                with self._world.operating:
                    child = self._world.leadview.start(*words, command=PROJECTOR)
                    self._ended.wait(self._random.uniform(0.5, 3.0))
                    child.kill()
                self._world.done[f"{words[0]} killed"] += 1
            with self._world.operating:
                self._run(words)
        with self._world.operating:
            self._run(self._world.accepting)

    def _run(self, words: Sequence[str]) -> None:
        began_at = now()
        try:
            done = self._world.command(*words)
        except subprocess.TimeoutExpired:
            return  # because of a fault: every command can be run again
        if done.status == 0:
            self._world.done[words[0]] += 1
        elif generations := re.findall(r"`(drop \d+)`", done.stderr):
            self._run(self._random.choice(generations).split())
        elif " differ" in done.stdout and self._world.history.healthy(began_at, now()):
            self._world.wrong.append(f"{words}: {done.stdout}{done.stderr[-1000:]}")
