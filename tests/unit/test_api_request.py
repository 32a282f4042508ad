"""What the API reads of a request: credentials, the client's address, tags, ids of requests. What it sends: heads, and
errors, which schemas/error_body.py describes for OpenAPI; a defect is 500, and is logged. Which responses leave a log
line, and what is in it. And what the edge and uvicorn's server know of each other: if one of those tests fails after an
upgrade of uvicorn, compare api/edge.py with `startup` and `shutdown` in uvicorn's `server.py` before changing anything
here.
"""

import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from uvicorn import Config
from uvicorn.server import Server, ServerState

from api import errors
from api.app import Endpoint
from api.documents import Documents
from api.edge import Edge
from api.errors import ApiError, InternalError, InvalidApiKey, MissingApiKey, NoSuchRecord, Rebuilding, Unavailable
from api.redis.store import Reply
from api.request import (
    MAX_ETAGS,
    REPEATED,
    Request,
    Response,
    client_address,
    credentials,
    encode_head,
    error_response,
    etag_of,
    etags_to_match,
    request_id,
)
from api.request_log import SAMPLE, RequestLog
from api.waiting import wait_of
from api.worker import Worker
from docs.generate.key_vectors import Vector, vectors
from runtime.redis.errors import ErrorReply
from schemas import api_keys, names
from schemas.api_keys import PREFIX
from schemas.layouts import Outcome
from schemas.resources import CONTACT
from schemas.settings import ApiSettings, RequestLogMode, networks
from schemas.trace import trace_id
from tests.harness import crm

ORGANIZATION = "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"
KEY = api_keys.mint(ORGANIZATION, "r" * 30)
SENT = KEY.encode()


@pytest.mark.parametrize("start", [b"Bearer ", b"bearer ", b"BEARER  ", b"bEaReR     "])
def test_valid_key_gives_its_names_in_redis(start: bytes) -> None:
    found, owner, key_hash = credentials(start + SENT), names.organization(ORGANIZATION), api_keys.key_hash(KEY)
    assert asdict(found) == {
        "organization": owner,
        "organization_tag": api_keys.organization_tag(ORGANIZATION).encode(),
        "key_record": names.api_key(owner, key_hash),
        "key_limit": names.key_limit(owner, key_hash),
        "organization_limit": names.organization_limit(owner),
        "packed": None,
    }
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        pytest.param(None, MissingApiKey, id="no header"),
        pytest.param(b"", MissingApiKey, id="empty"),
        pytest.param(b"Bearer", MissingApiKey, id="no token"),
        pytest.param(b"Bearer  ", MissingApiKey, id="spaces"),
        pytest.param(b"Basic " + SENT, MissingApiKey, id="another scheme"),
        pytest.param(SENT, MissingApiKey, id="no scheme"),
        pytest.param(b"Bearer" + SENT, MissingApiKey, id="no space"),
        pytest.param(b"Bearer " + SENT + REPEATED + b"Bearer " + SENT, InvalidApiKey, id="two headers"),
        pytest.param(REPEATED + b"Bearer " + SENT, InvalidApiKey, id="the first of two is empty"),
        pytest.param(b"Bearer " + SENT + b", Bearer " + SENT, InvalidApiKey, id="a list"),
        pytest.param(b"Bearer " + SENT[:-1], InvalidApiKey, id="a character short"),
        pytest.param(b"Bearer " + SENT + b"0", InvalidApiKey, id="a character too many"),
        pytest.param(b"Bearer " + SENT.swapcase(), InvalidApiKey, id="case swapped"),
        pytest.param(b"Bearer LV_LIVE_" + SENT[8:], InvalidApiKey, id="prefix in capitals"),
        pytest.param(b"Bearer " + SENT[:20] + b"\xe9" + SENT[21:], InvalidApiKey, id="not ASCII"),
        pytest.param(b"Bearer " + SENT[:20] + b"}" + SENT[21:], InvalidApiKey, id="leaves the hash tag"),
    ],
)
def test_header_without_a_valid_key_is_refused_without_quoting_it(header: bytes | None, error: type[ApiError]) -> None:
    with pytest.raises(error) as raised:
        credentials(header)
    assert KEY[8:] not in str(raised.value)


