"""Interprets a record: what it says, and what has to be written. Pure, except for a log line about a defect."""

from projector import defect, mapping
from projector.change import read, version_of
from projector.errors import BadRecord
from projector.intent import Intent
from projector.reason import explain
from projector.record import Record
from schemas.faults import Fault


def interpret(record: Record) -> tuple[Intent, int]:
    """Returns the write that a record requires, and the time of its event in milliseconds since 1970.

    Raises BadRecord, and nothing else: a record on which this program fails must not end a line, or it would fail again
    at each start. It is parked like any other bad record, and can be redriven with a version that is repaired.
    """
    try:
        change = read(record)
        return mapping.intent(change, record), change.time
    except BadRecord as error:
        raise _explained(error.reason, record) from None
    except Exception as error:  # noqa: BLE001 - see above
        place = [record.topic, record.partition, record.offset]
        reason = defect.report("reading this record", error, record=place)
        raise _explained(reason, record) from None


def _explained(reason: str, record: Record) -> BadRecord:
    try:
        fault = explain(reason, record)
        return BadRecord(fault.text, version_of(record), fault)
    except Exception as error:  # noqa: BLE001 - likewise
        defect.report("explaining a bad record", error, record=[record.topic, record.partition, record.offset])
        return BadRecord(reason, fault=Fault(reason))
