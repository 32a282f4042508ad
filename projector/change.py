"""Parses a record into the change that it describes: a CloudEvent 1.0, structured or binary, or a tombstone.

Pure: no clock, no I/O. A record that violates the contract raises BadRecord, with a fault that contains no value of
the payload.
"""

import re
from typing import Any, cast

import msgspec

from projector.errors import BadRecord
from projector.nesting import is_nested_deeper
from projector.record import FRAME_BYTES, MAGIC, EntityKey, Record, entity_key, unframed
from projector.spelling import usual, usual_time
from schemas import events
from schemas.envelopes import ENVELOPES, MISSPELT, event_type, mode_of
from schemas.faults import Fault, FaultKind, fault_of, of_header
from schemas.fields import Timestamp, are_lower_uuids
from schemas.ids import Ids
from schemas.layouts import milliseconds
from schemas.limits import MAX_CONTAINERS, MAX_EXPONENTS, MAX_EXTREMES, MAX_LEVELS, MAX_NAMES, MAX_TEXTS
from schemas.resources import KINDS, Kind


class Change(msgspec.Struct, frozen=True, gc=False):
    """The change of one entity. `entity` is None for a tombstone, which has no version."""

    kind: Kind
    key: EntityKey
    entity: events.Entity | None
    time: int
    """The time of the event in milliseconds since 1970; if the event has none, the timestamp of the record."""


class _Versioned(msgspec.Struct, frozen=True, gc=False):
    """The version in the `data` of any event."""

    version: int


class _VersionedEvent(msgspec.Struct, frozen=True, gc=False):
    data: _Versioned


_VERSION, _VERSION_IN_EVENT = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(_VersionedEvent)
_STRUCTURED: dict[Kind, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(envelopes.changed | envelopes.deleted) for kind, envelopes in ENVELOPES.items()
}
_DATA: dict[Kind, dict[str, msgspec.json.Decoder[Any]]] = {
    kind: {
        event_type(kind, "changed"): msgspec.json.Decoder(kind.event),
        event_type(kind, "deleted"): msgspec.json.Decoder(events.Deleted),
    }
    for kind in KINDS
}
_IDS: dict[type[events.Entity], Ids] = {kind.event: Ids(kind.event) for kind in KINDS}
_IDS[events.Deleted] = Ids(events.Deleted)
# RFC 6838, section 4.2: the characters of a media type.
_JSON_TYPE = re.compile(r"[a-z]+/([a-z0-9!#$&^_.+-]+\+)?json\s*(;.*)?", re.IGNORECASE)
# What takes long: any object or array becomes `[`, any digit 0 and any letter of an exponent `e`; a colon, which each
# name has behind it, and a quote remain. A sign is left out.
_MARKS = bytes(
    ord("[" if chr(code) in "[{" else "0" if chr(code) in "0123456789" else "e" if chr(code) in "eE" else " ")
    if chr(code) not in '":'
    else code
    for code in range(256)
)
# msgspec takes a few hundred times as long for such a number as for others, and twenty times for some with a smaller
# exponent, such as 1e23.
_EXTREME, _LONG, _EXPONENT = b"e000", b"0" * 200, b"e0"
_LIMITS: tuple[tuple[bytes, int, FaultKind], ...] = (
    (b"E", MAX_EXTREMES, "extreme_numbers"),
    (b"[", MAX_CONTAINERS, "containers"),
    (b"X", MAX_EXPONENTS, "exponents"),
    (b":", MAX_NAMES, "names"),
    (b'"', MAX_TEXTS, "texts"),
)
_PARTS = 2 * (sum(most for _, most, _ in _LIMITS) + 1)
_MORE_LEVELS = MAX_LEVELS + 2
# A smaller value cannot have much that takes long.
_LARGE = 8192
_VALUE = re.compile(r"""(['"]).*\1""", re.DOTALL)


def read(record: Record) -> Change:
    """Returns the change that a record describes. Raises BadRecord."""
    check_cost(record)
    return decoded(record)


def check_cost(record: Record) -> None:
    """Raises BadRecord if it would take long to decode this record, or more of the stack than there is."""
    value = record.value
    if not value:
        return
    if len(value) > _LARGE:
        _check_cost(_content(value))
    # This is `has_more_openers` without a call, because each record is asked.
    openers = len(value) - len(value.replace(b"[", b"", _MORE_LEVELS).replace(b"{", b"", _MORE_LEVELS))
    if openers >= _MORE_LEVELS and is_too_deep(record):
        raise BadRecord(Fault("recursion"))


