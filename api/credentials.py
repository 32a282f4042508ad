"""The caller's API key: from the Authorization header to the names in Redis that belong to it."""

from msgspec import Struct

from api.errors import InvalidApiKey, MissingApiKey
from schemas import api_keys, names

REPEATED = b"\n"
"""Joins the values of a header that was sent more than once. No header value can contain a line feed."""


class Used(Struct, eq=False):
    """How often a key was used since this was written to Redis last (`api/usage.py`).

    `last` is the time of the last request, on the clock of `time.perf_counter`.
    """

    requests: int = 0
    refusals: int = 0
    last: float = 0.0


class Packed(Struct, eq=False):
    """What all calls of the script for one caller have in common (`api/redis/store.py`): the words before the name of
    the document, and those after it, in the protocol of Redis. They are empty until the first call.
    """

    before: bytes = b""
    after: bytes = b""


class Credentials(Struct, frozen=True):
    """The names in Redis that belong to a key. They contain no secret: the key itself is not kept."""

    organization_tag: bytes
    """The organization that is encoded in the key. The script compares it with the stored record of the key."""
    organization: bytes
    active_key: bytes
    key_limit: bytes
    organization_limit: bytes
    used: Used
    packed: Packed


def credentials(authorization: bytes | None) -> Credentials:
    """Read the Authorization header. Raises MissingApiKey and InvalidApiKey (contract section 1, rows 3 and 4)."""
    if not authorization:
        raise MissingApiKey
    if REPEATED in authorization:
        raise InvalidApiKey("there is more than one Authorization header")
    scheme, _, token = authorization.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise MissingApiKey
    try:
        key = api_keys.parse(token.decode("latin-1"))
    except api_keys.MalformedKey:
        raise InvalidApiKey from None
    return _names(key)


def _names(key: api_keys.ParsedKey) -> Credentials:
    owner = names.tagged(key.organization_tag)
    return Credentials(
        organization_tag=key.organization_tag.encode(),
        organization=owner,
        active_key=names.api_key(owner, key.hash),
        key_limit=names.key_limit(owner, key.hash),
        organization_limit=names.organization_limit(owner),
        used=Used(),
        packed=Packed(),
    )
