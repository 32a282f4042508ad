"""Structured logs: one JSON object per line on standard error, in the same form for every process.

`logger.info("what happened", extra={"partition": 3})` adds fields. Never log API keys or payloads.
"""

import logging
import sys
from datetime import UTC, datetime

import orjson

from schemas.settings import LogLevel

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Writes `time`, `level`, `logger`, `message`, then the fields of `extra`, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        # A field may be of any type. A type that JSON does not have is written as its text.
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def configure(level: LogLevel) -> None:
    """Send all logs of this process to standard error, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # aiokafka logs every step of every rebalance, and a hundred errors per second while Kafka is not reachable. Errors
    # that matter reach the projector as exceptions, and the projector logs them once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
