"""Finds where an id or the hash of a key is stored, if its organization is not known: it looks at every name in Redis.

During at most `SHARE` of the time a command of the search is under way, so that readers do not notice it.
"""

import asyncio
import re
import time
from typing import NamedTuple

from projector.redis.store import Store
from schemas import names
from schemas.resources import API_KEY, RESOURCES, Kind

SHARE = 0.2
MOST_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
_NAME = re.compile(
    rb"(%b\{[0-9A-Za-z]{22}\})([ak]|\d+\.[0-9A-Za-z]{6}[%b])"
    % (names.PREFIX, b"".join(each.letter for each in RESOURCES))
)


class Stored(NamedTuple):
    """What is stored under an id: its kind, and the name of its organization's record."""

    kind: Kind
    owner: bytes


class Searched(NamedTuple):
    """What was found. `all`: every name was looked at, or enough was found."""

    found: list[Stored]
    all: bool


async def search(store: Store, *, id: str = "", key_hash: str = "") -> Searched:  # noqa: A002 - the field's own word
    """Look for an entity by its id, or for a key by its hash. Stops at the first place. Raises Unavailable."""
    ending = b"k" + key_hash.encode() if key_hash else names.short_id(id)
    began = time.monotonic()
    asked, since = 0.0, began
    async for keys in store.scan(names.ALL):
        now = time.monotonic()
        asked += now - since
        for key in keys:
            if key.endswith(ending) and (found := _stored(key, ending)):
                return Searched([found], all=True)
        if now - began > MOST_SECONDS:
            return Searched([], all=False)
        if asked > _PAUSE_SECONDS * SHARE:
            await asyncio.sleep(asked * (1 / SHARE - 1))
            asked = 0.0
        since = time.monotonic()
    return Searched([], all=True)


def _stored(key: bytes, ending: bytes) -> Stored | None:
    match = _NAME.match(key)
    if not match:
        return None
    letter = match[2][-1:]
    if letter in b"ak":
        return Stored(API_KEY, match[1]) if key in (match[1] + letter + ending, match[1] + ending) else None
    kinds = [each for each in RESOURCES if each.letter == letter]
    return Stored(kinds[0], match[1]) if kinds and key == match[0] + ending else None