@given(st.binary(max_size=100))
def test_any_header_is_refused(header: bytes) -> None:
    with pytest.raises((MissingApiKey, InvalidApiKey)):
        credentials(header)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        pytest.param("192.0.2.8", "192.0.2.8", id="one address"),
        pytest.param("192.0.2.7, 192.0.2.8", "192.0.2.8", id="what the client sent itself comes first"),
        pytest.param("192.0.2.7\n192.0.2.8", "192.0.2.8", id="two headers"),
        pytest.param("nonsense, 192.0.2.8:4711, 127.0.0.1", "192.0.2.8", id="a port, and a proxy behind it"),
        pytest.param("::ffff:192.0.2.8", "192.0.2.8", id="mapped to IPv6"),
        pytest.param("10.1.0.1, 10.0.0.1", "10.1.0.1", id="the farthest of several proxies"),
        pytest.param("192.0.2.7, 10.1.0.1, nonsense, 10.0.0.1", "10.0.0.1", id="behind what is not an address"),
        pytest.param("[2001:db8:0:1:ffff::1]:4711", "2001:db8:0:1::", id="a network of IPv6"),
        pytest.param("", "127.0.0.1", id="nothing"),
        pytest.param("nonsense", "127.0.0.1", id="nonsense"),
        pytest.param("127.0.0.1," * 40, "127.0.0.1", id="proxies alone"),
    ],
)
def test_the_client_is_the_last_address_that_is_not_a_proxy(sent: str, found: str) -> None:
    """Clients whose address is not known share that of their proxy. An address of IPv6 stands for its network."""
    expected = ip_address(found).packed[:8]
    for connected_from in ("127.0.0.1", "::ffff:127.0.0.1"):  # the latter where IPv6 is served, too
        request = Request(b"", headers={b"x-forwarded-for": sent.encode()}, client=connected_from)
        assert client_address(request, networks("127.0.0.1,10.0.0.0/8")) == expected
    stranger = Request(b"", headers={b"x-forwarded-for": sent.encode()}, client="198.51.100.1")
    assert client_address(stranger, networks("127.0.0.1")) == ip_address("198.51.100.1").packed
    assert client_address(Request(b""), ()) == b""


RAW = bytes(range(12))
TAG = RAW.hex().encode()


def test_etag_of_a_value_is_weak() -> None:
    assert etag_of(b"h" * 22 + RAW + b"rest") == b'W/"%b"' % TAG


@pytest.mark.parametrize(
    ("header", "etags"),
    [
        pytest.param(b'W/"%b"' % TAG, (RAW,), id="weak"),
        pytest.param(b'"%b"' % TAG, (RAW,), id="strong"),
        pytest.param(b"*", (b"*",), id="any"),
        pytest.param(b" * ", (b"*",), id="any, with spaces"),
        pytest.param(b'"*"', (), id="a star in quotes is somebody's tag"),
        pytest.param(b'"x", W/"%b","y"' % TAG, (RAW,), id="in a list"),
        pytest.param(b'"x"\n"%b"' % TAG, (RAW,), id="of two headers"),
        pytest.param(TAG, (), id="no quotes"),
        pytest.param(b'"%b' % TAG, (), id="no end"),
        pytest.param(b'"%b"' % TAG.upper(), (), id="upper case is another tag"),
        pytest.param(b'"%b0"' % TAG, (), id="too long"),
        pytest.param(b'"%b-gzip"' % TAG, (RAW,), id="with a coding that a proxy has appended"),
        pytest.param(b'W/"%b--br", "%b;zstd"' % (TAG, TAG), (RAW, RAW), id="with other codings"),
        pytest.param(b'"%b-x"' % TAG, (), id="with something else behind it"),
        pytest.param(b'"a"%b"b"' % TAG, (), id="between two tags"),
        pytest.param(b"", (), id="empty"),
        pytest.param(b'"%b", ' % TAG * 1000, (RAW,) * MAX_ETAGS, id="too many"),
    ],
)
def test_if_none_match_is_parsed_to_etags(header: bytes, etags: tuple[bytes, ...]) -> None:
    assert etags_to_match(header) == etags


