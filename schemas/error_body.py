"""The response bodies of the HTTP API other than documents, and the status of each error code.

ErrorBody            the body of every error
└─ RetryableError    503: adds how long to wait before a retry
   └─ RateLimitError 429: adds which limits were exceeded

The names are those of the schemas in the OpenAPI document, and of the types in generated clients. They must not shadow
what a language has, such as `Error` in TypeScript.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Policy = Literal["key", "organization", "address"]


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every error. Branch on `error`; `message` is for people and may change."""

    error: Annotated[
        str, Meta(description="Code of the error. New codes may be added: if you do not know a code, use `status`")
    ]
    message: Annotated[str, Meta(description="What happened and what to do about it, for people")]
    status: Annotated[int, Meta(description="The HTTP status code of the response", ge=400, le=599)]
    request_id: Annotated[str, Meta(description="Same as `X-Request-Id`. Quote it when you ask for help")]
    docs_url: Annotated[
        str | UnsetType,
        Meta(description="Where this error is documented. It is absent if the service has no public documentation"),
    ] = UNSET


class RetryableError(ErrorBody, frozen=True, kw_only=True):
    """The body of a 503."""

    retry_after: Annotated[int, Meta(description="Seconds to wait before a retry, same as `Retry-After`", ge=1)]


class RateLimitError(RetryableError, frozen=True, kw_only=True):
    """The body of a 429."""

    violated_policies: Annotated[
        list[Policy],
        Meta(
            description="The limits of `RateLimit-Policy` that the request exceeded: `key`, `organization` or both; or "
            "`address` alone, the limit of unknown keys from one client address",
            min_length=1,
        ),
    ]


class Health(Struct, frozen=True, kw_only=True):
    """The body of a successful health check."""

    status: Annotated[Literal["ok"], Meta(description="Always `ok`: any other state is an error")] = "ok"


class Problem(Struct, frozen=True):
    """One error code of the API (docs/reading.md): the condition `when` it is returned, and an example `message`."""

    code: str
    status: int
    when: str
    message: str


PROBLEMS = (
    Problem(
        "invalid_id",
        400,
        "The id in the path is not a UUID",
        "The id in the path is not a UUID. Send it as 8-4-4-4-12 hexadecimal digits.",
    ),
    Problem(
        "body_not_allowed",
        400,
        "The request has a body",
        "GET and HEAD requests must not have a body. Send the request without one.",
    ),
    Problem(
        "bad_request",
        400,
        "The request is not valid HTTP/1.1, such as one without `Host`",
        "The request is not valid HTTP/1.1. Check the request line and the headers.",
    ),
    Problem(
        "missing_api_key",
        401,
        "No key was sent",
        "No API key was sent. Send it in the header `Authorization: Bearer <API_KEY>`.",
    ),
    Problem(
        "invalid_api_key",
        401,
        "The key is malformed, unknown, revoked or expired",
        "The API key is not valid. Check that it is complete, or create a new one.",
    ),
    Problem(
        "api_access_disabled",
        403,
        "API access is disabled for the organization",
        "API access is disabled for this organization. Enable it in the integration settings.",
    ),
    Problem(
        "not_found",
        404,
        "The record does not exist, or it belongs to another organization",
        "There is no such record in this organization. Check the id.",
    ),
    Problem(
        "method_not_allowed",
        405,
        "The method is not GET, HEAD or OPTIONS",
        "The API is read-only: use GET or HEAD.",
    ),
    Problem(
        "request_timeout",
        408,
        "The request line and headers were not received in time",
        "The request line and headers were not received in time. Send them without a pause.",
    ),
    Problem(
        "rate_limit_exceeded",
        429,
        "The rate limit of the key, of the organization, or of both is used up; or too many unknown keys were sent "
        "from the client's address",
        "Too many requests. Try again after `retry_after` seconds.",
    ),
    Problem(
        "request_header_fields_too_large",
        431,
        "The request line and headers are larger than 16 KB",
        "The request line and headers are larger than 16 KB. Send fewer or shorter headers.",
    ),
    Problem(
        "internal_error",
        500,
        "The service has a defect",
        "An internal error occurred. Try again. If it happens again, tell us the request id.",
    ),
    Problem(
        "service_unavailable",
        503,
        "The service is temporarily unavailable",
        "The service is temporarily unavailable. Try again after `retry_after` seconds.",
    ),
)
