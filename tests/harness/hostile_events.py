"""What must be true of every record, whatever its bytes are; and what is sent to see that (`HOSTILE`): any bytes, valid
events that are damaged, cases that readers of JSON disagree on, texts that programs fail on, and shapes at the limits.

Each record becomes either a document that ordinary readers and the JSON Schema accept, or a BadRecord: never another
error. The cases were written for this file; they try what JSONTestSuite and the Big List of Naughty Strings try.
"""

import json  # noqa: TID251 - as another reader than ours, and one that can be told to read what is not JSON
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
from hypothesis import strategies as st

from docs.generate.json_schema import event_schemas
from docs.generate.openapi import document
from projector import mapping
from projector.change import read
from projector.errors import BadRecord
from projector.record import Record
from schemas import resources
from schemas.limits import MAX_ENTRIES, MAX_INTEGER, MAX_LEVELS, MIN_INTEGER
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.expected import documents_of

SECRET = "Zaphodia"
"""Represents personal data: the reason of a bad record must not quote it."""

VALID = [
    crm.lead(
        attribution={"a": [1, {"b": SECRET}], "n": 1.5},
        events=[{"id": crm.uuid(1), "starts_at": crm.at(5), "length_hours": 2.5, "guests": 3, "location": SECRET}],
        quote={"total": "1.50", "currency": "EUR"},
        counts={"notes": 1, "tasks": 0},
        tags=["x", SECRET],
        referrer=SECRET,
        assigned_to=crm.uuid(7),
        archived_at=crm.at(9),
    ),
    crm.contact(
        first_name=SECRET, custom_fields={"a": 1, "b": [SECRET], "c": None, "d": 0.5}, email="a@b.c", phone="1"
    ),
    crm.organization(rate_limits={"key": {"quota": 1, "window_seconds": 1}}),
    crm.api_key(expires_at=crm.at(1), name=SECRET),
    crm.deleted(resources.LEAD, 2),
]
VALID += [crm.binary(message) for message in VALID]
VALID += [crm.framed(VALID[0]), crm.framed(VALID[6])]