@given(st.binary(max_size=200))
def test_any_header_is_read(header: bytes) -> None:
    etags = etags_to_match(header)
    assert etags == (b"*",) or all(len(each) == 12 for each in etags)


ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ApiError)]
ANSWERED = [kind for kind in ERRORS if kind not in (ApiError, errors.Refused)]


def make(kind: type[ApiError]) -> ApiError:
    if issubclass(kind, errors.RateLimitExceeded):
        return kind(2, ["key"])
    return kind()


@pytest.mark.parametrize("kind", ANSWERED)
def test_body_of_an_error_has_its_code_status_and_request_id(kind: type[ApiError]) -> None:
    answer = error_response(make(kind), b"the-id", None)
    body = orjson.loads(answer.body)
    further = {429: ["retry_after", "violated_policies"], 503: ["retry_after"]}
    expected = ["error", "message", "status", "request_id", *further.get(kind.status, [])]
    assert (list(body), answer.status) == (expected, kind.status)
    assert (body["error"], body["status"], body["request_id"]) == (kind.code, kind.status, "the-id")
    assert b"\r\ncache-control: no-store\r\n" in answer.headers


@pytest.mark.parametrize("docs_url", ["https://docs.example/leadview", "https://docs.example/leadview/"])
@pytest.mark.parametrize("kind", ANSWERED)
def test_bodies_of_errors_link_to_the_description_of_their_code(kind: type[ApiError], docs_url: str) -> None:
    body = orjson.loads(error_response(make(kind), b"the-id", docs_url).body)
    assert body["docs_url"] == f"https://docs.example/leadview/errors.html#{kind.code}"


def test_reasons_of_errors_are_not_sent() -> None:
    assert b"10.0.0.7" not in error_response(errors.Unavailable("LOADING of 10.0.0.7"), b"x", None).body


REQUEST = Request(b"mine", "GET", b"/", {b"authorization": b"Bearer lv_live_secret"})


async def broken(_: Worker, __: Request) -> Response:
    raise ZeroDivisionError


async def nothing() -> dict[str, Any]:
    return {}


async def test_defect_in_a_handler_is_logged_and_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged even if no request is."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    worker = Worker(ApiSettings(request_log="off"))
    await Endpoint(worker, "x", broken, "x")({"request": REQUEST}, nothing, send)
    [message] = sent
    request, response = message["request"], message["response"]
    assert (request.id, response.status) == (b"mine", 500)
    assert orjson.loads(response.body)["error"] == "internal_error"
    assert worker.counters.routes["x"].statuses == {500: 1}
    assert [vars(record)["request_id"] for record in caplog.records] == ["mine"]
    assert "secret" not in caplog.text


def test_stored_document_that_cannot_be_read_says_what_to_do() -> None:
    stored = Reply(Outcome.SERVED, 0, 100, 10, 0, 300, 10, 0, value=bytes(CONTACT.body_offset) + b"\xff")
    with pytest.raises(InternalError, match="`rebuild --organization` writes it again"):
        Documents(CONTACT)._response(stored)


CALLER = credentials(f"Bearer {KEY}".encode())


