"""Records as a producer gives them in lines: a JSON object, or a message key, a tab and a value.

    {"key": "…", "headers": {"ce_id": "…"}, "value": {…}}    the value as JSON, as a text, or null for a tombstone
    {"key": "…", "value_base64": "…"}                        a value that is not text
    <key><tab><value>                                        an empty value and `null` are tombstones

They become the same records as those that Kafka returns, so that the decoder cannot tell the difference.
"""

from base64 import b64decode
from binascii import Error as NotBase64

import msgspec

from projector.errors import BadRecord
from projector.kafka.batches import Headers, Unread
from projector.kafka.fetching import Unpacker, bounded
from projector.record import MAGIC, Record, unframed
from schemas.envelopes import event_type
from schemas.faults import Fault, unknown_type
from schemas.resources import BY_TOPIC, KINDS, LEAD, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_FORMS = 'a JSON object with "key", "headers" and "value", or a key, a tab and a value'


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line in JSON. Where a record was in Kafka is accepted, and does not matter."""

    key: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"")
    value_base64: str | None = None
    headers: dict[str, str | None] | list[tuple[str, str | None]] = {}
    topic: str | None = None
    partition: int = 0
    offset: int = 0
    timestamp: int = 0


class _Typed(msgspec.Struct):
    type: str | None = None


_LINE, _TYPED = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_Typed)
_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NotARecord(Exception):
    """A line is not a record, or nobody can know what it is about."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class Lines:
    """Turns lines into records. `kind` is what all of them are about; None if each event says it."""

    def __init__(self, settings: ProjectorSettings, kind: Kind | None) -> None:
        self._prefix = settings.topic_prefix
        self._kind = kind
        self._offset = -1
        self._unpacker = Unpacker({kind.topic: kind for kind in KINDS}, settings.max_record_bytes)

    def record(self, line: bytes) -> tuple[Record, Headers]:
        """Returns the record of a line, and all of its headers. Its offset is the number of lines before it. Raises
        NotARecord.
        """
        self._offset += 1
        if line.lstrip().startswith(b"{"):
            key, value, headers, topic = _parse(line)
        else:
            before, tab, after = line.partition(b"\t")
            if not tab:
                raise _bad_line("it is neither of the two forms")
            key, value, headers, topic = before, None if after in (b"", b"null") else after, (), None
        kind = self._kind or self._of_topic(topic) or _kind(key, value, headers)
        sizes = [len(part or b"") for part in (key, value)] + [len(name) + len(word or b"") for name, word in headers]
        found = Unread(self._offset, 0, key, value, headers)
        return bounded((kind.topic, 0), found, sum(sizes), self._unpacker), headers

    def _of_topic(self, topic: str | None) -> Kind | None:
        if topic is None:
            return None
        kind = BY_TOPIC.get(topic.removeprefix(self._prefix))
        if kind is None:
            allowed = tuple(f"{self._prefix}{kind.topic}" for kind in KINDS)
            raise NotARecord(Fault("not_valid", "topic", "one of the topics", allowed))
        return kind


def _bad_line(why: str) -> NotARecord:
    return NotARecord(Fault("not_a_record", "line", _FORMS, found=why))


def _parse(line: bytes) -> tuple[bytes | None, bytes | None, Headers, str | None]:
    try:
        line.decode()  # of a Raw, only the form is checked
        names = _NAMES.decode(line).keys()
        if {"specversion", "type"} <= names:
            raise _bad_line("this is an event without its message key")
        found = _LINE.decode(line)
        pairs = found.headers.items() if isinstance(found.headers, dict) else found.headers
        headers = tuple((name, None if word is None else word.encode()) for name, word in pairs)
        return None if found.key is None else found.key.encode(), _value(found), headers, found.topic
    except msgspec.ValidationError as error:
        raise _bad_line(str(error)) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _bad_line(f"its JSON cannot be read ({error})") from None


def _value(line: _Line) -> bytes | None:
    raw = bytes(line.value)
    if line.value_base64 is not None:
        try:
            return b64decode(line.value_base64, validate=True)
        except NotBase64:
            raise _bad_line("`value_base64` is not base64") from None
    if not raw:
        raise _bad_line("`value` is missing; null is a tombstone")
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw


def _kind(key: bytes | None, value: bytes | None, headers: Headers) -> Kind:
    """Returns what a record is about: its event says it. Raises NotARecord.

    A tombstone says nothing, so it may be about anything that has such a message key. The same for a value that is not
    JSON: the decoder says why.
    """
    likely = LEAD if b":" in (key or b"") else ORGANIZATION
    names = dict(headers)
    binary = "ce_specversion" in names
    if value is None:
        return likely
    if binary:
        type_ = (names.get("ce_type") or b"").decode(errors="replace") or None
    else:
        try:
            type_ = _TYPED.decode(unframed(value) if value and value[0] == MAGIC else value).type
        except msgspec.ValidationError as error:
            if "$.type" not in str(error):  # it is not an object
                return likely
            raise NotARecord(unknown_type(binary=False, missing=False)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadRecord):
            return likely
    for kind in KINDS:
        if type_ in (event_type(kind, "changed"), event_type(kind, "deleted")):
            return kind
    raise NotARecord(unknown_type(binary=binary, missing=type_ is None))