MORSELS: list[bytes] = [
    *b"null true false -0 -0.0 1.0 1e2 1e400 -1e400 1e-400 NaN Infinity -Infinity 007 +1 .5 1. 0x10".split(),
    *b'{} [] [[]] {"a":{}} [null] "" {"":""} {"a":1,"a":2} {,} [1,] //'.split(),
    *(str(2**power + 1).encode() for power in (31, 53, 63, 64, 1000)),
    *(b"9" * 4299, b"9" * 4400, b"0." + b"9" * 400, b'"' + b"9" * 65 + b'"'),
    *(
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\ude00"',
        b'"\\u0000"',
        b'"\\u2028"',
        b'"\\x41"',
        b'"\x00"',
        b'"\n"',
    ),
    *(b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b"\xef\xbb\xbf", b'"\xef\xbb\xbf"'),
    *('"\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"'.encode(), '"e\u0301\u202e"'.encode(), b'"\'); DROP"', b'"${x}"'),
    *(b'"%s"' % SECRET.encode(), b'{"%s":"%s"}' % ((SECRET.encode(),) * 2), b'["%s",1]' % SECRET.encode()),
    *(
        b'"2026-01-01T00:00:00Z"',
        b'"0001-01-01T00:00:00+14:00"',
        b'"9999-12-31T23:59:59.999999-14:00"',
        b'"1e400"',
        b'"1e5"',
    ),
    *(b"[" * depth + b"]" * depth for depth in (99, 101, 300, 5000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (99, 100, 101, 300, 5000)),
    # Frames of schema registries: cut off, empty, two of them, around Avro, around Protobuf, of another version.
    *(b"\0", b"\0\0\0\0", b"\0\0\0\0\1", b"\0\0\0\0\1{}", b"\0\0\0\0\1\0\0\0\0\1{}", b"\0{}", b"\1\0\0\0\1{}"),
    *(b"\0\0\0\0\1\x061.0", b"\0\0\0\0\1\0\n\x031.0", b"\0\0\0\0\1 {", b"\0\0\0\0\1\xff"),
]
CASES: tuple[bytes, ...] = (
    *MORSELS,
    # Numbers.
    *b"0 -0 0e0 0E+0 1E22 1e-22 -1e-400 0.5e1 1e00 1e+00 -01 01 0.e1 2.e3 .2e-3".split(),
    *b"1eE2 9.3e+ 1+2 +1 -+1 0x42 ++1 1. --1".split(),
    *b"-NaN -Infinity Inf nan 1_000 1.2.3 1e1e1 0b1 \xef\xbc\x91 -foo 123. 1e5000000000 -1e+9999 1E400 2e308".split(),
    *(b"1" + b"0" * zeros for zeros in (15, 16, 17, 18, 19, 20, 308, 309, 400)),
    *(
        str(number).encode()
        for edge in (MIN_INTEGER, MAX_INTEGER, 2**53, 2**64)
        for number in (edge - 1, edge, edge + 1)
    ),
    # Structure.
    *b'[1,] [1,,2] [,1] ["a" [1 1] [1 {"a" {"a":} {"a" 1} {:1} {1:1} {a:1}'.split(),
    *b'{\'a\':1} {"a":1,} {"a":1,,"b":2} {"a":1}}'.split(),
    *b"[]] ]] }} [} {] [1}] nul tru fals NULL True undefined [true nope] <null> /**/1 1/**/ #1 //1".split(),
    *(
        b"",
        b" ",
        b"\x0c1",
        b"\x0b1",
        b"\xa01",
        b"1\x00",
        b"\xef\xbb\xbf1",
        b"\xfe\xff\x001",
        b"\xff\xfe1\x00",
        b"\xe2\x81\xa01",
    ),
    # Texts.
    *(
        b'"%b"' % text
        for text in (b"\\a", b"\\", b"\\u", b"\\u1", b"\\u00A", b"\\u12G4", b"\\U0041", b"\\x00", b"\t", b"\x1f")
    ),
    *(
        b'"%b"' % text
        for text in (b"\\uD800\\u", b"\\uD800x", b"\\uDFFF", b"\\uDd1e\\uD834", b"\\uD834\\uDd1e", b"\\uFFFE")
    ),
    *(
        b'"%b"' % text
        for text in (b"\xe9", b"\xf8\x88\x80\x80\x80", b"\xc1\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\x7f")
    ),
)

NAUGHTY: tuple[str, ...] = (
    *("", " ", "undefined", "null", "NaN", "true", "0", "-1", "1e400", "[object Object]", "\0", "\x1f\x7f\x80\x9f"),
    *(
        "\ufeff",
        "\ufffe",
        "\uffff",
        "\u200b\u200d",
        "\u202e\u2066",
        "\u2028\u2029",
        "e\u0301\u0323" * 50,
        "\U0001f9d1\u200d\U0001f692",
    ),
    *(
        "\u00df\u0130\u0131\u1e9e\ufb03",
        "\u0627\u0644\u0639",
        "\u65e5\u672c",
        "\U00010330\U0010ffff",
        "''",
        '"',
        '"}',
        "\\",
        "\\u0000",
    ),
    *(
        "'; DROP TABLE leads;--",
        "<script>alert(1)</script>",
        "${jndi:x}",
        "{{7*7}}",
        "%s%n%x",
        "../../etc/passwd",
        "\r\nX: y",
    ),
    *(
        '","contact":',
        '"contact":null',
        '\0,"contact":',
        "{organization}",
        "lv3{ledger}:control",
        "$.data",
        "`$.data.id`",
    ),
)
_BEYOND_ASCII = re.compile("[^ -~]+")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9.]+|true|false|null|[\[{]')


def tokens(value: bytes) -> list[tuple[int, int]]:
    """Returns where each JSON token begins and ends."""
    return [match.span() for match in _TOKEN.finditer(value)]


def check(message: Message) -> str:
    """Returns whether a record is "good" or "bad". Raises AssertionError if it is neither or is not handled as such."""
    record = message.record()
    documents = documents_of([record])
    reason = _reason(record)
    if reason is not None:
        assert not documents
        assert SECRET not in reason
        return "bad"
    for (kind, *_), body in documents.items():
        document = json.loads(body.decode(), parse_constant=_no_number)
        assert msgspec.json.decode(body) == document
        _of_documents(kind).validate(document)
    if message.value is not None and "ce_specversion" not in dict(message.headers):
        event = _leniently(message.value)
        _of_events(event["type"]).validate(event)
    return "good"


def _reason(record: Record) -> str | None:
    """Returns why the record is bad; None if it is good."""
    try:
        mapping.intent(read(record), record)
    except BadRecord as error:
        return str(error)
    return None


def _leniently(value: bytes) -> Any:
    """Unknown fields are ignored, so text and numbers in them need not be valid."""
    text = value[5 if value.startswith(b"\0") else 0 :].decode(errors="replace")
    return json.loads(text, strict=False, parse_int=lambda digits: int(digits[:4300]))


def _no_number(text: str) -> Any:
    raise AssertionError(f"{text} is not JSON")


@cache
def _of_documents(kind: resources.Kind) -> jsonschema_rs.Validator:
    assert isinstance(kind, resources.Resource)
    name = kind.document.__name__
    components = document()["components"]
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})


