"""What is wrong with a record, in words: which field, what was expected, and which values are allowed.

There is one wording, for dead letters, `validate` and docs/events.md. It never contains a value of the record. The
words follow from the types of the events (`schemas.events`), so a field that is added has them as well.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Struct, inspect

from schemas.envelopes import ENVELOPES, event_type
from schemas.fields import DecimalText, Integer, Sha256Hex, Timestamp, Uuid
from schemas.resources import Kind


class Fault(Struct, frozen=True):
    """What is wrong with a record. `text` says everything; the rest is for programs.

    `path` begins with `$`, the value, or it is `key`, `headers` or `headers.<name>`. `expected` is empty if the text
    says it in another way. `allowed` has the values of a field that has a list of them.
    """

    text: str
    path: str = "$"
    expected: str = ""
    allowed: tuple[str, ...] = ()


_PATH = r"`(\$[^`]*)`"
_MISSING = re.compile(rf"Object missing required field `(\w+)`(?: - at {_PATH})?")
_WRONG = re.compile(rf"(.+?)(?:, got `(\w+)`)?(?: - at {_PATH})", re.DOTALL)
_WRONG_VALUE = re.compile("Expected `object`, got `(\\w+)`")
_HEADER = re.compile(r"header (ce_(\w+)|\S+) (is (?:missing|not valid))")
_PLACES = (
    (re.compile(_PATH), ""),
    (re.compile(r"^header (\S+)"), "headers."),
    (re.compile(r"message (key)"), ""),
    (re.compile(r"\b(headers)\b"), ""),
)
"""Where the words of a limit, or of a rule that msgspec does not know, name the place, and what comes before it."""
_NOT_JSON = (("JSON is malformed: ", ""), ("Input data was truncated", "it ends too early"))
_PROBLEMS = (
    ("Number out of range", "is a number out of range"),
    ("`int` ", "is out of range"),
    ("`array` of length <=", "has too many entries"),
    ("timezone component", "has no offset"),
)
_OWN = re.compile("[^:]* is not (?:JSON: expected )?(.+?)(?:: .*)?")
_STEP = re.compile(r"\.(\w+)|\[")
_INDEX = re.compile(r"\[[^]]*")
_NULL = "null"
_FOUND = {
    "null": _NULL,
    "str": "text",
    "int": "an integer",
    "float": "a number with a fraction",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}


def fault_of(message: str, kind: Kind, *, binary: bool) -> Fault:
    """Returns what a message of the decoder means: one of msgspec, or one of our own.

    `binary` says in which mode of CloudEvents the record is: then `data` is the whole value.
    """
    if binary:
        message = message.replace("`$.data.", "`$.")
    if found := _MISSING.fullmatch(message):
        return _fault(f"{found[2] or '$'}.{found[1]}", "is missing", kind, binary=binary)
    if found := _WRONG_VALUE.fullmatch(message):
        return _fault("$", f"is {_FOUND.get(found[1], found[1])}", kind, binary=binary)
    if found := _WRONG.fullmatch(message):
        problem = f"is {_FOUND.get(found[2], found[2])}" if found[2] else _problem(found[1])
        return _fault(found[3], problem, kind, binary=binary)
    if found := _HEADER.fullmatch(message):
        expected, allowed = _expectation(kind, False, f"$.{found[2]}")
        expected = expected.removesuffix(f", or {_NULL}")
        text = f"header {found[1]} {found[3]}{_ending(expected, allowed)}"
        return Fault(text, f"headers.{found[1]}", expected, allowed)
    for beginning, problem in _NOT_JSON:
        if message.startswith(beginning):
            return Fault(f"the value is not JSON: {problem or message.removeprefix(beginning)}", "$", "a JSON object")
    own = _OWN.fullmatch(message)
    return Fault(message, _place(message), own[1] if own else "")


def unknown_type(*, binary: bool, missing: bool) -> Fault:
    """Returns the fault of an event whose type is not one of Leadview's, if nothing else says what it is about."""
    allowed = tuple(event_type(kind, verb) for kind in ENVELOPES for verb in ("changed", "deleted"))
    place = "header ce_type" if binary else "`$.type`"
    text = f"{place} is {'missing' if missing else 'not valid'}{_ending('', allowed)}"
    return Fault(text, _place(text), f"one of {', '.join(allowed)}", allowed)


