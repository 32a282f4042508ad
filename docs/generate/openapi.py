"""The OpenAPI 3.1 document of the HTTP API, derived from the same Structs as its responses.

Served at `/api/v1/ext/openapi.json`, and committed as `api/openapi.json` (`python -m docs.generate`).
"""

from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import orjson

from docs.generate.answers import REQUEST_ID, etag
from docs.generate.tables import all_resources
from schemas.error_body import PROBLEMS, ErrorBody, Health, Problem, RateLimitError, RetryableError
from schemas.resources import AS_SPECIFIED, LEAD, ROOT, Resource

Json = dict[str, Any]

VERSION = "1.0.0-beta"
"""Version of the document. The version of the API itself is part of its path."""

_GUIDE = (Path(__file__).parent / "openapi.md").read_text("utf-8").strip()
"""The prose, as CommonMark. Its readers are the authors of external tools."""
_HEAD = "Same as GET without the body: the cheapest way to read the `ETag`. It counts against the rate limits like GET."
_KEY = "An API key of your organization, sent as `Authorization: Bearer <API_KEY>`."
_OPENAPI = "The document that you are reading, as JSON."
_HEALTH = "The program responds. It does not ask whether records can be served."
_READINESS = "The response is 503 while no complete set of records can be served."


_BODIES: dict[int, type[ErrorBody]] = {429: RateLimitError, 503: RetryableError}
_ERRORS = (400, 401, 403, 404, 405, 408, 429, 431, 500, 503)
_COMPONENTS = (*(resource.document for resource in AS_SPECIFIED), ErrorBody, RetryableError, RateLimitError, Health)

_RATE_LIMIT = (
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "format": "int64", "minimum": 0}
_POSITIVE = {"type": "integer", "format": "int64", "minimum": 1}
_REALM = 'Bearer realm="leadview"'

# Name: description, schema, example.
_HEADERS: dict[str, tuple[str, Json, Any]] = {
    "X-Request-Id": (
        "Identifies this request: the id that you sent (1 to 128 letters, digits or `._-:/+=@~`), or a new one",
        _TEXT,
        REQUEST_ID,
    ),
    "Cache-Control": (
        "`private, no-cache` on records: you may keep a copy, but revalidate it before use. `no-store` on errors",
        _TEXT,
        "private, no-cache",
    ),
    "ETag": (
        "Changes whenever the record changes; send it in `If-None-Match`",
        _TEXT,
        etag(LEAD),
    ),
    "Data-As-Of": (
        "Every change that the core product had published at this time is in this response. Absent if it is not known",
        {"type": "string", "format": "date-time"},
        "2026-11-23T13:37:00.123Z",
    ),
    "RateLimit-Policy": (
        "The rate limits: `q` requests per `w` seconds",
        _TEXT,
        '"key";q=100;w=10, "organization";q=300;w=10',
    ),
    "RateLimit": (
        "Per rate limit: `r` requests remain, and in `t` seconds there are more; 0 if none was used",
        _TEXT,
        '"key";r=99;t=1, "organization";r=299;t=1',
    ),
    "X-RateLimit-Limit": ("Quota of the limit with fewer requests remaining", _POSITIVE, 100),
    "X-RateLimit-Remaining": ("Requests that remain of that limit", _COUNT, 99),
    "X-RateLimit-Reset": (
        "When the full quota of that limit is available again, in seconds since 1970 UTC",
        _COUNT,
        1789000000,
    ),
    "Retry-After": ("Seconds to wait before a retry; with 429, this wait is sufficient", _POSITIVE, 2),
    "WWW-Authenticate": (
        'How to authenticate; has `error="invalid_token"` if a key was sent and is not valid',
        {"type": "string", "enum": [_REALM, f'{_REALM}, error="invalid_token"']},
        _REALM,
    ),
    "Preference-Applied": ("The wait that was honoured; absent if none was", _TEXT, "wait=5"),
    "Vary": ("The request headers on which the response depends", _TEXT, "Origin"),
    "Allow": ("The methods that this path supports", _TEXT, "GET, HEAD, OPTIONS"),
}

_ALWAYS = ("X-Request-Id", "Cache-Control")
_REQUIRED = {
    200: ("ETag", *_RATE_LIMIT),
    304: ("ETag", *_RATE_LIMIT),
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: (*_RATE_LIMIT, "Retry-After"),
    503: ("Retry-After",),
}
# Present only if the rate limiter was reached: some checks with these statuses come before it.
_OPTIONAL = {
    200: ("Data-As-Of", "Preference-Applied"),
    304: ("Data-As-Of", "Preference-Applied"),
    400: _RATE_LIMIT,
    404: (*_RATE_LIMIT, "Data-As-Of", "Preference-Applied"),
}