@cache
def _of_events(event_type: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(event_schemas()[event_type])


def _escaped(value: Any) -> bytes:
    """Returns JSON that is ASCII, with spaces: of other characters it has the escapes, as many encoders write them.
    Encoded by msgspec, because orjson refuses integers of more than 64 bits.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    return _BEYOND_ASCII.sub(_escape, text).encode()


def _escape(found: re.Match[str]) -> str:
    """Returns the escapes of the UTF-16 units of what was found."""
    return "\\u" + found[0].encode("utf-16-be").hex("_", 2).replace("_", "\\u")


_valid = st.sampled_from(VALID)
_texts = st.text(max_size=20) | st.sampled_from((*NAUGHTY, SECRET))
_encoders: st.SearchStrategy[Callable[[Any], bytes]] = st.sampled_from([msgspec.json.encode, _escaped])
_cases = st.sampled_from(CASES) | st.builds(lambda text, encode: encode(text), st.sampled_from(NAUGHTY), _encoders)
_integers = st.integers() | st.sampled_from([MIN_INTEGER, MIN_INTEGER - 1, MAX_INTEGER, MAX_INTEGER + 1, 10**4299])
_scalars = st.none() | st.booleans() | _integers | st.floats(allow_nan=False, allow_infinity=False) | _texts
_lengths = st.sampled_from([0, 1, 2, MAX_ENTRIES - 1, MAX_ENTRIES, MAX_ENTRIES + 1])
_levels = st.sampled_from([1, 2, MAX_LEVELS - 2, MAX_LEVELS - 1, MAX_LEVELS, MAX_LEVELS + 1, 2000])
TREES = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4), max_leaves=20
)
_names = st.sampled_from(["ce_specversion", "ce_type", "ce_time", "ce_id", "ce_source", "content-type"]) | st.text()


@st.composite
def _with_bytes_replaced(draw: st.DrawFn) -> Message:
    message = draw(_valid)
    value = message.value or b""
    start = draw(st.integers(0, len(value)))
    end = draw(st.integers(start, min(len(value), start + 8)))
    return msgspec.structs.replace(message, value=value[:start] + draw(st.binary(max_size=8)) + value[end:])


@st.composite
def _with_a_field_replaced(draw: st.DrawFn) -> Message:
    message = draw(_valid)
    frame, brace, rest = (message.value or b"").partition(b"{")
    event: Any = msgspec.json.decode(brace + rest)
    place = event.get("data", event)
    place[draw(st.sampled_from(sorted(place)))] = draw(TREES)
    return msgspec.structs.replace(message, value=frame + draw(_encoders)(event))


@st.composite
def _with_headers(draw: st.DrawFn) -> Message:
    message = draw(_valid)
    headers = draw(st.lists(st.tuples(_names, st.binary(max_size=30)), max_size=4))
    return msgspec.structs.replace(message, headers=(*message.headers, *headers))


@st.composite
def _with_cases(draw: st.DrawFn) -> Message:
    """Some values are cases, texts, or other values of the same event; or a case takes the place of the event."""
    message = draw(_valid)
    value = message.value or b""
    for _ in range(draw(st.integers(1, 3))):
        places = [*tokens(value), (0, len(value))]
        start, end = draw(st.sampled_from(places))
        other = value[slice(*draw(st.sampled_from(places)))]
        value = value[:start] + draw(_cases | st.just(other)) + value[end:]
    return msgspec.structs.replace(message, value=value)


@st.composite
def _cut_off(draw: st.DrawFn) -> Message:
    """Also with bits that are flipped."""
    message = draw(_valid)
    value = bytearray(message.value or b"")
    for bit in draw(st.lists(st.integers(0, len(value) * 8 - 1), max_size=3)):
        value[bit // 8] ^= 1 << bit % 8
    return msgspec.structs.replace(message, value=bytes(value[: draw(st.integers(0, len(value)))]))


def _shaped(tree: Any, length: int, levels: int, scalar: Any, kind: int) -> Message:
    match kind:
        case 0:
            return crm.within(crm.lead(attribution={"a": 0, "b": "PLACE"}), _escaped(tree))
        case 1:
            return crm.within(
                crm.lead(attribution={"b": "PLACE"}), b"[" + b",".join([_escaped(scalar)] * length) + b"]"
            )
        case 2:
            return crm.within(
                crm.lead(attribution={"b": "PLACE"}), b'{"a":' * levels + _escaped(scalar) + b"}" * levels
            )
        case 3:
            return crm.within(crm.lead(tags="PLACE"), b"[" + b",".join([_escaped(scalar)] * length) + b"]")
        case 4:
            return crm.within(crm.contact(custom_fields={"a": "PLACE"}), _escaped(tree))
        case _:
            return crm.lead(events=[{"id": crm.uuid(n)} for n in range(length)], referrer=str(scalar))


HOSTILE: dict[str, st.SearchStrategy[Message]] = {
    "any bytes": st.builds(Message, st.sampled_from(resources.KINDS), st.binary(max_size=80), st.none() | st.binary()),
    "bytes are replaced": _with_bytes_replaced(),
    "a field is replaced": _with_a_field_replaced(),
    "any headers": _with_headers(),
    "values that programs choke on": _with_cases(),
    "cut off": _cut_off(),
    "shapes at the limits": st.builds(_shaped, TREES, _lengths, _levels, _scalars, st.integers(0, 5)),
}
"""What is sent, by what is wrong with it, if anything is."""
