"""Whatever others send, reading it takes a time in proportion to its size, and a record at most a known share of it."""

import ast
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from projector import change
from projector.errors import BadRecord
from schemas.limits import MAX_CONTAINERS, MAX_EXPONENTS, MAX_EXTREMES, MAX_NAMES, MAX_RECORD_BYTES, MAX_TEXTS
from tests.harness.crm import Message
from tests.harness.programs import installed
from tests.harness.worst_inputs import OF_RECORDS, PLAIN, WORST, Worst, counted, longest_part, seconds, slow

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
PRODUCT = ("api", "leadview", "operate", "projector", "runtime", "schemas")
OURS = "it sees only what this repository holds, or what an operator wrote into settings or a command"
OPERATED = "it sees one header of the operator's own gateway, which http.client limits to 64 KiB"
EXPRESSIONS = {
    # Where it is: the name of an input in WORST, or why it needs none.
    "projector/change.py _JSON_TYPE": "a content type",
    "projector/change.py _VALUE": "a message of msgspec",
    "projector/nesting.py _RUN": "nested pairs: attribution",
    "schemas/faults.py _COMMANDS": "a fault",
    "schemas/faults.py _MISSING": "a fault",
    "schemas/faults.py _WRONG": "a fault",
    "schemas/faults.py _WRONG_VALUE": "a fault without a place",
    "schemas/expectations.py _STEP": "a fault",
    "schemas/expectations.py _INDEX": "a fault",
    "schemas/names.py IN_GENERATION": "a name of a document",
    "schemas/names.py OF_ACCESS": "a name of a document",
    "projector/kafka/sign_in.py _TOKEN": "a token",
    "projector/kafka/sign_in.py _CODE": "a token",
    "operate/explain/explainer.py _COORDINATES": "a question with colons",
    "operate/explain/explainer.py _INSIDE": "a question",
    "operate/explain/explainer.py _HASH": "a question",
    "operate/console/pages.py _NAME": "the name of a page",
    "operate/explain/records.py _STEP": "a fault",
    "api/edge.py _EMPTY_LINES": "empty lines before a request",
    "api/edge.py _HOST": "a host in brackets",
    "api/edge.py _METHOD": "every part of it has a fixed length",
    "api/edge.py _UNRESERVED": "a path",
    "api/request.py _OPAQUE_TAG": "entity tags",
    "api/request.py _CODING": "entity tags with codings",
    "api/request.py _is_token": "names of headers",
    "api/waiting.py _PREFERENCES": "preferences",
    "api/waiting.py _is_number": "seconds to wait",
    "projector/spelling.py _REFUSED": "a message of msgspec",
    "projector/spelling.py _TIME": "a time with many digits",
    "api/request.py _OWN_ETAG": "entity tags of ours",
    "api/request.py _VALID_ID": "a request id",
    "schemas/api_keys.py _LIKE_THE_REST": "a request id",
    "schemas/trace.py _TRACEPARENT": "every part of it has a fixed length",
    "api/request.py is_uuid": "every part of it has a fixed length",
    "schemas/fields.py UUID_BYTES": "every part of it has a fixed length",
    "projector/problem.py _tag": OURS,
    "projector/offsets.py _PAIR": OURS,
    "operate/commands/gateway.py _expect": OPERATED,
    "operate/commands/argument_types.py key": OURS,
    "operate/commands/argument_types.py integer": OURS,
    "operate/commands/arguments.py _field": OURS,
    "operate/console/pages.py anchor": OURS,
    "operate/console/pages.py _MARK": OURS,
    "operate/console/server.py _LINE": OURS,
    "schemas/layouts.py _CONSTANT": OURS,
    "schemas/control.py _GENERATION": OURS,
    "runtime/redis/scripts.py _HERE": OURS,
    "runtime/redis/scripts.py _LINE": OURS,
    "runtime/redis/scripts.py _NAMED": OURS,
    "runtime/redis/scripts.py _ROWS": OURS,
    "runtime/redis/scripts.py _SECTION": OURS,
    "runtime/redis/scripts.py _FUNCTION": OURS,
    "runtime/redis/scripts.py _needed": OURS,
    "schemas/redis_url.py _FORM": OURS,
    "schemas/redis_url.py without_password": OURS,
    "schemas/settings.py _PASSWORDS_IN_URL": OURS,
    "schemas/settings.py limit": OURS,
    "schemas/settings.py _web_address": OURS,
}
DOUBLE = 2.5
"""At most so many times the instructions for twice the input."""


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """The garbage collector runs when it likes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("worst", WORST, ids=[worst.name for worst in WORST])
def test_the_time_is_in_proportion_to_the_input(worst: Worst) -> None:
    assert slow(worst) == ""


def factor_of(worst: Worst) -> int:
    """Returns how many times the least size is doubled: a limit in between would be a change of the way, not of its
    cost. 0 for a text that zstd compresses in another way at each size; its time is compared above.
    """
    if worst.name == "packed texts":
        return 0
    if worst.name.startswith("quotes of both kinds"):
        return 8
    return 4 if worst.name.startswith(("integers", "quotes: ", "the names of many", "the short names of many")) else 1


@pytest.mark.counted
def test_twice_the_input_takes_twice_the_instructions() -> None:
    """Counted, so that the answer is the same on every machine."""
    installed("valgrind", "valgrind")
    ratios: dict[str, float] = {}
    for factor in (1, 4, 8):
        names = [worst.name for worst in WORST if factor_of(worst) == factor]
        with ThreadPoolExecutor() as pool:
            once, twice = pool.map(partial(counted, names), (factor, 2 * factor))
        ratios |= {name: twice[name] / once[name] for name in names}
    assert {name: ratio for name, ratio in ratios.items() if ratio >= DOUBLE} == {}


def test_every_expression_has_its_worst_input() -> None:
    """One that is new gets an input in `tests/harness/worst_inputs.py`, and a line above."""
    found = {
        place for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")) for place in expressions(path)
    }
    assert found == EXPRESSIONS.keys()
    named = {worst.name for worst in WORST} | {OURS, OPERATED, "every part of it has a fixed length"}
    assert set(EXPRESSIONS.values()) <= named


def expressions(path: Path) -> Iterator[str]:
    """Yields where a file uses a regular expression: the constant, or else the function."""
    for scope in ast.walk(ast.parse(path.read_text("utf-8"))):
        for each in scope.body if isinstance(scope, ast.Module | ast.ClassDef) else ():
            if not isinstance(each, ast.ClassDef) and any(map(_is_expression, ast.walk(each))):
                yield f"{path.relative_to(ROOT)} {_name(each)}"


def _is_expression(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")


def _name(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case _:
            return ast.unparse(statement)


LIMITS = [
    pytest.param(b"[]", MAX_CONTAINERS, "objects and arrays", id="arrays"),
    pytest.param(b'{"":1}', MAX_CONTAINERS, "objects and arrays", id="objects"),
    pytest.param(b"1e-307", MAX_EXTREMES, "numbers with an exponent of three digits", id="exponents of three digits"),
    pytest.param(b"1.5E+100", MAX_EXTREMES, "numbers with an exponent of three digits", id="with a plus"),
    pytest.param(b"9" * 250 + b".5", MAX_EXTREMES, "with two hundred digits", id="two hundred digits"),
    pytest.param(b"1e23", MAX_EXPONENTS, "numbers with an exponent", id="exponents"),
    pytest.param(b'"":1', MAX_NAMES, "names of fields", id="names"),
    pytest.param(b'"" : 1', MAX_NAMES, "names of fields", id="names before spaces"),
    pytest.param(b'"a"', MAX_TEXTS, "texts", id="texts"),
]


@pytest.mark.parametrize(("part", "most", "what"), LIMITS)
def test_what_takes_long_is_limited(part: bytes, most: int, what: str) -> None:
    value = b"[" + b",".join([part] * (most + 1)) + b"]" + b" " * 8192
    with pytest.raises(BadRecord, match=f"more than {most:,} .*{what}"):
        change._check_cost(value)
    change._check_cost(b",".join([part] * (most - 1)) + b" " * 8192)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b'"', b'"', id="in texts"),
        pytest.param(b'"\\"', b'"', id="behind a quote in a text"),
        pytest.param(b'"\\\\\\"', b'"', id="behind a backslash and a quote in a text"),
        pytest.param(b'"\\\\","', b'"', id="behind a text that ends with a backslash"),
        pytest.param(b'"","', b'\\\\\\\\"', id="behind an empty text"),
    ],
)
@pytest.mark.parametrize(("part", "most", "what"), LIMITS)
def test_counted_part_inside_a_text_is_not_counted(
    part: bytes, most: int, what: str, before: bytes, after: bytes
) -> None:
    """Not even as many as there is room for. What comes behind the texts still counts."""
    text = before + part.replace(b'"', b"") * 20 + after  # fewer texts than are allowed
    value = b",".join([text] * (MAX_RECORD_BYTES // (len(text) + 1)))
    change._check_cost(value)
    with pytest.raises(BadRecord, match=what):
        change._check_cost(value + b"," + b",".join([part] * (most + 1)))


_MOST_PLAIN, _MOST_OF_A_PART = 3.0, 1.5
"""At most so many times what the plain record takes: all of a record, and each of its parts. On the machine of
docs/events.md, 1.8 times as much is 50 ms."""


@pytest.mark.parametrize(
    ("took", "most"),
    [
        pytest.param(seconds, _MOST_PLAIN, id="what all of it costs"),
        pytest.param(
            lambda _, message: longest_part(message.record()), _MOST_OF_A_PART, id="how long it holds the event loop"
        ),
    ],
)
def test_no_record_takes_much_longer_than_a_plain_one(took: Callable[[Worst, Message], float], most: float) -> None:
    """It names the inputs that do, and how many times as long they take."""
    plain = Worst("plain", lambda _: PLAIN, OF_RECORDS[0].run)
    found: dict[str, float] = {}
    for worst in OF_RECORDS:
        message, ratios = worst.make(MAX_RECORD_BYTES - 80_000), []
        for _ in range(20):
            ratios.append(took(worst, message) / seconds(plain, PLAIN))
            if min(ratios) < most:
                break
        found[worst.name] = min(ratios)
    assert {name: ratio for name, ratio in found.items() if ratio >= most} == {}
