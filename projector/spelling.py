"""Other spellings of what an event says, which msgspec does not read, in the spelling that it reads.

    1.0, 12e1       integers with a fraction of zero, as JSON Schema defines integers
    …59.9999999Z    a time that would be rounded beyond the year 9999, and one in a leap second (RFC 3339)
    data_base64     `data` as bytes in base64, as SDKs of CloudEvents write it (JSON event format, section 3.1.1)

Such a value is rare. Only one that msgspec has refused is tried in the usual spelling, so that all others cost nothing.
"""

import re
from base64 import b64decode
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from projector.errors import BadRecord
from schemas.envelopes import ENVELOPES
from schemas.faults import Fault
from schemas.resources import Kind

_EXACT = msgspec.json.Decoder(float_hook=Decimal)
"""Keeps all digits of numbers, so that a value that is encoded again has the same numbers."""
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_MOST_DIGITS = 20
"""Of an integer within 64 bits."""
_BASE64 = "$.data_base64"
_REFUSED = re.compile(r"got `float`|RFC3339|`data`|`\$\.data`")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:)(?:(59):60|(\d\d:\d\d)\.(\d+))(?:\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def usual(value: bytes, kind: Kind, refusal: str, check_cost: Callable[[bytes], None], *, binary: bool) -> bytes | None:
    """Returns a value in the usual spelling; None if that is the one it has, as far as `refusal` tells, the message of
    msgspec. `binary` says in which mode of CloudEvents the event is: then the value is the data.

    Raises BadRecord if `data_base64` is not JSON in base64, and what `check_cost` raises for this JSON.
    """
    if not _REFUSED.search(refusal):
        return None
    try:
        event = _EXACT.decode(value)
    except (msgspec.MsgspecError, ValueError, ArithmeticError):
        return None
    if not isinstance(event, dict):
        return None
    if not binary and event.get("data") is None and "data_base64" in event:
        event["data"] = _decoded(event.pop("data_base64"), check_cost)
    return _ENCODER.encode(_usual(_type(kind, binary), event))


def usual_time(text: str) -> str:
    """Returns a time of RFC 3339 with a leap second, or with more digits than microseconds, in a form that is read."""
    if (match := _TIME.fullmatch(text)) is None:
        return text
    before, leap, seconds, fraction, offset = match.groups()
    return f"{before}{leap}:59.999999{offset}" if leap else f"{before}{seconds}.{fraction[:6]}{offset}"


def _decoded(text: object, check_cost: Callable[[bytes], None]) -> Any:
    try:
        content = b64decode(text if isinstance(text, str) else "?", validate=True)
    except ValueError:
        raise BadRecord(Fault("not_valid", _BASE64, "base64")) from None
    check_cost(content)
    try:
        return _EXACT.decode(content)
    except (msgspec.MsgspecError, ValueError, ArithmeticError):
        raise BadRecord(Fault("not_valid", _BASE64, "base64 of a JSON object")) from None


@cache
def _type(kind: Kind, binary: bool) -> inspect.Type:
    return inspect.type_info(kind.event if binary else ENVELOPES[kind].changed)


def _usual(type_: inspect.Type, value: Any) -> Any:
    """Returns a value of this type in the usual spelling, with everything in it."""
    match type_, value:
        case inspect.UnionType(types=types), _:
            if not any(isinstance(each, inspect.FloatType) for each in types):
                for each in types:
                    value = _usual(each, value)
        case inspect.Metadata(type=inner), _:
            return _usual(inner, value)
        case inspect.IntType(), Decimal():
            if value.adjusted() < _MOST_DIGITS and value == value.to_integral_value():
                return int(value)
        case inspect.DateTimeType(), str():
            return usual_time(value)
        case inspect.ListType(item_type=item_type), [*items]:
            return [_usual(item_type, item) for item in items]
        case inspect.StructType(fields=fields), {}:
            known = {field.encode_name: field.type for field in fields}
            return {name: _usual(known[name], inner) if name in known else inner for name, inner in value.items()}
    return value
