"""What `doctor --url` checks: the rules of the HTTP API that can be seen through the gateway in front of
the API, with requests as its clients send them.

One table, RULES: the rule, how it is looked at, and how a gateway that breaks it is repaired. If several rules could
complain of the same thing, one of them does: a gateway with error pages of its own breaks `errors are JSON`, and what
these pages hide is unknown. Most is looked at with errors and with the OpenAPI document, which need neither key nor
record.
"""

import http.client
import re
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import SplitResult
from uuid import uuid4

import msgspec

from projector.errors import NotKnown, Refused
from runtime.metrics_port import is_loopback
from schemas.error_body import ErrorBody
from schemas.resources import AS_SPECIFIED, ROOT

_SECONDS = 5.0
_HTTPS_PORT, _HTTP_PORT = 443, 80
_REDIRECTS = range(300, 400)
_GZIP = 16 + zlib.MAX_WBITS
_RENEW_SECONDS, _RENEW_SHARE = 14 * 86400, 0.2
_ORIGIN = "https://doctor.example"
_LIMITS = {
    "RateLimit": r'"key";r=\d+;t=\d+, "organization";r=\d+;t=\d+',
    "RateLimit-Policy": r'"key";q=\d+;w=\d+, "organization";q=\d+;w=\d+',
    "X-RateLimit-Limit": r"\d+",
    "X-RateLimit-Remaining": r"\d+",
    "X-RateLimit-Reset": r"\d+",
}
_EXPOSED = {
    name.lower() for name in ("Data-As-Of", "ETag", "Retry-After", "WWW-Authenticate", "X-Request-Id", *_LIMITS)
}
_CHALLENGE = 'Bearer realm="leadview"'
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_AS_OF = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"


