"""The real programs beside the model of access: each step of `access.tla` is a step of theirs, on a real Redis.

The line's part is `apply`, and a keeper's part is what `jobs` does with the jobs of a verb. Both are tasks. Before each
step on what all programs share, a task waits until the walk takes this step. Then Redis must hold what the model says,
and the task must wait before the step that comes next in the model. The events are given: Kafka is as the model has it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from functools import partial
from struct import pack
from typing import Any, NamedTuple

from api.redis.scripts import serve
from projector.ledger.ledger import Sessions
from projector.ledger.writers import Writing
from projector.line.apply import apply
from projector.record import Record
from projector.redis.node import Fence, Node
from projector.redis.store import Store
from projector.upkeep import jobs, reapply
from projector.upkeep.reapply import Wanted
from runtime.redis.scripts import Command
from schemas import names, resources
from schemas.layouts import JOB_DUE, JOB_ERASE, JOB_NONE, JOB_REPLAY, KEY_EXPIRY, read_head
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.projection import intent_of
from tests.harness.services import RedisService
from tests.model import graph
from tests.model.graph import Graph, State, Step

OWNER = names.organization(crm.ORGANIZATION)
API_KEY = names.api_key_entity(OWNER, crm.API_KEY)
KEY_RECORD = names.api_key(OWNER, crm.key_hash(1))
_LIMITS = names.key_limit(OWNER, crm.key_hash(1)), names.organization_limit(OWNER)
_REQUEST = serve(
    key=KEY_RECORD,
    organization=OWNER,
    key_limit=_LIMITS[0],
    organization_limit=_LIMITS[1],
    limits=pack("<4I", 1000, 1, 1000, 1),
    etags=(),
)
"""The API's request with the key, which gets a list in reply if it is honoured."""
_DUE = {JOB_NONE: "-", JOB_ERASE: "erase", JOB_REPLAY: "replay"}
_SCRIPTS = ("put_organization", "put_api_key", "delete_api_key", "erase", "finish_work")
_NEXT = {
    "idle": ("",),
    "taken": ("look",),
    "read": ("end",),
    "scan": ("scan",),
    "erase": ("erase",),
    "replay": ("put_api_key", "delete_api_key"),
    "finish": ("finish_work",),
    "check": ("look",),
    "remove": ("SREM",),
}
"""The step before which a keeper waits, by its state in the model."""


class Taken(NamedTuple):
    """How many walks were taken, and how many steps."""

    walks: int
    steps: int


class Differs(AssertionError):
    """The programs have taken a step that the model has not."""