class Failing:
    """What a request calls of the way to Redis, where each call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def serve(self, *_: object, **__: object) -> Reply:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(Unavailable(), "unavailable", id="no connection"),
        pytest.param(ErrorReply.of("ERR"), "error", id="an error"),
        pytest.param(ErrorReply.of("BUSY"), "busy", id="a script that does not end"),
        pytest.param(Rebuilding(), "rebuilding", id="not complete"),
    ],
)
async def test_error_of_redis_is_counted_by_its_kind(error: Exception, kind: str) -> None:
    """Alerts tell them apart."""
    worker = Worker(ApiSettings())
    worker.store = Failing(error)  # type: ignore[assignment]
    with pytest.raises(type(error)):
        await Documents(CONTACT).read(worker, Request(b"", "GET", headers={b"authorization": b"Bearer " + SENT}))
    assert {name: count for name, count in worker.counters.redis_errors.items() if count} == {kind: 1}


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        pytest.param(f"00-{TRACE}-b7ad6b7169203331-01", TRACE, id="valid"),
        pytest.param(f"01-{TRACE}-b7ad6b7169203331-01-what-comes", TRACE, id="of a later version"),
        pytest.param("", None, id="absent"),
        pytest.param(f"00-{TRACE}-b7ad6b7169203331-01-more", None, id="more than version 00 has"),
        pytest.param(f"01-{TRACE}-b7ad6b7169203331-01.more", None, id="without a dash"),
        pytest.param(f"ff-{TRACE}-b7ad6b7169203331-01", None, id="no version"),
        pytest.param(f"00-{32 * '0'}-b7ad6b7169203331-01", None, id="no trace"),
        pytest.param(f"00-{TRACE}-{16 * '0'}-01", None, id="no parent"),
        pytest.param(f"00-{TRACE.upper()}-b7ad6b7169203331-01", None, id="upper case"),
        pytest.param(f"00-{TRACE}-b7ad6b7169203331-01\n00-{TRACE}-b7ad6b7169203331-01", None, id="twice"),
    ],
)
def test_the_trace_of_a_request(traceparent: str, expected: str | None) -> None:
    assert trace_id(traceparent.encode()) == expected


def write(log: RequestLog, status: int, error: Exception | None = None, segment: str = crm.LEAD.upper()) -> None:
    headers = {b"traceparent": f"00-{TRACE}-b7ad6b7169203331-01".encode()}
    request = Request(b"mine", "GET", headers=headers, last_segment=segment, caller=CALLER, error=error)
    log.write(request, "/api/v1/ext/leads/{id}", status, 0.0012)


@pytest.mark.parametrize(
    ("mode", "lowest"),
    [pytest.param("off", 1000, id="off"), pytest.param("errors", 400, id="errors"), pytest.param("all", 0, id="all")],
)
def test_the_lowest_status_that_is_logged(mode: RequestLogMode, lowest: int) -> None:
    assert RequestLog(mode).lowest == lowest


def test_failed_request_is_logged_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    write(RequestLog(), 503, Unavailable("there is no connection to Redis"))
    [fields] = map(vars, caplog.records)
    expected = {
        "levelno": logging.ERROR,
        "request_id": "mine",
        "trace_id": TRACE,
        "method": "GET",
        "route": "/api/v1/ext/leads/{id}",
        "status": 503,
        "error": "service_unavailable",
        "reason": "there is no connection to Redis",
        "organization": ORGANIZATION,
        "key": api_keys.key_hash(KEY)[:12],
        "duration_ms": 1.2,
        "record": crm.LEAD,
    }
    assert {name: fields[name] for name in expected} == expected
    assert KEY[8:] not in str(fields)


def test_few_4xx_and_every_5xx_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 10.5
    log = RequestLog(clock=lambda: now)
    for _ in range(SAMPLE + 20):
        write(log, 404, NoSuchRecord())
        write(log, 503, Unavailable())
    assert Counter(vars(record)["status"] for record in caplog.records) == {404: SAMPLE, 503: SAMPLE + 20}
    skipped = sum(vars(record).get("skipped", 0) for record in caplog.records)
    caplog.clear()
    now = 11.0
    write(log, 401, InvalidApiKey())
    assert vars(caplog.records[0]).get("skipped", 0) + skipped == 20


def test_all_responses_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What is no id stays out of the log: it may be anything that somebody has typed."""
    caplog.set_level(logging.INFO)
    log = RequestLog("all", clock=lambda: 1.0)
    for status in [200, 304, 404] * SAMPLE:
        write(log, status, segment="a name")
    assert ["record" in vars(line) for line in caplog.records] == [False] * 3 * SAMPLE