class Received(NamedTuple):
    """A response. Names of headers are in lower case, and the values of a repeated one are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> ErrorBody | None:
        """The body, if it is that of an error of the API."""
        if self.media != "application/json":
            return None
        try:
            found = msgspec.json.decode(self.body, type=ErrorBody)
        except msgspec.DecodeError:
            return None
        return found if found.error.isidentifier() else None

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    def __str__(self) -> str:
        to = f" to {self.headers['location']!r}" if "location" in self.headers else ""
        return f"{self.status}{to} ({self.problem.error if self.problem else self.media!r})"


class Gateway:
    """The address that clients are given, and a key of one of them. Each request has a connection of its own."""

    def __init__(self, url: SplitResult, key: str | None) -> None:
        self.is_secure = url.scheme == "https"
        self.host, self.port = url.hostname or "", url.port or (_HTTPS_PORT if self.is_secure else _HTTP_PORT)
        self.key = key
        self.replaces_errors = False
        self.limited: list[Received] = []
        """All answers with 429 and 503."""
        self._base = url.path.rstrip("/").removesuffix(ROOT)
        self._context = ssl.create_default_context()

    def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] = _NO_HEADERS, *, plain_port: int = 0
    ) -> Received:
        """With `plain_port`, this port is asked without TLS. Raises Refused."""
        connection = http.client.HTTPConnection(self.host, plain_port or self.port, timeout=_SECONDS)
        if self.is_secure and not plain_port:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=_SECONDS, context=self._context)
        try:
            connection.request(method, self._base + path, headers=headers)
            response = connection.getresponse()
            received = {name.lower(): ", ".join(response.headers.get_all(name, [])) for name in response.headers}
            answer = Received(response.status, received, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{method} {path} has no answer ({error!r})") from error
        finally:
            connection.close()
        if answer.status in (429, 503):
            self.limited.append(answer)
        return answer

    def refusal(
        self, expected: str, path: str, method: str = "GET", headers: Mapping[str, str] = _NO_HEADERS
    ) -> Received:
        """Returns the answer to a request that the API refuses with this status and code.

        Raises Refused if it is another one, and NotKnown if a page of the gateway hides it.
        """
        answer = self.ask(path, method, headers)
        problem = answer.problem
        if problem is None and self.replaces_errors and answer.status not in _REDIRECTS:
            raise NotKnown("the gateway puts a page of its own in place of errors")
        is_expected = problem is not None and f"{answer.status} {problem.error}" == expected
        _require(is_expected, f"{method} {path} is answered with {answer} instead of {expected}")
        return answer

    @property
    def bearer(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @cached_property
    def certificate(self) -> Mapping[str, object]:
        """Raises OSError, of which the errors of TLS are, and NotKnown if what answers does so without TLS."""
        with socket.create_connection((self.host, self.port), _SECONDS) as connection:
            if not self.is_secure:
                raise NotKnown("the address begins with http, so there is no certificate")
            with self._context.wrap_socket(connection, server_hostname=self.host) as secured:
                return secured.getpeercert() or {}

    @cached_property
    def page(self) -> Received:
        """The OpenAPI document, as a browser reads it, but not compressed. Raises NotKnown."""
        answer = self.ask(_page(), headers={"Origin": _ORIGIN})
        if answer.status != 200 or answer.media != "application/json":
            raise NotKnown(f"{ROOT}/openapi.json is answered with {answer}, and this is looked at with it")
        return answer

    @property
    def tag(self) -> str:
        """The opaque part of the ETag of the OpenAPI document. Raises NotKnown."""
        if not (tag := _opaque(self.page)):
            raise NotKnown("there is no ETag")
        return tag

    @cached_property
    def keyed(self) -> Received:
        """The answer to a request with the key, for a record that does not exist. Raises NotKnown without a key."""
        if self.key is None:
            raise NotKnown("it needs an API key: add `--key -`, which reads one from standard input")
        return self.ask(_lead(), headers=self.bearer)

    @property
    def admitted(self) -> Received:
        """The same, if the key was accepted. Raises NotKnown."""
        if self.keyed.problem is None or self.keyed.problem.error != "not_found":
            raise NotKnown(f"a request with the key is answered with {self.keyed}")
        return self.keyed


def _page() -> str:
    """No cache on the way has what this names."""
    return f"{ROOT}/openapi.json?doctor={uuid4().hex}"


def _lead() -> str:
    return f"{ROOT}/{AS_SPECIFIED[0].topic}/{uuid4()}"


def _nothing() -> str:
    return f"{ROOT}/doctor-{uuid4().hex}"


def _opaque(answer: Received) -> str:
    return answer.headers.get("etag", "").removeprefix("W/")


def _require(kept: bool, seen: str) -> None:
    """Raises Refused with what was seen unless the rule is kept."""
    if not kept:
        raise Refused(seen)


def _expect(answer: Received, name: str, pattern: str) -> str:
    """Returns the value of a header. Raises Refused if it does not match."""
    value = answer.headers.get(name.lower())
    if value is None:
        raise Refused(f"{name} is missing")
    _require(re.fullmatch(pattern, value) is not None, f"{name} is {value!r}")
    return value


def _https(gateway: Gateway) -> str:
    is_private = gateway.is_secure or is_loopback(gateway.host)
    _require(is_private, "the address begins with http, so keys and records could be read on the way")
    try:
        return f"the certificate is valid until {gateway.certificate['notAfter']}"
    except ssl.SSLCertVerificationError as error:
        raise Refused(f"the certificate is not valid: {error.verify_message}") from error
    except OSError as error:
        how = " with TLS" if gateway.is_secure else ""
        raise Refused(f"{gateway.host}:{gateway.port} cannot be reached{how} ({error})") from error


def _renewed(gateway: Gateway) -> str:
    begin, end = (ssl.cert_time_to_seconds(str(gateway.certificate[name])) for name in ("notBefore", "notAfter"))
    left = end - time.time()
    is_young = left >= min(_RENEW_SECONDS, _RENEW_SHARE * (end - begin))
    _require(is_young, f"it expires in {left / 3600:.0f} hours, after {(end - begin) / 3600:.0f}")
    return f"it has {left / 3600:.0f} of its {(end - begin) / 3600:.0f} hours left"


def _plain(gateway: Gateway) -> str:
    if not gateway.is_secure:
        raise NotKnown("the address itself begins with http")
    port = _HTTP_PORT if gateway.port == _HTTPS_PORT else gateway.port
    hsts = gateway.ask(_page()).headers.get("strict-transport-security")
    hint = "" if hsts else ". It does not send Strict-Transport-Security: consider it (docs/production.md)"
    try:
        answer = gateway.ask(_page(), plain_port=port)
    except Refused:
        return f"port {port} does not speak HTTP{hint}"
    if answer.status in _REDIRECTS and answer.headers.get("location", "").startswith("https://"):
        return f"HTTP on port {port} is redirected to HTTPS{hint}"
    _require(answer.status >= 400 and answer.problem is None, f"HTTP on port {port} is answered with {answer}")
    return f"HTTP on port {port} is refused with {answer.status}{hint}"


def _json(gateway: Gateway) -> str:
    for path in (_nothing(), _lead()):
        answer = gateway.ask(path)
        gateway.replaces_errors = answer.problem is None and answer.status not in _REDIRECTS
        _require(not gateway.replaces_errors, f"GET {path} is answered with {answer}")
    return "an unknown path and a request without a key are answered with the API's errors"


def _paths(gateway: Gateway) -> str:
    for path in (f"{_lead()}/", f"{ROOT}/openapi.json/", _nothing()):
        gateway.refusal("404 not_found", path)
    return "a path with a slash at its end is another path, which is unknown"


def _methods(gateway: Gateway) -> str:
    for method in ("POST", "DELETE"):
        allowed = gateway.refusal("405 method_not_allowed", _lead(), method).headers.get("allow", "")
        are_all = {each.strip() for each in allowed.split(",")} == {"GET", "HEAD", "OPTIONS"}
        _require(are_all, f"`Allow` of the answer to {method} is {allowed!r}")
    return "POST and DELETE are answered with 405 and `Allow: GET, HEAD, OPTIONS`"


def _no_key(gateway: Gateway) -> str:
    answer = gateway.refusal("401 missing_api_key", _lead())
    return f"WWW-Authenticate: {_expect(answer, 'WWW-Authenticate', _CHALLENGE)}"


def _bad_key(gateway: Gateway) -> str:
    answer = gateway.refusal("401 invalid_api_key", _lead(), headers={"Authorization": "bearer doctor"})
    _expect(answer, "WWW-Authenticate", f'{_CHALLENGE}, error="invalid_token"')
    return "`Authorization` reaches the API"


def _key(gateway: Gateway) -> str:
    problem = gateway.keyed.problem
    is_known = problem is None or problem.error != "invalid_api_key"
    _require(is_known, "the key is refused with 401 invalid_api_key")
    _expect(gateway.admitted, "Cache-Control", "no-store")
    gateway.refusal("400 invalid_id", f"{ROOT}/{AS_SPECIFIED[0].topic}/doctor", headers=gateway.bearer)
    return "404 for an id that nothing has, 400 for what is no id. No record is read, so the 200 of records is not seen"


def _limits(gateway: Gateway) -> str:
    for name, pattern in _LIMITS.items():
        _expect(gateway.admitted, name, pattern)
    return f"RateLimit: {gateway.admitted.headers['ratelimit']}"


def _retry_after(gateway: Gateway) -> str:
    if not gateway.limited:
        raise NotKnown("no answer was 429 or 503, and none was provoked")
    for answer in gateway.limited:
        has_it = answer.headers.get("retry-after", "").isdecimal()
        _require(has_it, f"an answer with {answer} has no Retry-After in seconds")
    return f"{len(gateway.limited)} answer(s) with 429 or 503 have it"


def _as_of(gateway: Gateway) -> str:
    if "data-as-of" not in gateway.admitted.headers:
        raise NotKnown("the answers do not have it; the API leaves it out while it does not know it")
    return _expect(gateway.admitted, "Data-As-Of", _AS_OF)


def _request_id(gateway: Gateway) -> str:
    _expect(gateway.page, "X-Request-Id", "[A-Za-z0-9._:-]{1,128}")
    sent = f"doctor-{uuid4().hex}"
    kept = gateway.ask(_page(), headers={"X-Request-Id": sent}).headers.get("x-request-id")
    _require(kept == sent, f"`X-Request-Id: {sent}` was sent, and {kept!r} came back")
    return "the id of a request is kept; a request without one gets one"


def _not_stored(gateway: Gateway) -> str:
    """The body of each error has an id of its own, and so has the head of each answer."""
    for expected, path in (("404 not_found", _nothing()), ("401 missing_api_key", _lead())):
        first, second = (gateway.refusal(expected, path) for _ in range(2))
        _require(first.body != second.body, f"GET {path} was answered twice with the same answer, {first}")
        age = first.headers.get("age", "0")
        _require(age == "0", f"GET {path} is answered with `Age: {age}`, as a cache does")
    path = f"/healthz?doctor={uuid4().hex}"
    former, latter = (gateway.ask(path).headers.get("x-request-id") for _ in range(2))
    _require(former is None or former != latter, f"GET {path} was answered twice with the same answer")
    if gateway.key is not None:
        path = _lead()
        gateway.ask(path, headers=gateway.bearer)
        gateway.refusal("401 missing_api_key", path)
    return "no answer comes from a cache"


def _cache_control(gateway: Gateway) -> str:
    _expect(gateway.page, "Cache-Control", "public, max-age=300")
    _expect(gateway.refusal("404 not_found", _nothing()), "Cache-Control", "no-store")
    return "it comes as the API sends it"


def _weak(gateway: Gateway) -> str:
    return "ETag: " + _expect(gateway.page, "ETag", 'W/"[!#-~]+"')


def _not_modified(gateway: Gateway) -> str:
    answer = gateway.ask(_page(), headers={"If-None-Match": f"W/{gateway.tag}"})
    _require(answer.status == 304 and not answer.body, f"`If-None-Match` with the ETag is answered with {answer}")
    _require(_opaque(answer) == gateway.tag, f"the 304 has the ETag {answer.headers.get('etag')!r}")
    return "`If-None-Match` with the ETag is answered with 304"


def _head(gateway: Gateway) -> str:
    answer, page = gateway.ask(_page(), "HEAD"), gateway.page
    _require(answer.status == page.status, f"HEAD is answered with {answer}, GET with {page}")
    for name in ("etag", "content-type", "cache-control"):
        of_head, of_get = answer.headers.get(name), page.headers.get(name)
        _require(of_head == of_get, f"{name} is {of_head!r} for HEAD, {of_get!r} for GET")
    return "HEAD has the headers of GET"


def _compression(gateway: Gateway) -> str:
    answer = gateway.ask(_page(), headers={"Accept-Encoding": "gzip"})
    coding = answer.headers.get("content-encoding")
    try:
        body = zlib.decompress(answer.body, _GZIP) if coding == "gzip" else answer.body
    except zlib.error as error:
        raise Refused(f"what is sent as gzip is not ({error})") from None
    is_same = body == gateway.page.body
    _require(is_same, f"the body is another one if gzip is accepted (Content-Encoding is {coding!r})")
    is_tagged = _opaque(answer) == gateway.tag
    _require(is_tagged, f"the ETag with gzip is {answer.headers.get('etag')!r}, without it {gateway.tag!r}")
    return "answers are compressed, and keep their ETags" if coding else "nothing is compressed"


def _cors(gateway: Gateway) -> str:
    _expect(gateway.page, "Access-Control-Allow-Origin", r"\*")
    missing = _EXPOSED - _words(gateway.page, "access-control-expose-headers")
    _require(not missing, f"Access-Control-Expose-Headers lacks {', '.join(sorted(missing))}")
    asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    preflight = gateway.ask(_lead(), "OPTIONS", {"Origin": _ORIGIN, **asked})
    _require(preflight.status in range(200, 300), f"a preflight is answered with {preflight}")
    _expect(preflight, "Access-Control-Allow-Origin", r"\*")
    is_allowed = "authorization" in _words(preflight, "access-control-allow-headers")
    _require(is_allowed, "the answer to a preflight does not allow Authorization")
    return "pages of every origin may read, and preflights allow Authorization"


def _words(answer: Received, name: str) -> set[str]:
    return {word.strip().lower() for word in answer.headers.get(name, "").split(",")}


def _health(gateway: Gateway) -> str:
    alive, ready = gateway.ask("/healthz"), gateway.ask("/readyz")
    for path, answer, statuses in (("/healthz", alive, (200,)), ("/readyz", ready, (200, 503))):
        is_ours = answer.media == "application/json" and answer.status in statuses
        _require(is_ours, f"{path} is answered with {answer}")
    return f"/healthz is answered with 200, /readyz with {ready.status}"


def _large_heads(gateway: Gateway) -> str:
    answer, page = gateway.ask(_page(), headers={"X-Doctor": "x" * 10 * 1024}), gateway.page
    is_accepted = (answer.status, answer.media) == (page.status, page.media)
    _require(is_accepted, f"a request with a header of 10 KB is answered with {answer}")
    lines = {f"X-Doctor-{number}": "x" * 4 * 1024 for number in range(5)}
    gateway.refusal("431 request_header_fields_too_large", _page(), headers=lines)
    return "a header of 10 KB is accepted, and headers of 20 KB are refused in JSON"


class Rule(NamedTuple):
    """`judge` returns what was seen if the gateway keeps the rule, and otherwise raises Refused with what was seen, or
    NotKnown.
    """

    name: str
    judge: Callable[[Gateway], str]
    mend: str

    def check(self, gateway: Gateway) -> str:
        """Returns what `judge` does. What is raised for a broken rule also says how it is repaired."""
        try:
            return self.judge(gateway)
        except Refused as error:
            raise Refused(f"{error}. {self.mend}") from error


HTTPS = Rule(
    "HTTPS",
    _https,
    "See that the gateway listens at this address, and sends a certificate of this name with its whole chain. Name the "
    "CA of a private certificate in the environment variable SSL_CERT_FILE",
)
"""If it is broken, nothing else is looked at: no key goes to a server that nobody knows. It is unknown for an address
of this machine that begins with http, such as that of the API itself."""

RULES = (
    Rule("certificate is renewed", _renewed, "See why it was not renewed by now, before clients are refused"),
    Rule("HTTP is redirected or refused", _plain, "Close the port, or let it redirect to HTTPS and do nothing else"),
    Rule(
        "errors are JSON",
        _json,
        "Let the gateway pass the API's errors on, without pages of its own (nginx: no proxy_intercept_errors; "
        "CloudFront: no custom error responses), and see that it reaches the API for all paths",
    ),
    Rule("404 without redirects", _paths, "Switch off what adds or removes slashes, and send paths as they came"),
    Rule("405 with Allow", _methods, "Let all methods through (nginx: no limit_except): the API refuses them itself"),
    Rule("401 without a key", _no_key, "Let the gateway neither ask for a sign-in nor send `Authorization` of its own"),
    Rule("401 for an invalid key", _bad_key, "Pass `Authorization` on, and do not check it in the gateway"),
    Rule("a key is accepted", _key, "Pass `Authorization` on unchanged. `show key -` says whether the key is valid"),
    Rule("RateLimit", _limits, "Pass these headers on, and let the gateway send none of these names itself"),
    Rule("Data-As-Of", _as_of, "Pass it on unchanged"),
    Rule(
        "X-Request-Id",
        _request_id,
        "Pass it on in both directions. A gateway that makes ids sends its own only if the client has sent none",
    ),
    Rule(
        "no caching", _not_stored, "Switch the cache off for the API (nginx: no proxy_cache), or let it obey no-store"
    ),
    Rule("Cache-Control", _cache_control, "Pass it on unchanged (nginx: no expires and no add_header Cache-Control)"),
    Rule("weak ETag", _weak, "Pass ETag on, and change no body (nginx: no sub_filter, no SSI)"),
    Rule("304", _not_modified, "Pass `If-None-Match` on to the API, and its ETag back as it is"),
    Rule("HEAD", _head, "Pass HEAD on as HEAD"),
    Rule("compression", _compression, "Keep the ETag of what is compressed, and add no suffix to it"),
    Rule("CORS", _cors, "Let the API alone answer OPTIONS and send Access-Control-… headers: a second one breaks both"),
    Rule("health", _health, "Send /healthz and /readyz to the API"),
    Rule(
        "large headers",
        _large_heads,
        "Raise the gateway's limit above the 16 KB of the API (nginx: large_client_header_buffers 4 32k)",
    ),
    # The last one, because it judges what all others have seen.
    Rule("Retry-After", _retry_after, "Pass it on, and add it to the gateway's own answers with 429 and 503"),
)
