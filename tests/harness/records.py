"""Writes to Redis what the projector would: organizations, keys and documents, as schemas/layouts.py defines them."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import msgspec
import redis
from msgspec import Struct, field

from schemas import api_keys, names, resources
from schemas.layouts import NO_CONTACT, content_hash
from tests.harness import control
from tests.harness.generations import generation as generation_of


def _new_id() -> str:
    return str(uuid4())


class Caller(Struct):
    """An organization with one active key."""

    organization_id: str = field(default_factory=_new_id)
    key: str = ""

    def __post_init__(self) -> None:
        self.key = self.key or api_keys.mint(self.organization_id)

    @property
    def name(self) -> bytes:
        """The organization's name in Redis."""
        return names.organization(self.organization_id)

    @property
    def authorization(self) -> str:
        return f"Bearer {self.key}"


class Records:
    """Writes to one Redis. Every method replaces what was there."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def read(self, name: bytes) -> bytes:
        """Returns the value of this key, which must exist."""
        value = self.client.get(name)
        assert isinstance(value, bytes)
        return value

    @contextmanager
    def full(self) -> Iterator[None]:
        """Redis refuses to write until the block ends."""
        self.client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            self.client.config_set("maxmemory", "0")

    def serve(self) -> None:
        """Write a control record that says that everything is complete, unless there is one."""
        if not self.client.exists(names.CONTROL):
            control.write(self.client)

    def caller(
        self,
        *,
        access: bool = True,
        key_limit: tuple[int, int] = (0, 0),
        organization_limit: tuple[int, int] = (0, 0),
    ) -> Caller:
        """Write a new organization and its key. Limits are (quota, window in seconds); (0, 0): as set."""
        caller = Caller()
        self.organization(
            caller.organization_id, access=access, key_limit=key_limit, organization_limit=organization_limit
        )
        self.key(caller.key, caller.organization_id)
        return caller

    def organization(
        self,
        organization_id: str,
        *,
        state: bytes = b"L",
        access: bool = True,
        key_limit: tuple[int, int] = (0, 0),
        organization_limit: tuple[int, int] = (0, 0),
    ) -> None:
        self.serve()
        limits = b"".join(number.to_bytes(4, "little") for number in (*key_limit, *organization_limit))
        value = head(state) + b"-" + (b"1" if access else b"0") + limits
        self.client.set(names.organization(organization_id), value)

    def key(self, key: str, organization_id: str, *, expires_at: int = 0) -> None:
        """Write an active key. `expires_at` is in milliseconds since 1970, 0 for never."""
        self.serve()
        self._key(api_keys.organization_tag(organization_id), key, expires_at, b"A", expires_at)

    def revoke(self, key: str) -> None:
        self._key(api_keys.parse(key).organization_tag, key, 1, b"R", 0)

    def _key(self, tag: str, key: str, opens_until: int, state: bytes, expires_at: int) -> None:
        """Write the record of a key, with one entry."""
        entry = names.short_id(_new_id()) + state + expires_at.to_bytes(6, "little")
        value = tag.encode() + opens_until.to_bytes(6, "little") + entry
        self.client.set(names.api_key(names.tagged(tag), api_keys.key_hash(key)), value)

    def lead(
        self,
        organization_id: str,
        body: object,
        *,
        generation: int = 1,
        state: bytes = b"L",
        record_id: str | None = None,
    ) -> str:
        """Write a lead with `body` as its JSON. Returns its id, which is a new one by default."""
        record_id = record_id or _new_id()
        encoded = msgspec.json.encode(body)
        value = head(state) + content_hash(encoded) + NO_CONTACT + bytes(6) + encoded
        self.client.set(
            names.document(resources.LEAD, names.organization(organization_id), generation_of(generation), record_id),
            value,
        )
        return record_id

    def contact(self, organization_id: str, body: object, *, generation: int = 1, state: bytes = b"L") -> str:
        """Write a contact with `body` as its JSON. Returns its id."""
        record_id = _new_id()
        encoded = msgspec.json.encode(body)
        value = head(state) + content_hash(encoded) + content_hash(b"summary") + bytes(3 + 28) + encoded
        self.client.set(
            names.document(
                resources.CONTACT, names.organization(organization_id), generation_of(generation), record_id
            ),
            value,
        )
        return record_id


def head(state: bytes = b"L") -> bytes:
    """Returns the first 22 bytes of an entity's value; only the state matters to the API."""
    return state + (1).to_bytes(7, "little") + bytes(14)
