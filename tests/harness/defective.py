"""`python -m tests.harness.defective`: the projector's program with a defect in its line for documents.

It fails on every batch as long as the file exists that LEADVIEW_TEST_DEFECT names.
"""

import os
import sys
from pathlib import Path

from projector.ledger.session import Session
from projector.line.batch import Batch, Writer
from projector.redis.applier import Applied
from schemas.resources import Resource

SECRET = "Zaphodia"
_write = Writer.write


async def write(self: Writer, batch: Batch, session: Session) -> Applied:
    if _is_defective(batch):
        raise KeyError(SECRET)
    return await _write(self, batch, session)


def _is_defective(batch: Batch) -> bool:
    kinds = {record.kind for records in batch._polled.values() for record in records}
    return Path(os.environ["LEADVIEW_TEST_DEFECT"]).exists() and any(isinstance(kind, Resource) for kind in kinds)


if __name__ == "__main__":
    Writer.write = write  # type: ignore[method-assign]
    from projector.__main__ import main

    sys.exit(main())
