"""The bytes of events: cases that readers of JSON disagree on, texts that programs fail on, and shapes at the limits.

Each of them becomes either a document that ordinary readers and the JSON Schema accept, or a BadRecord: never another
error. What takes long is counted elsewhere (`tests/unit/test_linear.py`). Hypothesis grows shapes up to each limit and
beyond it. The cases were written for this file; they try what JSONTestSuite and the Big List of Naughty Strings try.
"""

import re
import time
from random import Random
from typing import Any

import msgspec
import orjson
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from schemas.limits import MAX_ENTRIES, MAX_INTEGER, MAX_LEVELS, MIN_INTEGER
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.hostile_events import MORSELS, VALID, check, tokens

_EXAMPLES = 30
_BEYOND_ASCII = re.compile("[^ -~]+")

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


def fuzz(seed: int, seconds: float) -> str:
    random, until = Random(seed), time.monotonic() + seconds
    counts = {"good": 0, "bad": 0}
    listed = _listed()
    random.shuffle(listed)
    rounds = 0
    while not rounds or time.monotonic() < until:
        _grown(seed + rounds, counts)
        at = rounds * _EXAMPLES % len(listed)
        for message in [*listed[at : at + _EXAMPLES], *(_replaced(random) for _ in range(_EXAMPLES))]:
            counts[check(message)] += 1
        rounds += 1
    return f"{counts['good']:,} good and {counts['bad']:,} bad events"


def _listed() -> list[Message]:
    """Every case and every naughty text in the place of every value of every valid event, and instead of it."""
    found = [msgspec.structs.replace(message, value=case) for message in VALID for case in CASES]
    texts = [_escaped(text) for text in NAUGHTY] + [orjson.dumps(text) for text in NAUGHTY]
    for message in VALID:
        value = message.value or b""
        places = tokens(value)
        for number, case in enumerate((*CASES, *texts)):
            start, end = places[number * 7 % len(places)]
            found.append(msgspec.structs.replace(message, value=value[:start] + case + value[end:]))
    return found


def _replaced(random: Random) -> Message:
    """Returns a valid event in which some values are cases or naughty texts, or which is damaged."""
    message = random.choice(VALID)
    value = message.value or b""
    for _ in range(random.randint(1, 3)):
        places = tokens(value)
        if not places:
            break
        start, end = random.choice(places)
        case = random.choice(
            (random.choice(CASES), _escaped(random.choice(NAUGHTY)), value[slice(*random.choice(places))])
        )
        value = value[:start] + case + value[end:]
    if random.random() < 0.2:
        at = random.randrange(len(value) + 1)
        value = value[:at] + random.randbytes(random.randint(0, 3)) + value[at + random.randint(0, 3) :]
    return msgspec.structs.replace(message, value=value)


_texts = st.text(max_size=20) | st.sampled_from(NAUGHTY)
_integers = st.integers() | st.sampled_from([MIN_INTEGER, MIN_INTEGER - 1, MAX_INTEGER, MAX_INTEGER + 1, 10**4299])
_scalars = st.none() | st.booleans() | _integers | st.floats(allow_nan=False, allow_infinity=False) | _texts
_lengths = st.sampled_from([0, 1, 2, MAX_ENTRIES - 1, MAX_ENTRIES, MAX_ENTRIES + 1])
_levels = st.sampled_from([1, 2, MAX_LEVELS - 2, MAX_LEVELS - 1, MAX_LEVELS, MAX_LEVELS + 1, 2000])
_trees = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4), max_leaves=20
)


def _grown(number: int, counts: dict[str, int]) -> None:
    @seed(number)
    @settings(
        max_examples=_EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(tree=_trees, length=_lengths, levels=_levels, scalar=_scalars, kind=st.integers(0, 5))
    def run(tree: Any, length: int, levels: int, scalar: Any, kind: int) -> None:
        counts[check(_shaped(tree, length, levels, scalar, kind))] += 1

    run()


def _shaped(tree: Any, length: int, levels: int, scalar: Any, kind: int) -> Message:
    match kind:
        case 0:
            return crm.within(crm.lead(attribution={"a": 0, "b": "PLACE"}), _dumped(tree))
        case 1:
            return crm.within(crm.lead(attribution={"b": "PLACE"}), b"[" + b",".join([_dumped(scalar)] * length) + b"]")
        case 2:
            return crm.within(crm.lead(attribution={"b": "PLACE"}), b'{"a":' * levels + _dumped(scalar) + b"}" * levels)
        case 3:
            return crm.within(crm.lead(tags="PLACE"), b"[" + b",".join([_dumped(scalar)] * length) + b"]")
        case 4:
            return crm.within(crm.contact(custom_fields={"a": "PLACE"}), _dumped(tree))
        case _:
            return crm.lead(events=[{"id": crm.uuid(n)} for n in range(length)], referrer=str(scalar))


def _dumped(value: Any) -> bytes:
    try:
        return _escaped(value)
    except ValueError:  # an integer that Python does not write
        return b"9" * 4400


def _escaped(value: Any) -> bytes:
    """Returns JSON that is ASCII, with spaces: of other characters it has the escapes, as many encoders write them.
    Encoded by msgspec, because orjson refuses integers of more than 64 bits.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    return _BEYOND_ASCII.sub(_escape, text).encode()


def _escape(found: re.Match[str]) -> str:
    """Returns the escapes of the UTF-16 units of what was found."""
    return "\\u" + found[0].encode("utf-16-be").hex("_", 2).replace("_", "\\u")
