"""The words for what the program stores and compares as kinds: made here, once, where somebody reads them.

Nothing takes these words apart again. Every function is pure; `as_called` alone looks at how this process was called.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from schemas.faults import Fault, FaultKind, Hint
from schemas.heartbeat import FailingLine, Former, HaltedLine, KafkaRight, LineTrouble, StandingByLine
from schemas.limits import MAX_LEVELS

_FOUND = {
    "null": "null",
    "str": "text",
    "int": "an integer",
    "float": "a number with a fraction",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}
"""The types of JSON, by the names that msgspec gives them."""
_FAULTS: dict[FaultKind, str] = {
    "missing": "{place} is missing{ending}",
    "wrong_type": "{place} is {found}{ending}",
    "not_valid": "{place} is not valid{ending}",
    "not_expected": "{place} is not {expected}",
    "number_out_of_range": "{place} is a number out of range{ending}",
    "out_of_range": "{place} is out of range{ending}",
    "too_many_entries": "{place} has too many entries{ending}",
    "without_offset": "{place} has no offset{ending}",
    "not_json_type": "{place} is not JSON{ending}",
    "other_than_key": "{place} is not {expected}",
    "not_json": "the value is not JSON: {found}",
    "not_utf8": "the text is not UTF-8",
    "registry_frame": "the value has the frame of a schema registry, and what follows is not a JSON object: "
    "Avro and Protobuf are not read, so use the serializer for JSON Schema",
    "null_text": "the value is the text `null`, which deletes nothing: publish a null value, or an event "
    "`crm.<kind>.deleted` if the serializer cannot write one, such as CloudEventSerializer of the SDK for Java",
    "empty": "the value is empty, which deletes nothing: publish a null value, or an event `crm.<kind>.deleted`",
    "batch_of_events": "header content-type says that the value is a batch of events: publish each event in a record "
    "of its own, under its message key",
    "event_format": "header content-type names a format of CloudEvents that is not read: use the JSON format "
    "(application/cloudevents+json)",
    "header_name": "{place} is not read: its name has to be {expected}, in lower case and spelt exactly like this",
    "tombstone_of_change": "the value is null, which deletes the entity, but header ce_type says that it was changed: "
    "publish its data, or the type `crm.<kind>.deleted`",
    "other": "{found}",
    "more_than_64_bits": "{place} is an integer of more than 64 bits",
    "inner_more_than_64_bits": "an integer in {place} has more than 64 bits",
    "inner_list": "a list in {place} has more than {most:,} entries",
    "levels": "{place} is nested deeper than {most} levels",
    "recursion": f"the JSON is nested too deeply: a field has more than {MAX_LEVELS} levels of objects and arrays",
    "containers": "the value has more than {most:,} objects and arrays",
    "names": "the value has more than {most:,} names of fields",
    "texts": "the value has more than {most:,} texts",
    "exponents": "the value has more than {most:,} numbers with an exponent",
    "extreme_numbers": "the value has more than {most:,} numbers with an exponent of three digits or with two hundred "
    "digits",
    "document_bytes": "the document has {count:,} bytes of JSON, more than {most:,}",
    "lead_bytes": "the document without the contact has {count:,} bytes of JSON, more than {most:,}",
    "summary_bytes": "the summary of the contact ({found}) has {count:,} bytes of JSON, more than {most:,}",
    "key_bytes": "the message key has {count:,} bytes, more than {most}",
    "value_bytes": "the value has {count:,} bytes, more than {most:,} (LEADVIEW_MAX_RECORD_BYTES)",
    "headers": "the record has {count:,} headers, more than {most}",
    "header_bytes": "the headers have {count:,} bytes, more than {most:,}",
    "unreadable_batch": "the batch with the offsets {count} to {most} cannot be read: {found}",
    "unreadable_record": "the record is not {expected}",
    "defect": "reading this record failed with {found}, which is a defect of Leadview: see its log",
    "unknown_field": "`{path}` is not a known field{nearest}",
    "more_unknown_fields": "{count:,} more fields are not known",
    "unknown_attribute": "`{path}` is not a known attribute{nearest}",
    "not_a_record": "the line is not a record: {found}; expected in one line: {expected}",
    "no_record": "it has no record, so nothing was checked",
}
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"
_HINTS: dict[Hint, str] = {
    "framed_key": "It has the frame of a schema registry: use a serializer for plain text (StringSerializer)",
    "json_key": f"It is JSON: use plain text, in Kafka Connect key.converter={_STRINGS}",
    "json_headers": f"The headers are JSON: set header.converter={_STRINGS}",
    "json_text": f"The event is inside a JSON string: set value.converter={_STRINGS}",
    "data_alone": "The value is data without an event: publish the whole event, or send its attributes in the headers "
    "ce_specversion, ce_id, ce_source and ce_type",
    "connect_envelope": "The event is inside an envelope of Kafka Connect: set value.converter.schemas.enable=false",
}


def fault(found: Fault) -> str:
    """Returns what is wrong with a record, what to set if the producer wraps its records, and which event it was."""
    hint = f". {_HINTS[found.hint]}" if found.hint else ""
    id_, source = found.event_id, found.event_source
    event = f"{id_} of {source}" if id_ and source else id_ or (f"of {source}" if source else "")
    return f"{_problem(found)}{hint}{f' (event {event})' if event else ''}"


def _problem(found: Fault) -> str:
    ending = f": expected {found.expected}" if found.expected else ""
    return _FAULTS[found.kind].format(
        place=_place(found.path),
        path=found.path,
        expected=found.expected,
        ending=f": allowed are {', '.join(found.allowed)}" if found.allowed else ending,
        nearest=f": did you mean `{found.expected}`?" if found.expected else "",
        found=_FOUND.get(found.found, found.found) if found.kind == "wrong_type" else found.found,
        count=found.count,
        most=found.most,
    )


def _place(path: str) -> str:
    if path.startswith("$"):
        return f"`{path}`"
    field, _, name = path.partition(".")
    return f"header {name}" if name else "the message key" if field == "key" else field


def trouble(found: LineTrouble) -> str:
    """Returns why a line does not work, as one text."""
    match found:
        case HaltedLine():
            accept = f". {acceptable(found)}: {accept_command(found)}" if found.ranges else ""
            return f"{halt(found)}; the last: {last(found)}{accept}"
        case FailingLine(line, error):
            return defect(f"the line {line}", error)
        case StandingByLine(generation, required, mapping):
            return f"generation {generation} requires mapping version {required}, this program has {mapping}"
        case Former(_, text):
            return text
        case unknown:
            assert_never(unknown)


def line_state(state: str, found: LineTrouble | None) -> str:
    """Returns what a line does, and why it does not work."""
    return f"{state}: {trouble(found)}" if found else state


def right(refused: KafkaRight) -> str:
    """Returns which right somebody lacks."""
    several = "s" if len(refused.names) > 1 else ""
    of = f" on {refused.resource}{several} {', '.join(refused.names)}" if refused.names else f" on a {refused.resource}"
    return f"the right {refused.operation}{of}"


def no_step(line: str, unavailable: str) -> str:
    """Returns that a line does nothing, and what the last error was, if there was one."""
    return f"{line}: no step has succeeded{f' ({unavailable})' if unavailable else ''}"


def halt(found: HaltedLine) -> str:
    """Returns how many bad records there were, and the limit of them."""
    match found.limit:
        case "row":
            return f"{found.count} consecutive bad records (LEADVIEW_DEAD_LETTER_ROW is {found.most:g})"
        case "share":
            limit = f"LEADVIEW_DEAD_LETTER_SHARE is {found.most:g}"
            return f"{found.count} of the last {found.window} records are bad ({limit})"
        case unknown:
            assert_never(unknown)


def last(found: HaltedLine) -> str:
    """Returns the last bad record that counted, and what is wrong with it."""
    return f"{found.last}: {fault(found.fault)}"


def acceptable(found: HaltedLine) -> str:
    """Returns what to think about before the records are accepted."""
    return (
        f"Only if none of them is needed, accept these {found.bad} bad records, with those behind the last one. This "
        "leaves them out for good"
    )


def accept_command(found: HaltedLine) -> str:
    """Returns a line to paste."""
    return as_called(f"dead-letters accept {' '.join(found.ranges)} --note 'why'")


def as_called(words: str = "") -> str:
    """Returns a command of operators as this process was called: `leadview <words>` if that is installed,
    `python -m leadview <words>`, or otherwise `python -m projector <words>`.

    Without words it is the program. Worker processes inherit how the first one was called.
    """
    called = Path(sys.argv[0])
    of_package = called.name == "__main__.py"
    name = called.parent.name if of_package else called.stem
    program = "python -m projector" if name != "leadview" else f"python -m {name}" if of_package else name
    return f"{program} {words}".rstrip()


def defect(what: str, error: str) -> str:
    """Returns what to say of an error that nobody expected. `error` is the name of its type."""
    return f"{what} failed with {error}, which is a defect of Leadview: see its log"


def utc(milliseconds: int, timespec: str = "milliseconds") -> str:
    """Returns milliseconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
