"""The scripts of the API, as Python calls them. The header of each one, in the folder `lua`, says what the names mean
and what it replies; `leadview/redis/scripts.py` compares the two when this module is imported.
"""

from collections.abc import Sequence
from typing import NamedTuple

from leadview.redis.scripts import Folder, Key, Keys, OptionalKey

_folder = Folder("api.redis")


class UseRow(NamedTuple):
    """How often a key was used, and when last, in milliseconds since 1970."""

    hash: str
    requests: int
    refusals: int
    last: int


@_folder.script
def serve(
    *,
    key: Key,
    organization: Key,
    key_limit: Key,
    organization_limit: Key,
    document: OptionalKey = None,
    tag: bytes,
    limits: bytes,
    etags: Sequence[bytes],
) -> None: ...


@_folder.script
def usage(*, uses: Key, records: Keys, seconds: int, counts: Sequence[UseRow]) -> None: ...
