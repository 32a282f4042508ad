"""The scripts of the API, as Python calls them: to call one of these functions makes the command that runs the script
of that name in the folder `lua`. The header of the script says what the names mean and what it replies.

`@_folder.script` (`runtime/redis/scripts.py`) puts the script in the place of the function when this module is
imported, and compares their names.
"""

from collections.abc import Sequence
from typing import NamedTuple

from runtime.redis.scripts import Folder, Key, Keys, OptionalKey

_folder = Folder("api.redis")


class UseRow(NamedTuple):
    """The uses of a key, and the time of the last one, in milliseconds since 1970."""

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
    limits: bytes,
    etags: Sequence[bytes],
) -> None: ...


@_folder.script
def usage(*, uses: Key, records: Keys, seconds: int, counts: Sequence[UseRow]) -> None: ...