@cache
def document() -> Json:
    """Returns the whole document. All callers share it: do not modify it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Leadview: {all_resources()}",
            "version": VERSION,
            "summary": f"Read-only {all_resources()} of one organization",
            "description": _GUIDE.format(resources=all_resources()),
        },
        "servers": [{"url": "/", "description": "The server that this document was read from"}],
        "tags": [
            *({"name": _tag(resource), "description": resource.summary} for resource in AS_SPECIFIED),
            {"name": "Service", "description": "Health and description of the service. These paths need no key"},
        ],
        "security": [{"apiKey": []}],
        "paths": _resources() | _service(),
        "components": _components(),
    }


def _resources() -> Json:
    return {f"{ROOT}/{resource.topic}/{{id}}": _resource(resource) for resource in AS_SPECIFIED}


def _tag(resource: Resource) -> str:
    return resource.topic.title()


def _name(resource: Resource) -> str:
    """The name of its schema, and part of the names of its operations."""
    return resource.document.__name__


def _resource(resource: Resource) -> Json:
    name, noun = _name(resource), resource.noun
    # In each operation, and a new one at the end: generators pass them in this order, behind the id.
    parameters = [_reference("parameters", parameter) for parameter in ("IfNoneMatch", "RequestId")]
    shared = {"tags": [_tag(resource)]}
    return {
        "parameters": [_reference("parameters", f"{name}Id")],
        "get": shared
        | {
            "operationId": f"get{name}",
            "parameters": [*parameters, _reference("parameters", "Prefer")],
            "summary": f"Read one {noun}",
            "description": resource.about,
            "responses": {"200": _record(resource)}
            | {str(status): _reference("responses", _response_name(status)) for status in (304, *_ERRORS)},
        },
        "head": shared
        | {
            "operationId": f"head{name}",
            "parameters": parameters,
            "summary": f"Read the headers of one {noun}",
            "description": _HEAD,
            "responses": {str(status): _without_body(status, f"The {noun} exists") for status in (200, 304, *_ERRORS)},
        },
    }


def _record(resource: Resource) -> Json:
    return {
        "description": f"The {resource.noun}",
        "headers": _headers(200),
        "content": {
            "application/json": {
                "schema": _reference("schemas", _name(resource)),
                "example": _builtins(resource.example),
            }
        },
    }


def _response_name(status: int) -> str:
    if status == 304:
        return "NotModified"
    codes = [problem.code for problem in _with_status(status)]
    single = codes[0] if len(codes) == 1 else {400: "bad_request", 401: "unauthorized"}[status]
    return single.title().replace("_", "")


def _without_body(status: int, exists: str) -> Json:
    description = {200: exists, 304: "The record has not changed"}.get(status) or _when(status)
    return {"description": description, "headers": _headers(status)}


def _when(status: int) -> str:
    return "; ".join(f"`{problem.code}`: {problem.when}" for problem in _with_status(status))


def _service() -> Json:
    health = _reference("schemas", "Health")
    unready = {"503": _reference("responses", _response_name(503))}
    return {
        f"{ROOT}/openapi.json": {"get": _own_description()},
        "/healthz": {"get": _open("getHealth", "Is the service running?", _HEALTH, health)},
        "/readyz": {"get": _open("getReadiness", "Can it serve records?", _READINESS, health, unready)},
    }


def _own_description() -> Json:
    """Returns the operation that reads this document, which has an ETag and may be compressed."""
    found = _open("getOpenApi", "Read this document", _OPENAPI, {"type": "object"})
    found["parameters"] = [_reference("parameters", "IfNoneMatch"), *found["parameters"]]
    described = {name: _header(name) for name in ("ETag", "Vary")}
    found["responses"]["200"]["headers"] |= described
    not_modified = {"X-Request-Id": _header("X-Request-Id"), **described}
    found["responses"]["304"] = {"description": "The document has not changed", "headers": not_modified}
    return found


def _open(operation: str, summary: str, description: str, schema: Json, more: Json | None = None) -> Json:
    """Returns an operation that needs no key and has no rate limit."""
    found = {
        "description": "Yes" if summary.endswith("?") else "The document",
        "headers": {"X-Request-Id": _header("X-Request-Id")},
        "content": {"application/json": {"schema": schema}},
    }
    return {
        "tags": ["Service"],
        "operationId": operation,
        "summary": summary,
        "description": description,
        "security": [],
        "parameters": [_reference("parameters", "RequestId")],
        "responses": {"200": found, **(more or {})},
    }


def _components() -> Json:
    _, schemas = msgspec.json.schema_components(_COMPONENTS, ref_template="#/components/schemas/{name}")
    schemas = {name: _for_generators(schema) for name, schema in schemas.items()}
    for resource in AS_SPECIFIED:
        _let_be_absent(resource.document, schemas[_name(resource)])
    names = {_response_name(status): status for status in _ERRORS}
    return {
        "schemas": schemas,
        "responses": {
            "NotModified": _without_body(304, ""),
            **{name: _error(status) for name, status in names.items()},
        },
        "parameters": _parameters(),
        "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "description": _KEY}},
    }


def _let_be_absent(document: type[msgspec.Struct], schema: Json) -> None:
    """msgspec requires every field without a default, also one that can be UNSET."""
    for field, hint in get_type_hints(document).items():
        if msgspec.UnsetType in get_args(hint):
            schema["required"].remove(field)


def _for_generators(schema: Any) -> Any:
    """Returns a schema of responses from which generators make clients that can read every response.

    - Objects are open: clients of some languages refuse a field that the schema does not have, and fields may be added.
    - Numbers have a format: without one, Go reads money as float32, and many languages read integers as 32 bits.
    - An enum has a type, and a UUID has no pattern: some generators fail otherwise.
    - `integer` is left out where `number` stands beside it: every integer is a number, and clients would have both.
    """
    if isinstance(schema, list):
        return [_for_generators(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _for_generators(each) for name, each in schema.items()}
    if any(each.get("type") == "number" for each in found.get("anyOf", ())):
        found["anyOf"] = [each for each in found["anyOf"] if each.get("type") != "integer"]
    match found:
        case {"type": "object"}:
            return {"additionalProperties": True, **found}
        case {"type": "integer" | "number" as type_}:
            return {**found, "format": "int64" if type_ == "integer" else "double"}
        case {"enum": [*_]}:
            return {"type": "string", **found}
        case {"format": "uuid"}:
            return {name: each for name, each in found.items() if name != "pattern"}
    return found


def _error(status: int) -> Json:
    body = _BODIES.get(status, ErrorBody)
    content = {
        "schema": _reference("schemas", body.__name__),
        "examples": {
            problem.code: {"summary": problem.when, "value": _body_example(body, problem)}
            for problem in _with_status(status)
        },
    }
    return {
        "description": _when(status),
        "headers": _headers(status),
        "content": {"application/json": content},
    }


def _with_status(status: int) -> tuple[Problem, ...]:
    return tuple(problem for problem in PROBLEMS if problem.status == status)


def _body_example(body: type[ErrorBody], problem: Problem) -> Json:
    values: Json = {
        "error": problem.code,
        "message": problem.message,
        "status": problem.status,
        "request_id": REQUEST_ID,
        "retry_after": 2,
        "violated_policies": ["key"],
    }
    return {name: values[name] for name in body.__struct_fields__ if name in values}


def _parameters() -> Json:
    return {
        **{
            f"{_name(resource)}Id": _parameter(
                "id",
                "path",
                f"UUID of the {resource.noun}",
                {"type": "string", "format": "uuid"},
                _builtins(resource.example)["id"],
            )
            for resource in AS_SPECIFIED
        },
        "IfNoneMatch": _parameter(
            "If-None-Match",
            "header",
            "The `ETag` of your copy: the response is 304 while the copy is current",
            _TEXT,
            etag(LEAD),
        ),
        "Prefer": _parameter(
            "Prefer",
            "header",
            "`wait=N` (RFC 7240) waits up to N seconds, 30 at most: with `If-None-Match` until the record differs, and "
            "without it until there is a record. Charged once, by its final answer",
            _TEXT,
            "wait=5",
        ),
        "RequestId": _parameter(
            "X-Request-Id",
            "header",
            "Your own id for this request: up to 128 letters, digits and `._-:/+=@~`. Any other value is replaced",
            _TEXT,
            REQUEST_ID,
        ),
    }


def _parameter(name: str, place: str, description: str, schema: Json, example: str) -> Json:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema,
        "example": example,
    }


def _builtins(record: msgspec.Struct) -> Any:
    return orjson.loads(msgspec.json.encode(record))


def _reference(section: str, name: str) -> Json:
    return {"$ref": f"#/components/{section}/{name}"}


def _headers(status: int) -> Json:
    """Returns the Header Objects of a resource's response with this status, by header name."""
    required = {name: _header(name) for name in (*_ALWAYS, *_REQUIRED.get(status, ()))}
    return required | {name: _header(name, required=False) for name in _OPTIONAL.get(status, ())}


def _header(name: str, *, required: bool = True) -> Json:
    """Returns the Header Object of one header."""
    description, schema, example = _HEADERS[name]
    return {"description": description, "required": required, "schema": schema, "example": example}