@pytest.mark.parametrize("vector", vectors().valid, ids=lambda vector: vector.key[-6:])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("{key}", id="a key"),
        pytest.param("of-{key}", id="something before it"),
        pytest.param("{rest}", id="no prefix"),
        pytest.param("ve_{rest}", id="a part of the prefix"),
        pytest.param("LV_LIVE_{rest}", id="a prefix in upper case"),
        pytest.param("lv_test_{rest}", id="another prefix"),
        pytest.param("a7{rest}0z", id="letters and digits around it"),
        pytest.param("0" * 70 + "{rest}", id="in the last characters of a long one"),
        pytest.param("{rest}" + "z" * 70, id="in the first characters of a long one"),
        pytest.param("{key:.20}", id="the beginning of a key"),
        pytest.param("{rest}.{rest}", id="twice"),
    ],
)
def test_key_is_no_request_id(vector: Vector, sent: str) -> None:
    text = sent.format(key=vector.key, rest=vector.key[len(PREFIX) :]).encode()
    assert len(text) <= 128
    assert re.fullmatch(b"[0-9a-f]{32}", request_id(text))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"x" * 129, id="too long"),
        pytest.param(b'x"y', id="a quote"),
        pytest.param("ü".encode(), id="not ASCII"),
        pytest.param(b"", id="empty"),
    ],
)
def test_what_is_not_sane_is_no_request_id(sent: bytes) -> None:
    assert re.fullmatch(b"[0-9a-f]{32}", request_id(sent))


@pytest.mark.parametrize("vector", vectors().valid, ids=lambda vector: vector.key[-6:])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("{rest:.57}", id="one character short"),
        pytest.param("{changed}", id="another checksum"),
        pytest.param("{rest:.30}-{changed:.28}", id="in two parts"),
        pytest.param("lv-1", id="the beginning of the prefix"),
        pytest.param("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", id="a traceparent"),
        pytest.param("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", id="a SHA-256"),
        pytest.param("0" * 128, id="zeros, just short enough"),
        pytest.param("a-B_3.x", id="letters of both cases and signs"),
        pytest.param("host/req+1=a@b~c:d", id="all other signs"),
    ],
)
def test_what_is_no_key_is_kept(vector: Vector, sent: str) -> None:
    rest = vector.key[len(PREFIX) :]
    changed = rest[:-1] + ("1" if rest[-1] == "0" else "0")
    text = sent.format(rest=rest, changed=changed).encode()
    assert request_id(text) == text


def test_uvicorn_gives_the_edge_what_it_takes() -> None:
    """It passes these arguments, waits for these connections and tasks, and renews these headers."""
    [passed] = re.findall(r"http_protocol_class\((.*?)\n *\)", inspect.getsource(Server.startup), re.DOTALL)
    arguments = ["config", "server_state", "app_state", "_loop"]
    assert re.findall(r"(\w+)=", passed) == list(inspect.signature(Edge).parameters) == arguments
    assert list(inspect.signature(Edge.shutdown).parameters) == ["self"]
    state = ServerState()
    assert (state.connections, state.tasks, state.default_headers) == (set(), set(), [])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param(Server.on_tick, "server_state.default_headers = date_header", id="renews headers"),
        pytest.param(Server._wait_tasks_to_complete, "self.server_state.connections", id="waits for connections"),
        pytest.param(Server._wait_tasks_to_complete, "self.server_state.tasks", id="waits for tasks"),
        pytest.param(Server.shutdown, "connection.shutdown()", id="ends a connection"),
        pytest.param(Config.load, "self.loaded_app = ", id="loads the application"),
    ],
)
def test_uvicorn_still_does_what_the_edge_relies_on(source: Callable[..., object], text: str) -> None:
    assert text in inspect.getsource(source)


