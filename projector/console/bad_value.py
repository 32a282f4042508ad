"""The value that makes a record bad. It may be personal, so it is shown only with `--show-documents`."""

import re
from typing import Any

import msgspec

from projector.console.answer import Fact
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.record import MAGIC, Record, unframed

_MOST = 200
"""Characters."""
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_HIDDEN = "not shown: the console was started without --show-documents"


def facts(record: Record, *, show: bool) -> list[Fact]:
    """Returns the field of a bad record that breaks a rule, which rule that is, and with `show` its value; nothing for
    a good record.
    """
    try:
        interpret(record)
    except BadRecord as error:
        if not error.fault.path.startswith("$."):
            return []
        path, expected = error.fault.path, error.fault.expected
        shown = _value(record, path) if show else _HIDDEN
        rule = [Fact("expected", expected)] if expected else []
        return [Fact("field", path), *rule, Fact("value of this field", shown)]
    return []


def _value(record: Record, path: str) -> str:
    try:
        value = record.value or b""
        found: Any = msgspec.json.decode(unframed(value) if value[:1] == bytes([MAGIC]) else value)
        for step in _STEP.finditer(path):
            found = found[step[1]] if step[1] else found[int(step[2])]
    except (msgspec.DecodeError, LookupError, TypeError):
        return "none"
    text = msgspec.json.encode(found).decode()
    return text if len(text) <= _MOST else f"{text[:_MOST]}… ({len(text):,} characters)"
