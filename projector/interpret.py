"""Interprets a record: what it says, and what has to be written. Pure, except for a log line about a defect."""

import logging
import traceback

from projector import mapping
from projector.change import read
from projector.errors import BadRecord
from projector.intent import Intent
from projector.record import Record

logger = logging.getLogger(__name__)


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
        # The message of the error may contain a value of the payload, so only its type and its place are logged.
        logger.error(  # noqa: TRY400
            "Leadview failed on a record, which is a defect of Leadview: please report it with this log line",
            extra={
                "record": [record.topic, record.partition, record.offset],
                "error": type(error).__name__,
                "place": traceback.format_tb(error.__traceback__),
            },
        )
        raise BadRecord(f"Leadview failed on this record with {type(error).__name__} (a defect of Leadview)") from None
