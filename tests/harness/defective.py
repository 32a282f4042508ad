"""`python -m tests.harness.defective`: the projector's program with a defect in its line for documents.

It fails on every batch as long as the file exists that LEADVIEW_TEST_DEFECT names.
"""

import os
import sys
from pathlib import Path

from projector.ledger.writers import Session
from projector.line.batch import Batch
from projector.line.pace import Pacer
from projector.redis.apply import Applied
from projector.redis.store import Store
from schemas.resources import Resource

SECRET = "Zaphodia"
_write = Batch.write


async def write(self: Batch, session: Session, store: Store, pacer: Pacer) -> Applied:
    if _is_defective(self):
        raise KeyError(SECRET)
    return await _write(self, session, store, pacer)


def _is_defective(batch: Batch) -> bool:
    kinds = {record.kind for records in batch._polled.values() for record in records}
    return Path(os.environ["LEADVIEW_TEST_DEFECT"]).exists() and any(isinstance(kind, Resource) for kind in kinds)


if __name__ == "__main__":
    Batch.write = write  # type: ignore[method-assign]
    from projector.__main__ import main

    sys.exit(main())