def test_head_of_a_response_has_its_headers_in_order() -> None:
    large = Response(200, b"a: b\r\n", b"12", (b"345", b"6"))
    common = b"HTTP/1.1 200 OK\r\ndate: now\r\na: b\r\nx-request-id: mine\r\ncontent-length: 6\r\n"
    assert encode_head(large, b"mine", b"date: now\r\n", cors=False, close=False) == common + b"\r\n"
    closing = encode_head(large, b"mine", b"date: now\r\n", cors=True, close=True)
    assert closing.startswith(common + b"access-control-allow-origin: *\r\n")
    assert closing.endswith(b"\r\nconnection: close\r\n\r\n")
    empty = encode_head(Response(431), b"mine", cors=False, close=False)
    assert empty == b"HTTP/1.1 431 Request Header Fields Too Large\r\nx-request-id: mine\r\ncontent-length: 0\r\n\r\n"
    for status in (204, 304):
        assert b"content-length" not in encode_head(Response(status), b"mine", cors=False, close=False)


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        pytest.param(None, 0, id="no preference"),
        pytest.param(b"wait=1", 1, id="a second"),
        pytest.param(b"wait=31", 30, id="more than may be"),
        pytest.param(b"wait=999999999", 30, id="very much more"),
        pytest.param(b"wait=9999999999", 30, id="more than 32 bits"),
        pytest.param(b"wait=" + b"9" * 5000, 30, id="more digits than Python reads"),
        pytest.param(b"wait=007", 7, id="zeros in front"),
        pytest.param(b"wait=" + b"0" * 5000 + b"7", 7, id="many zeros in front"),
        pytest.param(b'respond-async,\tWAIT = "7" ; x=1', 7, id="among others, quoted, with a parameter"),
        pytest.param(b"respond-async\nwait=7", 7, id="in a header of its own"),
        pytest.param(b"wait=7, wait=8", 7, id="the first one counts"),
        pytest.param(b"wait=x, wait=8", 0, id="also if it cannot be parsed"),
        pytest.param(b"wait=0", 0, id="no time"),
        pytest.param(b"wait=-1", 0, id="below 0"),
        pytest.param(b"wait=1.5", 0, id="a fraction"),
        pytest.param(b"wait=\xb2", 0, id="a digit of another alphabet"),
        pytest.param(b"wait", 0, id="no value"),
        pytest.param(b"wait=", 0, id="an empty value"),
        pytest.param(b"waiting=7", 0, id="another preference"),
        pytest.param(b"x=wait=7", 0, id="the value of another one"),
        pytest.param(b'x="a, wait=7"', 0, id="at the end of a quoted value"),
        pytest.param(b'x="a, wait=7, b"', 0, id="within a quoted value"),
        pytest.param(b'x="\\", wait=7, \\""', 0, id="between quotes that are escaped"),
        pytest.param(b'x; y=", wait=7, "', 0, id="within a quoted parameter"),
        pytest.param(b'x; y="a, wait=8", wait=7', 7, id="behind a quoted parameter"),
        pytest.param(b'wait=7; x=", wait=8"', 7, id="before a quoted parameter"),
        pytest.param(b"x; wait=7", 0, id="a parameter of another one"),
        pytest.param(b'x="a\nwait=7', 7, id="behind a line with quotes that do not end"),
        pytest.param(b'x="a\\\nwait=7', 7, id="behind a line that ends with a backslash"),
        pytest.param(b'x="a, wait=7', 0, id="within quotes that do not end"),
        pytest.param(b'wait="7', 0, id="its quotes do not end"),
        pytest.param(b'wait=7"', 0, id="its quotes do not begin"),
        pytest.param(b'wait=""7""', 0, id="two pairs of quotes"),
        pytest.param(b'wait=";7"', 0, id="a semicolon within its quotes"),
    ],
)
def test_preference_to_wait_is_read_as_whole_seconds(prefer: bytes | None, seconds: int) -> None:
    assert wait_of(prefer) == seconds