def _check_data(data: bytes) -> None:
    """Raises BadRecord if it would take long to decode the data of an event, or more of the stack than there is."""
    if len(data) > _LARGE:
        _check_cost(_content(data))
    if is_nested_deeper(data, MAX_LEVELS + 1):
        raise BadRecord(Fault("recursion"))


def decoded(record: Record) -> Change:
    """Returns the change that a record describes, after `check_cost`. Raises BadRecord."""
    if record.problem:
        raise BadRecord(record.problem)
    if record.value is None:
        return Change(record.kind, entity_key(record), None, record.timestamp)
    try:
        entity, time = _read_event(record, record.value)
    except BadRecord as error:
        entity_key(record)  # what is wrong with the key is said first
        misspelt = min((name for name, _ in record.headers if name in MISSPELT), key=MISSPELT.__getitem__, default=None)
        if misspelt and not error.fault.path.startswith("$.data."):
            raise BadRecord(Fault("header_name", f"headers.{misspelt}", MISSPELT[misspelt])) from None
        raise
    key, entity = _with_checked_ids(record, entity)
    return Change(record.kind, key, entity, record.timestamp if time is None else time)


def is_too_deep(record: Record) -> bool:
    """Returns whether a field is nested deeper than MAX_LEVELS. Then no decoder may see the value.

    `data` is a level, too, and the event is one more, unless the value is `data` itself (binary mode).
    """
    value = record.value
    if not value:
        return False
    if value[0] == MAGIC:
        value = value[FRAME_BYTES:]
    if not is_nested_deeper(value, MAX_LEVELS + 1):
        return False
    return mode_of(dict(record.headers)) == "binary" or is_nested_deeper(value, MAX_LEVELS + 2)


def _content(value: bytes) -> bytes:
    """Returns the JSON of a value. Raises BadRecord."""
    return unframed(value) if value and value[0] == MAGIC else value


def _check_cost(value: bytes) -> None:
    """Raises BadRecord if it would take long to read this value.

    All of it is one pass in C over the bytes, whatever they are. A search for texts with a regular expression is not:
    behind a text that never ends, it begins again at each quote.
    """
    marks = value.translate(_MARKS, b"+-")
    if (
        marks.count(b"[") <= MAX_CONTAINERS
        and marks.count(_EXTREME) + marks.count(_LONG) <= MAX_EXTREMES
        and marks.count(_EXPONENT) <= MAX_EXPONENTS
        and marks.count(b":") <= MAX_NAMES
        and marks.count(b'"') <= 2 * MAX_TEXTS
    ):
        return
    # What is in a text does not count. This takes longer, and is hardly ever needed.
    found = _found(value)
    for mark, most, kind in _LIMITS:
        if found.count(mark) > most:
            raise BadRecord(Fault(kind, most=most))


