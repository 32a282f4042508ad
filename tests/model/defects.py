"""The rules of the models in the code: each can be switched off in memory, and then the programs take another step."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from hashlib import sha1
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec.structs import replace

from api.redis.scripts import serve
from operate.main import main
from projector.ledger import copies, sweep
from projector.ledger.control import ControlRecord, State
from projector.record import Partition
from projector.redis import scripts
from projector.redis.store import Store
from projector.upkeep import jobs
from projector.upkeep.keeper import Keeper
from runtime.redis.scripts import Script
from schemas import names
from schemas.control import GenerationId, Stamp
from schemas.layouts import HEAD
from tests.harness import projectors
from tests.harness.waiting import PATIENCE_SECONDS
from tests.model.traces import Installation, Scenario


class Defect(NamedTuple):
    """A rule that is switched off in the code while a block lasts: `code` says where. It shows in this configuration.
    Without a rule, it is a defect that the model has no rule for.
    """

    configuration: str
    rule: str
    code: str
    off: Callable[[], AbstractContextManager[Any]]

    def __str__(self) -> str:
        return f"{self.rule + ', ' if self.rule else ''}{self.code}"


_CONTAINS = (
    "local function contains(list, name) return string.find(',' .. list .. ',', ',' .. name .. ',', 1, true) end\n"
)


@contextmanager
def _lua(script: Script[...], pattern: str, replacement: str) -> Iterator[None]:
    """Replaces a part of a script while the block lasts."""
    text, count = re.subn(pattern, replacement, script.text)
    assert count == 1, f"{script.name}.lua has {count} places like {pattern}"
    sha = sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
    with patch.object(script, "text", text), patch.object(script, "sha", sha):
        yield


async def _finish_as_it_is(store: Store, owner: bytes, _: bytes, lock: jobs.Lock, *, finish: Any = jobs._finish) -> Any:
    """Marks a job as done for the organization as it is by then, and not as it was when the job began."""
    [stored] = await Store.ask(store, [(b"GETRANGE", owner, 0, HEAD - 1)])
    return await finish(store, owner, stored, lock)


async def _add_nameless(store: Store, members: Iterable[str]) -> None:
    """Adds jobs whose names do not say which event has made them due."""
    nameless = [f"{member.rpartition(' ')[0]} {'00' * HEAD}" for member in members]
    await store.ask_one(b"SADD", names.JOBS, *nameless)


OF_ACCESS = (
    Defect(
        "tombstone", "mark", "serve.lua: `if job == JOB_REPLAY_BYTE`",
        partial(_lua, serve, r"\nif job == \d+ then return \d+ end", ""),
    ),
    Defect(
        "tombstone", "end", "jobs.py: `_taken` reads the head first",
        partial(patch.object, jobs, "_finish", _finish_as_it_is),
    ),
    Defect(
        "tombstone", "same-organization", "finish_work.lua: `~= ARGV.head`",
        partial(_lua, scripts.finish_work, r"\nif redis.call\('GETRANGE'.*", ""),
    ),
    Defect(
        "tombstone", "job-version", "apply.py: the head in the name of a job",
        partial(patch.object, Store, "add_jobs", _add_nameless),
    ),
    Defect(
        "access", "kept", "put_api_key.lua: `~= KEY_REVOKED_BYTE`",
        partial(_lua, scripts.put_api_key, r"if deleted and \(.*?\) then return", "if deleted then return"),
    ),
    Defect(
        "tombstone", "kept", "delete_api_key.lua: `stored == ''`",
        partial(_lua, scripts.delete_api_key, r"if stored == '' and ", "if "),
    ),
    Defect(
        "tombstone", "", "erase.lua: `organization_is_deleted`",
        partial(_lua, scripts.erase, r"\nif not organization_is_deleted.*", ""),
    ),
    Defect(
        "tombstone", "", "put_organization.lua: `work ~= JOB_REPLAY`",
        partial(_lua, scripts.put_organization, r"elseif work ~= '\w' then", "else"),
    ),
    Defect(
        "tombstone", "", "put_api_key.lua: `is_newer`",
        partial(_lua, scripts.put_api_key, r"local newer = is_newer\(.*", "local newer = true"),
    ),
)  # fmt: skip
"""Each is found (`python -m tests.model`)."""


async def _create_changed(
    change: Callable[[State], State],
    store: Store,
    tag: bytes,
    stamp: Stamp,
    state: State,
    *,
    create: Any = copies._create,
) -> None:
    """Creates a copy with a state of its own."""
    await create(store, tag, stamp, change(state))


async def _no_ends(*_: object) -> dict[Partition, int]:
    return {}


async def _store_no_targets(
    store: Store,
    record: ControlRecord,
    generation: GenerationId,
    targets: Mapping[Partition, int],
    *,
    store_targets: Any = copies.store_targets,
) -> Any:
    """Stores that nothing has to be replayed."""
    return await store_targets(store, record, generation, dict.fromkeys(targets, 0))


async def _nothing(*_: object) -> int:
    return 0


def _version(installation: Installation) -> None:
    """A shard is emptied, so all records are read again."""
    installation.publish(3)
    installation.settle()
    installation.lose(1)
    installation.settle()


def _emptied(installation: Installation) -> None:
    """A shard is emptied while a generation is served that is not the first one."""
    installation.rebuild()
    installation.lose(1)
    installation.recorder.wait_for("create_copy")


def _unread(installation: Installation) -> None:
    """A shard is emptied, and no record is applied again yet."""
    with installation.recorder.holding("put_leads"):
        installation.lose(1)
        installation.recorder.wait_for("mark_filled")


def _two_commands(installation: Installation) -> None:
    """A generation is dropped while a rollback stands still before its change."""
    installation.rebuild()
    with installation.recorder.holding("change_control") as wait_until_held:
        rollback = installation.begin("rollback")
        wait_until_held()
        installation.command("drop", "1")
    rollback.wait(PATIENCE_SECONDS)
    installation.settle()


def _sleeper(installation: Installation) -> None:
    """A generation is dropped while a projector stands still in the middle of a batch."""
    installation.rebuild()
    with installation.recorder.holding("put_leads") as wait_until_held:
        installation.publish(1)
        wait_until_held()
        installation.command("drop", "1")
    installation.settle()


def _dropped(installation: Installation) -> None:
    installation.rebuild()
    installation.command("drop", "1")


def _emptied_again(installation: Installation) -> None:
    """A keeper stands still before it notes that a shard is filled, and the shard is emptied once more."""
    with ExitStack() as keeper:
        wait_until_held = keeper.enter_context(installation.recorder.holding("mark_filled"))
        installation.lose(1)
        wait_until_held()
        with installation.recorder.holding("put_leads") as wait_until_unread:
            installation.lose(1)
            wait_until_unread()
            keeper.close()
            installation.recorder.wait_for("mark_filled")


class ControlDefect(NamedTuple):
    """The same of the control record. Real programs have it, while this happens."""

    rule: str
    code: str
    off: Callable[[], AbstractContextManager[Any]]
    scenario: Scenario


def _created(change: Callable[[State], State]) -> Callable[[], AbstractContextManager[Any]]:
    return partial(patch.object, copies, "_create", partial(_create_changed, change))


OF_CONTROL = (
    ControlDefect(
        "version", "heads.lua: `is_newer`",
        partial(_lua, scripts.put_leads, r"local newer = stored == '' or is_newer\(.*", "local newer = true"), _version,
    ),
    ControlDefect(
        "written", "copies.py: `_create` takes the state of the record",
        _created(lambda state: replace(state, written=(state.live,))), _emptied,
    ),
    ControlDefect(
        "live", "copies.py: `_create` takes the state of the record",
        _created(lambda state: replace(state, live=state.written[0])), _emptied,
    ),
    ControlDefect(
        "reached", "keeper.py: `_read_end_offsets`",
        partial(patch.object, Keeper, "_read_end_offsets", _no_ends), _unread,
    ),
    ControlDefect(
        "compare", "change_control.lua: `stamp ~= ARGV.stamp`",
        partial(_lua, scripts.change_control, r"\nif stamp ~= .* then return 0 end", ""), _two_commands,
    ),
    ControlDefect(
        "fence", "sweep.py: `stop_writers`", partial(patch.object, sweep, "stop_writers", _nothing), _sleeper
    ),
    ControlDefect("swept", "sweep.py: `_delete`", partial(patch.object, sweep, "_delete", _nothing), _dropped),
    ControlDefect(
        "target", "replay.py: `load` stores the ends",
        partial(patch.object, copies, "store_targets", _store_no_targets), Installation.rebuild,
    ),
    ControlDefect(
        "fill-as-read", "mark_filled.lua: stamp, incarnation and positions",
        partial(_lua, scripts.mark_filled, r"(?s)\nif stamp ~= .*\n(?=for generation in)", _CONTAINS), _emptied_again,
    ),
)  # fmt: skip


def program(defect: ControlDefect) -> tuple[str, ...]:
    """Returns the command that runs the projector's program with a defect."""
    return sys.executable, "-m", "tests.model.defects", str(OF_CONTROL.index(defect))


