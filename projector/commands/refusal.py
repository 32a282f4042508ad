"""Which check of the API refuses an organization or a key, and why: the rows of the contract's table of HTTP answers.

Pure. It follows `api/redis/lua/serve.lua`, which decides for each request.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from schemas.gcra import bucket
from schemas.layouts import Head
from schemas.settings import Limit

_EMPTY_ROW = "-"


class Refusal(msgspec.Struct, frozen=True):
    """The answer of the API. `row` is that of the contract's table; `why` says what to do, too."""

    row: str
    status: int
    error: str
    why: str


class Bucket(msgspec.Struct, frozen=True):
    """A rate limit, and what is left of it at the moment. `own` is false if the limit is that of the settings."""

    scope: str
    quota: int
    window: int
    """In seconds."""
    own: bool
    remaining: int
    wait: float
    """Seconds until a request is allowed; 0 if one is allowed now."""

    @classmethod
    def of(cls, scope: str, limit: Limit, own: bool, full_in: int) -> "Bucket":
        """`full_in` is the time until the bucket is full again, in microseconds."""
        left = bucket(limit.quota, limit.window, full_in)
        return cls(scope, limit.quota, limit.window, own, left.remaining, left.wait / 1_000_000)


def refusal_of_organization(head: Head | None, *, api_access: bool, replaying: bool, complete: bool) -> Refusal | None:
    """Returns the check that refuses every key of an organization; None if it has access.

    `head` is that of its stored record. While it is `replaying` its records, or Redis is not `complete`, the API
    answers 503 whatever the key is.
    """
    if not complete:
        return _unavailable(
            "Redis does not hold everything yet, so the API answers 503 for the organizations of the parts that are "
            "not complete, until a projector has filled them. `status` shows how far it is."
        )
    if replaying:
        return _unavailable(
            "The organization was recreated after a delete, and its records are being read again from the topics. The "
            "API answers 503 until a projector has done this."
        )
    if head is None:
        return _no_access(
            "No event of this organization was applied. Publish its event with api_access true. If it was published, "
            "look at `dead-letters list` and `verify --access`."
        )
    if not head.live:
        return _no_access("The organization is deleted. Publish it again, with a higher version, if that is wrong.")
    if not api_access:
        return _no_access(
            "The newest event of the organization switches API access off. Publish one with api_access true."
        )
    return None


def refusal_of_key(
    organization: Refusal | None,
    api_keys: Sequence[tuple[str, str, int | None]],
    limits: Sequence[Bucket],
    now: int,
) -> Refusal | None:
    """Returns the first check that refuses a key; None if a request with it is served.

    `organization` is the refusal of its organization. `api_keys` has the id, the status and the expiry, in milliseconds
    since 1970 or None, of each API key with its hash, as Redis holds them. `now` is in milliseconds since 1970.
    """
    if organization and organization.row == _EMPTY_ROW:
        return organization
    if not api_keys:
        return _invalid_key(
            "No key with this hash is stored: its event was not applied, or the API key or its organization is "
            "deleted. If the event was published, look at `dead-letters list` and `verify --access`."
        )
    if revoked := [id_ for id_, status, _ in api_keys if status == "revoked"]:
        return _invalid_key(f"The key is revoked, by the newest event of the API key {revoked[0]}.")
    if expired := [(at, id_) for id_, _, at in api_keys if at is not None and at <= now]:
        at, id_ = min(expired)
        time = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return _invalid_key(f"The key has expired at {time}, as the newest event of the API key {id_} says.")
    if organization:
        return organization
    if waiting := [bucket for bucket in limits if bucket.wait > 0]:
        slowest = max(waiting, key=lambda bucket: bucket.wait)
        return Refusal(
            "7",
            429,
            "rate_limit_exceeded",
            f"The limit of the {slowest.scope}, {slowest.quota} requests in {slowest.window} s, is used up for the "
            f"next {slowest.wait:.1f} s.",
        )
    return None


def malformed(why: str) -> Refusal:
    """Returns the refusal of a text that does not have the form of a key."""
    return Refusal(
        "4", 401, "invalid_api_key", f"This is not a key of Leadview: {why}. Redis is not even asked for it."
    )


def missing() -> Refusal:
    """Returns the refusal of a request without a key."""
    return Refusal("3", 401, "missing_api_key", "No key was given. Send it as `Authorization: Bearer <key>`.")


def _unavailable(why: str) -> Refusal:
    return Refusal(_EMPTY_ROW, 503, "service_unavailable", why)


def _no_access(why: str) -> Refusal:
    return Refusal("6", 403, "api_access_disabled", why)


def _invalid_key(why: str) -> Refusal:
    return Refusal("5", 401, "invalid_api_key", why)
