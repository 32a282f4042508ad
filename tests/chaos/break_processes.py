"""Faults of processes, and a tenant that does its worst. Each begins on entry and ends on exit."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from devstack.child import Child
from devstack.programs import environment
from devstack.redis_server import RedisServer
from schemas import api_keys
from tests.chaos.greedy import FREE, PAID
from tests.chaos.world import Strike, World
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer

GREEDY = (crm.uuid(0xA7), crm.uuid(0xA8), crm.uuid(0xA9), crm.uuid(0xAA))
"""On a cluster, one of them shares a shard with each of the others, more or less."""
_BLOB_BYTES = 970_000
_CONNECTIONS = 64
_LIMITS = {"key": {"quota": 100, "window_seconds": 10}, "organization": {"quota": 100, "window_seconds": 10}}


def projectors_end(by: Callable[[Child], object], *, all_of_them: bool = False) -> Strike:
    """One of the projectors or all of them end in this way, and are started again."""

    @contextmanager
    def strike(world: World, random: Random) -> Iterator[None]:
        names = [*world.projectors] if all_of_them else [random.choice([*world.projectors])]
        for name in names:
            by(world.projectors[name])
        yield
        for name in names:
            world.start_projector(name)

    return strike


def stands_still(chosen: Callable[[World, Random], Child | RedisServer]) -> Strike:
    """What is chosen stands still, and resumes with all that it believed."""

    @contextmanager
    def strike(world: World, random: Random) -> Iterator[None]:
        process = chosen(world, random)
        process.pause()
        yield
        process.resume()

    return strike


def any_projector(world: World, random: Random) -> Child:
    return world.projectors[random.choice([*world.projectors])]


def any_api(world: World, random: Random) -> Child:
    return random.choice(world.apis)


@contextmanager
def api_killed(world: World, random: Random) -> Iterator[None]:
    number = random.randrange(len(world.apis))
    world.apis[number].kill()
    yield
    world.restart_api(number)


@contextmanager
def greedy_tenant(world: World, random: Random) -> Iterator[None]:
    """Its largest document is asked for over many connections, again and again for nothing, or beyond its limit. The
    others must not notice it.
    """
    organization, manner = random.choice(GREEDY), random.choice((FREE, FREE, PAID))
    key, lead_id = api_keys.mint(organization, "9" * 30), crm.uuid(0x5002)
    _publish(world, organization, key, lead_id)
    for port in world.ports:
        api = ApiServer(port)
        world.wait_until(lambda api=api: api.get(LEADS + lead_id, key=key).status in (200, 429), "it is served")  # type: ignore[misc]
    words = [key, LEADS + lead_id, str(_CONNECTIONS), manner, *map(str, world.ports)]
    child = Child(
        [sys.executable, "-m", "tests.chaos.greedy", *words],
        log=world.directory / "greedy.log",
        environment=environment(),
    )
    try:
        yield
        child.check_running()
    finally:
        child.kill()


def _publish(world: World, organization: str, key: str, lead_id: str) -> None:
    """Publish the tenant, its key and a lead of nearly the largest size, with versions that grow from time to time."""
    version, ids = int(time.time()), dict[str, Any](organization_id=organization)
    contact_id, key_id = crm.uuid(0x5001), crm.uuid(0x5003)
    messages = [
        crm.organization(version, id=organization, rate_limits=_LIMITS, **ids),
        crm.api_key(version, id=key_id, hash=api_keys.key_hash(key), **ids),
        crm.contact(version, id=contact_id, **ids),
        crm.lead(
            version, id=lead_id, contact_id=contact_id, attribution={"source": "x", "blob": "y" * _BLOB_BYTES}, **ids
        ),
    ]
    with world.publishing:
        for message in messages:
            own = [known for known in world.others.get(message.kind, []) if known.key != message.key]
            world.others[message.kind] = [*own, message]
        world.leadview.publish_all(messages)