def _place(message: str) -> str:
    """Returns the place that a message names; the whole value if it names none."""
    for pattern, before in _PLACES:
        if found := pattern.search(message):
            return before + found[1]
    return "$"


def _fault(path: str, problem: str, kind: Kind, *, binary: bool) -> Fault:
    expected, allowed = _expectation(kind, binary, _INDEX.sub("[", path))
    return Fault(f"`{path}` {problem}{_ending(expected, allowed)}", path, expected, allowed)


def _problem(words: str) -> str:
    return next((problem for part, problem in _PROBLEMS if part in words), "is not valid")


def _ending(expected: str, allowed: tuple[str, ...]) -> str:
    if allowed:
        return f": allowed are {', '.join(allowed)}"
    return f": expected {expected}" if expected else ""


@cache
def _expectation(kind: Kind, binary: bool, path: str) -> tuple[str, tuple[str, ...]]:
    """Returns what is expected at a path, and the values that are allowed there, if the type lists them."""
    root: Any = kind.event if binary else ENVELOPES[kind].changed
    types = [inspect.type_info(root)]
    for step in _STEP.finditer(path):
        types = [inner for outer in types for inner in _inside(outer, step[1])]
    if not binary and path == "$.type":
        allowed: tuple[str, ...] = (event_type(kind, "changed"), event_type(kind, "deleted"))
    else:
        allowed = tuple(str(value) for each in _alternatives(types) for value in getattr(each, "values", ()))
    return f"one of {', '.join(allowed)}" if allowed else _words(types), allowed


def _inside(outer: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yields the types of a field; or of what a list or an object holds, if `field` is None."""
    for each in _alternatives([outer]):
        match each:
            case inspect.StructType(fields=fields):
                yield from (found.type for found in fields if found.encode_name == field)
            case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner) if field is None:
                yield inner


def _alternatives(types: list[inspect.Type]) -> Iterator[inspect.Type]:
    for type_ in types:
        match type_:
            case inspect.UnionType(types=inner):
                yield from _alternatives([*inner])
            case inspect.Metadata(type=inner_type):
                yield from _alternatives([inner_type])
            case _:
                yield type_


def _plain(hint: Any) -> inspect.Type:
    [found] = _alternatives([inspect.type_info(hint)])
    return found


_NAMED = (
    (_plain(Uuid), "a UUID"),
    (_plain(Timestamp), "an RFC 3339 time with an offset, such as 2026-03-02T09:15:00Z"),
    (_plain(Sha256Hex), "64 hexadecimal digits"),
    (_plain(DecimalText), 'a decimal number without an exponent, as text, such as "1234.50"'),
    (_plain(Integer), "an integer of at most 64 bits"),
)
"""The words for the types of `schemas.fields`."""


def _words(types: list[inspect.Type]) -> str:
    """Returns the words for any of these types; an empty text if every value is accepted."""
    words = list(dict.fromkeys(map(_word, _alternatives(types))))
    if "" in words:
        return ""
    *others, last = sorted(words, key=_NULL.__eq__) or [""]
    return f"{', '.join(others)}, or {last}" if others else last


def _word(type_: inspect.Type) -> str:
    named = next((words for known, words in _NAMED if known == type_), "")
    match type_:
        case _ if named:
            return named
        case inspect.NoneType():
            return _NULL
        case inspect.StrType(min_length=least):
            return "text that is not empty" if least else "text"
        case inspect.IntType(ge=int(least), le=int(most)):
            return f"an integer from {least:,} to {most:,}"
        case inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType(item_type=item, max_length=most):
            size = f"at most {most:,} entries, each " if most else ""
            return f"an array of {size}{_words([item])}"
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case _:
            return ""
