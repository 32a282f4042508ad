"""`python -m tests.harness.projectors <change> <words>`: the projector's program, changed for a test in one of the ways
below. And a token provider as an operator would write one, for the program as it is.

A change is made before the program is imported, because most of it binds names such as `mapping.VERSION` at its import.
"""
# ruff: noqa: PLC0415 - each change imports only what it changes

import atexit
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector import mapping
from schemas import documents, events, resources


def hurried() -> None:
    """Look several times as often as usual: for tests of what happens, and not of when. What it does and says is the
    same.
    """
    from operate.rebuild import replay
    from projector.health import watch
    from projector.ledger import writers
    from projector.upkeep import dead_letters, jobs, keeper

    writers.BEAT_SECONDS = jobs._PAUSE_SECONDS = keeper._PAUSE_SECONDS = 0.25
    replay._CHECK_SECONDS = 0.05
    watch._EVERY_SECONDS = 0.5
    dead_letters._LOOK_SECONDS = 1.0


def impatient() -> None:
    """Say within seconds that it does not advance: for tests of what it says, and not of when."""
    from projector import liveness
    from projector.health import judge

    liveness._QUIET_SECONDS = judge.UNKNOWN_SECONDS = 2.0
    judge.STUCK_SECONDS = judge.STUCK_PARTITION_SECONDS = 2.0


def measured() -> None:
    """Print at the end how much memory it has had."""
    atexit.register(lambda: sys.stdout.write(f"peak {peak_memory(os.getpid())}\n"))


def peak_memory(pid: int) -> int:
    """Returns the highest resident memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def next_mapping() -> None:
    """Map as the next version does, which adds a field."""
    mapping.VERSION = NEXT_VERSION
    mapping._DOCUMENTS[resources.LEAD] = lead_document


NEXT_VERSION = mapping.VERSION + 1


class Lead(documents.Lead, frozen=True, kw_only=True):
    """A lead with one more field."""

    referrer_length: int


def lead_document(lead: events.Lead) -> documents.Lead:
    """Returns the document as the present mapping has it, with the additional field."""
    document = mapping.lead_document(lead)
    fields = {name: getattr(document, name) for name in document.__struct_fields__}
    return Lead(**fields, referrer_length=len(lead.referrer or ""))


def failing() -> None:
    """A bad deploy: the line for documents fails on every batch."""
    from projector.line.batch import Batch
    from projector.record import Partition, Record

    as_usual = Batch.write

    async def write(self: Batch, polled: Mapping[Partition, list[Record]], *others: Any) -> None:
        if any(isinstance(records[0].kind, resources.Resource) for records in polled.values()):
            raise KeyError("a name")
        await as_usual(self, polled, *others)

    Batch.write = write  # type: ignore[assignment,method-assign]


def defective() -> None:
    """A bad deploy: the mapping fails for half of all leads."""
    from projector.change import Change
    from projector.errors import BadRecord
    from projector.mapping import Intent
    from projector.record import Record
    from schemas.faults import Fault

    as_usual = mapping.intent

    def intent(change: Change, record: Record) -> Intent:
        if record.kind is resources.LEAD and int(change.key.id[-1], 16) % 2:
            raise BadRecord(Fault("other", found="the mapping of a bad deploy"))
        return as_usual(change, record)

    mapping.intent = intent


def token() -> tuple[str, float]:
    """Returns the token in the file that TEST_TOKEN_FILE names, and when it expires."""
    return Path(os.environ["TEST_TOKEN_FILE"]).read_text(), time.time() + 60


def broken_token() -> tuple[str, float]:
    """Raises an error whose message no log may show."""
    raise RuntimeError("the-secret")


_CHANGES = {each.__name__: each for each in (hurried, impatient, measured, next_mapping, failing, defective)}
_PROGRAM = (sys.executable, "-m", "tests.harness.projectors")
HURRIED = (*_PROGRAM, "hurried")
IMPATIENT = (*_PROGRAM, "impatient")
MEASURED = (*_PROGRAM, "measured")
NEXT_MAPPING = (*_PROGRAM, "next_mapping")
FAILING = (*_PROGRAM, "failing")
DEFECTIVE = (*_PROGRAM, "defective")

if __name__ == "__main__":
    _CHANGES[sys.argv.pop(1)]()
    from operate.main import main

    sys.exit(main())