def _found(value: bytes) -> bytes:
    """Returns a mark of `_LIMITS` for each of what they limit, outside of texts, and for each text. The rest of a value
    is not looked at if so much of it was found that one of the limits is exceeded.
    """
    value = value.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = value.translate(_MARKS, b"+-").replace(_EXTREME, b"E").replace(_LONG, b"E").replace(_EXPONENT, b"X")
    # Without empty texts, something is between any two texts. So behind `_PARTS` quotes, at least half of the parts are
    # outside of texts and hold a mark each, which is more than all limits together allow.
    outside = marks.translate(None, b" 0e").replace(b'""', b"").split(b'"', _PARTS)[:_PARTS:2]
    return b"".join(outside) + b'"' * (marks.count(b'"') // 2)


def version_of(record: Record) -> int | None:
    """Returns the version in a record; None if it has none.

    It takes much less time than `read`, and checks nothing else: the record may nevertheless be bad.
    """
    value = record.value
    if not value or record.problem or is_too_deep(record):
        return None
    try:
        if value[0] == MAGIC:
            value = unframed(value)
        if record.headers and mode_of(dict(record.headers)) == "binary":
            return _VERSION.decode(value).version
        return _VERSION_IN_EVENT.decode(value).data.version
    except (msgspec.MsgspecError, UnicodeDecodeError, BadRecord):
        return None


def _read_event(record: Record, value: bytes) -> tuple[events.Entity, int | None]:
    """Returns the entity and the time of an event, as far as it has one. Raises BadRecord."""
    try:
        if record.headers and (of_binary := _read_headers(record, value)):
            return of_binary
        value = unframed(value) if value and value[0] == MAGIC else value
        decoder = _STRUCTURED[record.kind]
        try:
            event = decoder.decode(value)
        except msgspec.MsgspecError as error:
            event = _respelt(decoder, value, record.kind, error, binary=False)
    except UnicodeDecodeError:
        raise BadRecord(Fault("not_utf8", expected="UTF-8")) from None
    if event.datacontenttype is not None:
        _check_json(event.datacontenttype, "$.datacontenttype")
    return event.data, None if event.time is None else milliseconds(event.time)


def _read_headers(record: Record, value: bytes) -> tuple[events.Entity, int | None] | None:
    """Returns the entity and the time of an event in binary mode, and None for one in structured mode. Raises BadRecord
    and UnicodeDecodeError.
    """
    headers = dict(record.headers)
    match mode_of(headers):
        case "batch":
            raise BadRecord(Fault("batch_of_events", "headers.content-type"))
        case "other_format":
            raise BadRecord(Fault("event_format", "headers.content-type"))
        case "binary":
            return _read_binary(record.kind, headers, _content(value))
    return None


def _respelt(
    decoder: msgspec.json.Decoder[Any], value: bytes, kind: Kind, refusal: msgspec.MsgspecError, *, binary: bool
) -> Any:
    """Returns what a value says that was refused, if it does in another spelling. Raises BadRecord and
    UnicodeDecodeError.
    """
    message = str(refusal)
    if (again := usual(value, kind, message, _check_data, binary=binary)) is not None:
        try:
            return decoder.decode(again)
        except msgspec.MsgspecError as error:
            message = str(error)
    if value.strip() in (b"", b"null"):
        raise BadRecord(Fault("null_text" if value.strip() else "empty"))
    # msgspec quotes the bad value, which may be personal and contain quotes.
    raise BadRecord(fault_of(_VALUE.sub("'…'", message), kind, binary=binary))


def _read_binary(kind: Kind, headers: dict[str, bytes | None], value: bytes) -> tuple[events.Entity, int | None]:
    attributes = {name: (headers.get(name) or b"").decode() for name in ("ce_specversion", "ce_id", "ce_source")}
    if missing := [name for name, text in attributes.items() if not text]:
        raise BadRecord(of_header("missing", missing[0], kind))
    if attributes["ce_specversion"] != "1.0":
        raise BadRecord(of_header("not_valid", "ce_specversion", kind))
    type_ = headers.get("ce_type")
    decoder = _DATA[kind].get((type_ or b"").decode())
    if decoder is None:
        raise BadRecord(of_header("not_valid" if type_ else "missing", "ce_type", kind))
    # A client that sends what an event does not have sends an empty header.
    if content_type := headers.get("content-type"):
        _check_json(content_type.decode(), "headers.content-type")
    time = headers.get("ce_time")
    try:
        entity = decoder.decode(value)
    except msgspec.MsgspecError as error:
        entity = _respelt(decoder, value, kind, error, binary=True)
    return entity, _read_time(time.decode(), kind) if time else None


def _read_time(text: str, kind: Kind) -> int:
    try:
        return milliseconds(msgspec.convert(usual_time(text), Timestamp))
    except msgspec.ValidationError:
        raise BadRecord(of_header("not_valid", "ce_time", kind)) from None


def _check_json(content_type: str, path: str) -> None:
    if not _JSON_TYPE.fullmatch(content_type.strip()):
        raise BadRecord(Fault("not_json_type", path, "a JSON type, such as application/json"))


def _with_checked_ids(record: Record, entity: events.Entity) -> tuple[EntityKey, events.Entity]:
    """Returns the ids in the message key, and the entity with its ids in lower case. Raises BadRecord."""
    ids = _IDS[type(entity)]
    # Nearly always the key is made of ids of the entity in lower case. Then it need not be parsed.
    own = f"{entity.organization_id}:{entity.id}"
    if record.key == own.encode() and are_lower_uuids(ids.joined(entity).encode()):
        return EntityKey(entity.organization_id, entity.id), entity
    key = entity_key(record)
    for name in ("organization_id", "id"):
        if getattr(entity, name).lower() != getattr(key, name):
            raise BadRecord(Fault("other_than_key", f"$.data.{name}", "that of the message key"))
    if wrong := ids.wrong(entity):
        raise BadRecord(Fault("not_expected", f"$.data.{wrong}", "a UUID"))
    return key, cast(events.Entity, ids.lowered(entity))
