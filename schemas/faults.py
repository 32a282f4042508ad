"""What is wrong with a record: a kind, with the field, what was expected, and which values are allowed.

It is the same for dead letters, `validate`, metrics and docs/events.md, and never contains a value of the record.
`schemas.words` says it in English.
"""

import re
from typing import Literal, get_args

from msgspec import Struct

from schemas.envelopes import ENVELOPES, event_type
from schemas.expectations import expectation
from schemas.resources import Kind

Label = Literal["defect", "limit", "batch", "message-key", "envelope", "missing-field", "json", "value", "other"]
"""What the metrics count faults as."""
LABELS: tuple[Label, ...] = get_args(Label)

FaultKind = Literal[
    # of a field
    "missing",
    "wrong_type",
    "not_valid",
    "not_expected",
    "number_out_of_range",
    "out_of_range",
    "too_many_entries",
    "without_offset",
    "not_json_type",
    "other_than_key",
    # of the value as a whole
    "not_json",
    "not_utf8",
    "registry_frame",
    "null_text",
    "empty",
    "batch_of_events",
    "event_format",
    "header_name",
    "tombstone_of_change",
    "other",
    # of a limit: `count` is what was found, and `most` the limit
    "more_than_64_bits",
    "inner_more_than_64_bits",
    "inner_list",
    "levels",
    "recursion",
    "containers",
    "names",
    "texts",
    "exponents",
    "extreme_numbers",
    "document_bytes",
    "lead_bytes",
    "summary_bytes",
    "key_bytes",
    "value_bytes",
    "headers",
    "header_bytes",
    # of Kafka's batches, and of this program
    "unreadable_batch",
    "unreadable_record",
    "defect",
    # of the lines that `validate` reads, and of what it finds with `--strict`
    "unknown_field",
    "more_unknown_fields",
    "unknown_attribute",
    "not_a_record",
    "no_record",
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
Hint = Literal["framed_key", "json_key", "json_headers", "json_text", "connect_envelope", "data_alone"]
"""How a producer wraps its records, or does not, if that is why they are bad."""


class Fault(Struct, frozen=True, omit_defaults=True):
    """What is wrong with a record.

    `path` begins with `$`, the value, or it is `key`, `headers` or `headers.<name>`; of a line that `validate` reads it
    is `line` or `topic`. `expected` is empty if the kind says it. `allowed` has the values of a field that has a list
    of them. `found` is what was found instead: the type of JSON, or the error of a library. Of an unreadable batch,
    `count` and `most` are its first and last offset. `event_id` and `event_source` name the event, and `trace_id` the
    trace that it belongs to (`schemas.trace`), as far as they can be read.
    """

    kind: FaultKind
    path: str = "$"
    expected: str = ""
    allowed: tuple[str, ...] = ()
    found: str = ""
    count: int = 0
    most: int = 0
    hint: Hint | None = None
    event_id: str = ""
    event_source: str = ""
    trace_id: str = ""

    @property
    def label(self) -> Label:
        """What the metrics count it as."""
        if label := _LABELS.get(self.kind):
            return label
        if self.path == "key":
            return "message-key"
        if self.path.startswith("headers.") or self.path in _ENVELOPE:
            return "envelope"
        return "missing-field" if self.kind == "missing" else "value"


_LIMITS: dict[FaultKind, Label] = dict.fromkeys(
    KINDS[KINDS.index("more_than_64_bits") : KINDS.index("unreadable_batch")], "limit"
)
_LABELS: dict[FaultKind, Label] = {
    **_LIMITS,
    "defect": "defect",
    "unreadable_batch": "batch",
    "unreadable_record": "batch",
    "other_than_key": "message-key",
    "not_json": "json",
    "not_utf8": "json",
    "registry_frame": "json",
    "null_text": "json",
    "empty": "json",
    "batch_of_events": "envelope",
    "event_format": "envelope",
    "header_name": "envelope",
    "tombstone_of_change": "envelope",
    "other": "other",
}
_ENVELOPE = frozenset(f"$.{name}" for name in ("type", "id", "source", "specversion", "time", "datacontenttype"))
_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `(\$[^`]*)`)?")
_WRONG = re.compile(r"(.+?)(?:, got `(\w+)`)?(?: - at `(\$[^`]*)`)", re.DOTALL)
# Controls, line ends, what changes the direction of a text or is not to be seen, and lone surrogates. They are named
# here, because `isprintable` knows other characters in each version of Python.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
_WRONG_VALUE = re.compile("Expected `object`, got `(\\w+)`")
_NOT_JSON = ("JSON is malformed: ", "Input data was truncated")
_PROBLEMS: tuple[tuple[str, FaultKind], ...] = (
    ("Number out of range", "number_out_of_range"),
    ("`int` ", "out_of_range"),
    ("`array` of length <=", "too_many_entries"),
    ("timezone component", "without_offset"),
    ("", "not_valid"),
)
_MAX_SHOWN = 80
"""In characters, of a name or an id that a producer has chosen."""


def fault_of(message: str, kind: Kind, *, binary: bool) -> Fault:
    """Returns what a message of msgspec means.

    `binary` says in which mode of CloudEvents the record is: then `data` is the whole value.
    """
    if found := _MISSING.fullmatch(message):
        return _of_field("missing", f"{found[2] or '$'}.{found[1]}", kind, binary=binary)
    if found := _WRONG_VALUE.fullmatch(message):
        return _of_field("wrong_type", "$", kind, binary=binary, found=found[1])
    if found := _WRONG.fullmatch(message):
        problem = next(problem for part, problem in _PROBLEMS if part in found[1])
        return _of_field("wrong_type" if found[2] else problem, found[3], kind, binary=binary, found=found[2] or "")
    if message.startswith(_NOT_JSON):
        return Fault("not_json", expected="a JSON object", found=message.removeprefix(_NOT_JSON[0]))
    return Fault("other", found=message)


def _of_field(problem: FaultKind, path: str, kind: Kind, *, binary: bool, found: str = "") -> Fault:
    return Fault(problem, path, *expectation(kind, binary, path), found)


def of_header(problem: FaultKind, name: str, kind: Kind) -> Fault:
    """Returns the fault of a header of an event in binary mode."""
    return Fault(problem, f"headers.{name}", *expectation(kind, False, f"$.{name.removeprefix('ce_')}", null=False))


def unknown_type(*, binary: bool, missing: bool) -> Fault:
    """Returns the fault of an event whose type is not one of Leadview's, if nothing else says what it is about."""
    allowed = tuple(event_type(kind, verb) for kind in ENVELOPES for verb in ("changed", "deleted"))
    path = "headers.ce_type" if binary else "$.type"
    return Fault("missing" if missing else "not_valid", path, f"one of {', '.join(allowed)}", allowed)


def shown(text: object) -> str:
    """Returns a short text that no terminal takes for commands; an empty one if it is no text."""
    if not isinstance(text, str):
        return ""
    return _COMMANDS.sub("?", text[:_MAX_SHOWN])