class SteppedStore(Store):
    """Redis, for one task that waits before each step on what all programs share."""

    def __init__(self, settings: ProjectorSettings) -> None:
        super().__init__(settings)
        self.step = ""
        """The one before which the task waits; empty if there is no task."""
        self._task: asyncio.Task[Any] | None = None
        self._may = asyncio.Event()
        self._waits = asyncio.Event()

    async def start(self, program: Coroutine[Any, Any, Any]) -> None:
        """Let the task begin, up to its first step."""
        self._waits.clear()
        self._task = asyncio.create_task(program)
        self._task.add_done_callback(lambda _: self._rest(""))
        await self._waits.wait()

    async def proceed(self) -> None:
        """Let the task take its step, and come to the next one or to its end. Raises what the task has raised."""
        self._waits.clear()
        self._may.set()
        await self._waits.wait()
        if self._task and self._task.done():
            self._task.result()

    async def crash(self) -> None:
        """End the task before its step. Its lock is gone, as if it had expired."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._may.clear()

    async def run(
        self, commands: Sequence[Command], *, replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        if commands and (name := commands[0].script.name) in _SCRIPTS:
            await self._pause(name)
        return await super().run(commands, replication_epoch=replication_epoch, fence=fence)

    async def ask(self, commands: Sequence[tuple[Any, ...]], *, fence: Fence | None = None) -> list[Any]:
        [verb, key, *_] = commands[0] if commands else (b"", b"")
        if key == names.JOBS:
            await self._pause(verb.decode())
        elif (verb, key) == (b"GETRANGE", OWNER):
            await self._pause("look")
        return await super().ask(commands, fence=fence)

    async def scan_from(
        self, node: Node, pattern: bytes, cursor: bytes = b"0"
    ) -> AsyncIterator[tuple[bytes, list[bytes]]]:
        await self._pause("scan")
        async for some in super().scan_from(node, pattern, cursor):
            yield some

    async def _pause(self, step: str) -> None:
        if asyncio.current_task() is self._task:
            await self.before(step)

    async def before(self, step: str) -> None:
        """Let the task wait before this step."""
        self._rest(step)
        await self._may.wait()
        self._may.clear()

    def _rest(self, step: str) -> None:
        self.step = step
        self._waits.set()


class Events(NamedTuple):
    """The records of the two topics, in their order. Event i of the model has the offset i - 1."""

    organization: tuple[Record, ...]
    key: tuple[Record, ...]


def events(*, tombstone: bool) -> Events:
    """Returns the events of the model. With `tombstone`, a null value revokes the key."""
    deleted: Callable[[int], crm.Message] = partial(crm.deleted, resources.ORGANIZATION)
    kinds = (deleted, crm.organization, crm.organization, deleted, crm.organization)
    organizations = [kind(version) for version, kind in enumerate(kinds, start=1)]
    revoked = crm.tombstone(resources.API_KEY) if tombstone else crm.api_key(2, status="revoked")
    return Events(
        tuple(message.record(offset) for offset, message in enumerate(organizations)),
        tuple(message.record(offset) for offset, message in enumerate((crm.api_key(1), revoked))),
    )


class Access:
    """The line and a keeper, on one Redis."""

    def __init__(self, redis: RedisService, events: Events) -> None:
        settings = ProjectorSettings(redis_url=redis.url)
        self._client = redis.client()
        self._events = events
        self._end = 0
        """How many events of the key a program can read now."""
        self._plain, self._line, self._keeper = Store(settings), SteppedStore(settings), SteppedStore(settings)
        self._writing = Writing(self._keeper, Sessions(self._keeper))

    async def close(self) -> None:
        self._client.close()
        for store in (self._plain, self._line, self._keeper):
            await store.close()

    async def walk(self, model: Graph, steps: Sequence[Step]) -> None:
        """Take these steps of the model. Raises Differs."""
        self._client.flushdb()
        control.write(self._client)
        before = model.states[model.first]
        taken: list[str] = []
        try:
            for step in steps:
                taken.append(step.action)
                after = model.states[step.to]
                self._end = 0 if before["compacted"] else before["ends"]
                await self._take(step.action, before, after)
                self._compare(after, taken)
                before = after
        finally:
            await self._line.crash()
            await self._keeper.crash()

    async def _take(self, action: str, before: State, after: State) -> None:
        keeper = after["keeper"]["k1"]
        match action:
            case "Publish" | "Compact" | "Rest":
                pass
            case "ApplyOrganization":
                event = self._events.organization[before["at"]["organization"]]
                await self._line.start(apply(self._line, [intent_of(event)], ()))
                await self._line.proceed()
            case "AddJob":
                await self._line.proceed()
            case "ApplyKey" | "ApplyKeyAgain":
                number = before["at"]["key"] if action == "ApplyKey" else after["key"]["version"] - 1
                await apply(self._plain, [intent_of(self._events.key[number])], ())
            case "LineCrashes" | "KeeperCrashes":
                await (self._line if action == "LineCrashes" else self._keeper).crash()
            case _:
                if action == "Take":
                    await self._keeper.start(self._job(keeper["verb"]))
                await self._keeper.proceed()
                if self._keeper.step == "delete_api_key" and keeper["next"] > keeper["end"]:
                    await self._keeper.proceed()  # again, with the hash that is stored

    async def _job(self, verb: str) -> None:
        """Run all jobs of this verb once, as `jobs.run` does."""
        due = await jobs._read(self._keeper)
        if verb == "erase":
            await jobs._erase_all(self._writing, due.erasures)
        else:
            await jobs._replay_all(self._writing, due.replays, self._read_again)

    async def _read_again(self, wanted: Wanted) -> int:
        """As `reapply.in_place` does, from the events in place of Kafka."""
        await self._keeper.before("end")
        records = [record for record in self._events.key[: self._end] if wanted(record)]
        with await self._writing.sessions.open() as session:
            await reapply.write(self._keeper, records, session.generations, fence=session)
        return len(records)

    def _compare(self, after: State, taken: Sequence[str]) -> None:
        keeper = after["keeper"]["k1"]
        state = "finish" if keeper["pc"] == "replay" and keeper["next"] > keeper["end"] else keeper["pc"]
        organization, key = after["organization"], after["key"]
        expected = {name: after[name] for name in ("organization", "key", "jobs")} | {
            "honoured": organization["live"] and organization["due"] != "replay" and key["status"] == "active",
            "line": "SADD" if after["pending"][0] != "none" else "",
            "keeper": self._keeper.step if self._keeper.step in _NEXT[state] else _NEXT[state],
        }
        programs = self._held() | {"line": self._line.step, "keeper": self._keeper.step}
        if programs != expected:
            raise Differs(f"after {', '.join(taken)}\n  the model has    {expected}\n  the programs have {programs}")

    def _held(self) -> State:
        """Returns what Redis holds, in the words of the model, and whether the API would honour the key."""
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.get(OWNER).get(API_KEY).get(KEY_RECORD).smembers(names.JOBS)
            pipeline.eval(_REQUEST.script.text, len(_REQUEST.keys), *_REQUEST.keys, *_REQUEST.arguments)
            owner, key, record, members, answer, _ = pipeline.delete(*_LIMITS).execute()
        organization = {"version": 0, "live": False, "due": "-"}
        if owner:
            head = read_head(owner)
            organization = {"version": head.offset + 1, "live": head.live, "due": _DUE[owner[JOB_DUE]]}
        return {
            "organization": organization,
            "key": _key(key, record and int.from_bytes(record[KEY_EXPIRY], "little")),
            "jobs": frozenset(_job(member.decode()) for member in members),
            "honoured": isinstance(answer, list),
        }


def _key(value: bytes | None, expiry: int | None) -> State:
    """Returns the key of the model: from the API key, and from the expiry in the record of its hash."""
    if value is None:
        return {"version": 0, "status": "none" if expiry is None else "still has a record"}
    head = read_head(value)
    if head.live:
        status = {None: "has no record", 0: "active"}.get(expiry, "revoked")
    else:
        status = "revoked" if expiry is None else "still has a record"
    return {"version": head.offset + 1, "status": status}


def _job(member: str) -> tuple[str, int]:
    verb, _, event = member.split(" ")
    return verb, read_head(bytes.fromhex(event)).offset + 1


def case(before: State, step: Step, after: State) -> Hashable | None:
    """Returns what a step of the programs depends on: what Redis holds, and what the program itself remembers.

    None is for a step that no program takes here: a pass misses keys only on a cluster whose slots move.
    """
    keeper = before["keeper"]["k1"]
    held = tuple(_frozen(before[name]) for name in ("organization", "key", "jobs"))
    of_line, of_keeper = (*held, before["pending"]), (*held, _frozen(keeper))
    match step.action:
        case "ScanMisses":
            return None
        case "Publish" | "Compact" | "Rest":
            return step.action
        case "ApplyOrganization" | "ApplyKey":
            return step.action, of_line, tuple(before["at"].values())
        case "ApplyKeyAgain":
            return step.action, held, after["key"]["version"]
        case "AddJob":
            return step.action, of_line
        case "LineCrashes":  # it touches nothing
            return step.action, before["pending"]
        case "KeeperCrashes":
            return step.action, _frozen(keeper)
        case "Take":
            return step.action, held, after["keeper"]["k1"]["verb"]
        case "ReadEnd":
            return step.action, of_keeper, before["ends"], before["compacted"]
    return step.action, of_keeper


def _frozen(value: Any) -> Hashable:
    return tuple((name, _frozen(part)) for name, part in value.items()) if isinstance(value, dict) else value


async def check(configuration: str, redis: RedisService, changes: int = 3) -> Taken:
    """Let the programs take a step of each case of a configuration with so many events of the organization. Raises
    Differs.
    """
    model = graph.of_configuration(configuration, Changes=changes)
    access = Access(redis, events(tombstone=configuration == "tombstone"))
    walks = steps = 0
    try:
        for walk in graph.walks(model, case):
            await access.walk(model, walk)
            walks, steps = walks + 1, steps + len(walk)
    finally:
        await access.close()
    return Taken(walks, steps)
