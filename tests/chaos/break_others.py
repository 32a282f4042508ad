"""Faults of processes and of operations, and a tenant that does its worst. Each begins on entry and ends on
exit.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import psutil

from devstack.child import Child
from devstack.programs import environment
from devstack.redis_server import RedisServer
from schemas import api_keys
from tests.chaos.programs import ANY, FREE, PAID
from tests.chaos.world import REBUILD, RECOVER_SECONDS, World
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.programs import asleep
from tests.harness.projectors import NEXT_MAPPING
from tests.harness.waiting import wait_until

GREEDY = (crm.uuid(0xA7), crm.uuid(0xA8), crm.uuid(0xA9), crm.uuid(0xAA))
"""On a cluster, one of them shares a shard with each of the others, more or less."""
_BLOB_BYTES = 970_000
_CONNECTIONS = 64
_LIMITS = {"key": {"quota": 100, "window_seconds": 10}, "organization": {"quota": 100, "window_seconds": 10}}
_COMMANDS = (("drop",), REBUILD, ("promote", "--force"), ("rollback",), ("verify",), ("dead-letters", "redrive"))
_KILLED_SHARE = 0.2
_MOMENTS = ((ANY, 40), ("EVALSHA", 12))
_MOMENTS_OF_A_DROP = (*_MOMENTS, ("SCAN", 4), ("UNLINK", 2))
"""Before which request a command stands still: its name, and the highest number of it."""


@contextmanager
def projectors_end(by: Callable[[Child], object], most: int, world: World, random: Random) -> Iterator[None]:
    """So many of the projectors at most end in this way, and are started again."""
    chosen = random.sample([*world.projectors], min(most, len(world.projectors)))
    for name in chosen:
        by(world.projectors[name])
    yield
    for name in chosen:
        world.start_projector(name)


@contextmanager
def stands_still(
    chosen: Callable[[World, Random], Child | RedisServer], world: World, random: Random
) -> Iterator[None]:
    """What is chosen stands still, and resumes with all that it believed."""
    with asleep(chosen(world, random)):
        yield


def any_projector(world: World, random: Random) -> Child:
    return random.choice([*world.projectors.values()])


def any_api(world: World, random: Random) -> Child:
    return random.choice([*world.apis.values()])


@contextmanager
def api_killed(world: World, random: Random) -> Iterator[None]:
    number = random.choice([*world.apis])
    world.apis[number].kill()
    yield
    # Its worker ends by itself, and closes the port.
    wait_until(lambda: not ApiServer(world.ports[number]).answers(), "nothing of the killed API listens")
    world.start_api(number)


@contextmanager
def greedy_tenant(world: World, random: Random) -> Iterator[None]:
    """Its largest document is asked for over many connections, again and again for nothing, or beyond its limit. The
    others must not notice it.
    """
    organization, manner = random.choice(GREEDY), random.choice((FREE, FREE, PAID))
    key, lead_id = api_keys.mint(organization, "9" * 30), crm.uuid(0x5002)
    # A tenant, its key and a lead of nearly the largest size, with versions that grow from time to time.
    version, contact_id = int(time.time()), crm.uuid(0x5001)
    attribution, ids = {"source": "x", "blob": "y" * _BLOB_BYTES}, dict[str, Any](organization_id=organization)
    messages = [
        crm.organization(version, id=organization, rate_limits=_LIMITS, **ids),
        crm.api_key(version, id=crm.uuid(0x5003), hash=api_keys.key_hash(key), **ids),
        crm.contact(version, id=contact_id, **ids),
        crm.lead(version, id=lead_id, contact_id=contact_id, attribution=attribution, **ids),
    ]
    with world.publishing:
        world.others |= {(message.kind, message.key): message for message in messages}
        world.leadview.publish_all(messages)
    for api in map(ApiServer, world.ports):
        world.wait_until(lambda api=api: api.get(LEADS + lead_id, key=key).status in (200, 429), "it is served")  # type: ignore[misc]
    words = ["greedy", key, LEADS + lead_id, str(_CONNECTIONS), manner, *map(str, world.ports)]
    command, log = [sys.executable, "-m", "tests.chaos.programs", *words], world.directory / "greedy.log"
    with Child(command, log=log, environment=environment()) as child:
        yield
        child.check_running()


@contextmanager
def rolled_back(world: World, _: Random) -> Iterator[None]:
    """A program with the next mapping runs beside the present one, its generation is promoted, then all goes back."""
    with world.operating:
        world.drop_all()
        deployed = world.leadview.start("run", command=NEXT_MAPPING, log="projector-next")
        # Kafka may have deleted the first records of a topic (`records_missed`), which were published again since.
        world.succeed(*REBUILD, "--force", program=NEXT_MAPPING)
        world.succeed("promote", "--allow", "leads.referrer_length", program=NEXT_MAPPING)
        yield
        world.command("rollback")  # fails if Redis was emptied meanwhile, and filled by the newer program
        world.drop_all()
        # As docs/upgrading.md describes it: the second time, only the present program writes the new generation.
        for stopping in (deployed.stop, world.drop_all):
            world.succeed(*REBUILD, "--promote", "--force")
            world.drop_all()
            stopping()


@contextmanager
def dropped_asleep(world: World, random: Random) -> Iterator[None]:
    """A generation is dropped while a projector stands still in the middle of its batch, which then continues."""
    with world.operating:
        world.drop_all()
        world.succeed(*REBUILD, "--promote", "--force")
        with asleep(random.choice([*world.projectors.values()])):
            world.succeed("drop")
            world.wrong += world.unexplained_keys()
            yield


@contextmanager
def command_suspended(world: World, random: Random) -> Iterator[None]:
    """Three operators' commands stand still between two requests, while others go on; then they continue or die.

    Whatever happened meanwhile, they must end, with a message, and must not harm what is there by then.
    """
    with world.operating:  # so that there is something to drop, and something to return to
        world.drop_all()
        world.succeed(*REBUILD, "--promote", "--force")
        second, last = random.sample((*_COMMANDS, world.accepting), 2)
        children = []
        for words, moments in ((("drop",), _MOMENTS_OF_A_DROP), (second, _MOMENTS), (last, ((ANY, 1),))):
            request, most = random.choice(moments)
            before = (request, str(random.randint(1, most)))
            program = (sys.executable, "-m", "tests.chaos.programs", "stopping", *before)
            children.append(world.leadview.start(*words, command=program))
        world.wait_until(lambda: all(map(_stands_still, children)), "each of them stands still or has ended")
    stand_still = sum(child.running for child in children)
    world.done["suspended"] += stand_still
    if not stand_still:
        world.wrong.append(
            f"no command stood still, not even before its first request: {children[-1].failure('ended')}"
        )
    yield
    for child in children:
        if random.random() < _KILLED_SHARE:
            child.kill()
        elif child.running:
            child.resume()
    for child in children:
        try:
            child.wait(RECOVER_SECONDS)
        except subprocess.TimeoutExpired:
            world.wrong.append(f"a command that stood still does not end: {child.failure('runs')}")
            child.kill()
        if b"Traceback" in child.log.read_bytes():
            world.wrong.append(f"a command that stood still ended with a traceback: {child.failure('ended')}")


def _stands_still(child: Child) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(child.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return True