WITHOUT = {
    "same-slots": "A pass misses keys only while slots move: tests/service/test_slots.py.",
    "incarnation": "The position that a checkpoint expects refuses the same.",
    "exact": "It is the comparison of `compare`, in the same script.",
    "counts": "Every session repairs the copies first, so a change counts in the code when it can be used.",
    "ends": "The program has no earlier ends that it could use: it keeps them by the incarnation.",
    "complete": "The API decides it, and its answers are in no trace: tests/service/test_api_serving.py.",
    "pointer": "The same.",
    **dict.fromkeys(
        ("history", "bring-back", "sweep-history", "operator-history", "remake"),
        "A trace has no failover: tests/service/test_redis_faults.py and test_redis_cluster.py.",
    ),
    **dict.fromkeys(
        ("leftovers", "lineage", "new-lineage", "own", "identity"),
        "A trace begins with a complete record, and never loses all shards: tests/service/test_control_record.py.",
    ),
    **dict.fromkeys(
        ("sweep-fence", "reconnect", "connections"),
        "A trace shows what was written, and not over which connection: tests/service/test_control_record.py.",
    ),
    "mapping": "All programs of a trace have one mapping: tests/service/test_control_record.py.",
    "highest": "It holds only where `target` does not, which is the code's rule.",
    "filling": "A keeper's own note follows at once, and is the same: tests/service/test_rebuild.py.",
}
"""Why a rule of `access.tla` or `control.tla` is not among the defects."""


if __name__ == "__main__":  # a program that has the defect with this number
    projectors.hurried()
    with OF_CONTROL[int(sys.argv.pop(1))].off():
        sys.exit(main())
