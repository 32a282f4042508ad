"""`python -m tests.harness.defective`: the projector's program after a bad deploy.

With LEADVIEW_TEST_DEFECT, its line for documents fails on every batch. Without it, the mapping fails for half of all
leads.
"""

import os
import sys
from collections.abc import Mapping

from projector import mapping
from projector.change import Change
from projector.errors import BadRecord
from projector.ledger.ledger import Session
from projector.line.batch import Batch, StoredHeads
from projector.line.pace import Pacer
from projector.mapping import Intent
from projector.record import Partition, Record
from projector.redis.store import Store
from schemas import resources
from schemas.faults import Fault
from schemas.resources import Resource

_write = Batch.write
_intent = mapping.intent


async def write(
    self: Batch,
    polled: Mapping[Partition, list[Record]],
    session: Session,
    store: Store,
    pacer: Pacer,
    heads: StoredHeads | None = None,
) -> int:
    kinds = {record.kind for records in polled.values() for record in records}
    if any(isinstance(kind, Resource) for kind in kinds):
        raise KeyError("a name")
    return await _write(self, polled, session, store, pacer, heads)


def intent(change: Change, record: Record) -> Intent:
    if record.kind is resources.LEAD and int(change.key.id[-1], 16) % 2:
        raise BadRecord(Fault("other", found="the mapping of a bad deploy"))
    return _intent(change, record)


if __name__ == "__main__":
    if "LEADVIEW_TEST_DEFECT" in os.environ:
        Batch.write = write  # type: ignore[method-assign]
    else:
        mapping.intent = intent
    from projector.__main__ import main

    sys.exit(main())
