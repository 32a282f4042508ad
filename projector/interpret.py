"""Interprets a record: what it says, and what has to be written. Pure, except for a log line about a defect."""

from projector import defect, mapping
from projector.change import read
from projector.errors import BadRecord
from projector.intent import Intent
from projector.record import Record


def interpret(record: Record) -> tuple[Intent, int]:
    """Returns the write that a record requires, and the time of its event in milliseconds since 1970.

    Raises BadRecord, and nothing else: a record on which this program fails must not end a line, or it would fail again
    at each start. It is parked like any other bad record, and can be redriven with a version that is mended.
    """
    try:
        change = read(record)
        return mapping.intent(change, record), change.time
    except BadRecord:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        place = [record.topic, record.partition, record.offset]
        raise BadRecord(defect.report("reading this record", error, record=place)) from None
