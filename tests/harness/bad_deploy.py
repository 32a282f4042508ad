"""`python -m tests.harness.bad_deploy`: the projector's program after a bad deploy: half of all leads fail."""

import sys

from projector import mapping
from projector.change import Change
from projector.errors import BadRecord
from projector.intent import Intent
from projector.record import Record
from schemas import resources
from schemas.faults import Fault

_intent = mapping.intent
REASON = "the mapping of a bad deploy"


def intent(change: Change, record: Record) -> Intent:
    if record.kind is resources.LEAD and int(change.key.id[-1], 16) % 2:
        raise BadRecord(Fault("other", found=REASON))
    return _intent(change, record)


if __name__ == "__main__":
    mapping.intent = intent
    from projector.__main__ import main

    sys.exit(main())
