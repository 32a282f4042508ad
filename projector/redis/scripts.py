"""The scripts of the projector, as Python calls them: to call one of these functions makes the command that runs the
script of that name in the folder `lua`. The header of the script says what the names mean and what it replies.

`@_folder.script` (`runtime/redis/scripts.py`) puts the script in the place of the function when this module is
imported, and compares their names. Each script begins with `heads.lua`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runtime.redis.scripts import Folder, Key, Keys, OptionalKey

_folder = Folder("projector.redis", always=("heads",))
SCRIPTS = _folder.scripts
"""All of them."""


class AdvanceRow(NamedTuple):
    """The advance of a position, as the script of a checkpoint takes it."""

    partition: str
    expected: int
    position: bytes


class EndRow(NamedTuple):
    """The end offset of a partition."""

    partition: str
    offset: int
    id: str


class CompleteRow(NamedTuple):
    """The ms for which Kafka keeps the deletions of a topic, and three moments in ms since 1970, 0 for none."""

    topic: str
    kept: int
    first: int
    noted: int
    own: int = 0


class RewindRow(NamedTuple):
    """The row that takes back the position of a partition (`rewind.lua`)."""

    partition: str
    topic_id: str
    highest: int
    to: bytes


class LetterRow(NamedTuple):
    """A dead letter that replaces the one that was parked at this time."""

    field: str
    time: int
    letter: bytes


class LateRow(NamedTuple):
    """A late version that is taken off their list, if its record is not behind this one in the same partition."""

    field: str
    partition: int
    history: int
    offset: int


# Documents and access.


@_folder.script
def put_organization(*, organization: Key, head: bytes, access: bytes) -> None: ...


@_folder.script
def put_api_key(
    *,
    organization: Key,
    api_key: Key,
    record: Key,
    stored_record: OptionalKey = None,
    entity: bytes,
    validity: bytes,
    stored_hash: str,
    overwrite_equal: bool,
) -> None: ...


@_folder.script
def delete_api_key(
    *, organization: Key, api_key: Key, stored_record: OptionalKey = None, head: bytes, stored_hash: str
) -> None: ...


@_folder.script
def put_documents(
    *,
    documents: Keys,
    organizations: Keys,
    generations: int,
    overwrite_equal: bool,
    repeated: bool,
    prefixes: bytes,
    bodies: Sequence[bytes],
) -> None: ...


@_folder.script
def put_contacts(
    *,
    documents: Keys,
    organizations: Keys,
    indexes: Keys,
    generations: int,
    overwrite_equal: bool,
    repeated: bool,
    prefixes: bytes,
    bodies: Sequence[bytes],
) -> None: ...


@_folder.script
def put_leads(
    *,
    documents: Keys,
    organizations: Keys,
    contacts: Keys,
    indexes: Keys,
    generations: int,
    overwrite_equal: bool,
    repeated: bool,
    prefixes: bytes,
    bodies: Sequence[bytes],
    ends: Sequence[bytes],
) -> None: ...


@_folder.script
def leave_contact(*, leads: Keys, contact_id: str, lead_id: bytes) -> None: ...


@_folder.script
def pending_leads(*, organization: Key, contacts: Keys, shown: bytes) -> None: ...


@_folder.script
def resplice(*, contacts: Keys, generations: int, leads: Sequence[bytes]) -> None: ...


@_folder.script
def erase(*, organization: Key, erased: Keys) -> None: ...


# Jobs and locks.


@_folder.script
def finish_work(*, organization: Key, lock: Key, head: bytes, holder: bytes) -> None: ...


@_folder.script
def take_lock(*, lock: Key, holder: bytes, seconds: int) -> None: ...


@_folder.script
def expire_lock(*, lock: Key, holder: bytes, seconds: int) -> None: ...


# The control record and positions.


@_folder.script
def create_copy(*, copy: Key, complete: Key, evictions: Key, fields: Mapping[str, str | bytes]) -> None: ...


@_folder.script
def replace_copy(*, copy: Key, stamp: str, incarnation: str, fields: Mapping[str, str | bytes]) -> None: ...


@_folder.script
def change_control(
    *,
    copy: Key,
    stamp: str,
    live: str,
    written: str,
    known: str,
    number: int,
    shared: Mapping[str, str | bytes],
    own: Mapping[str, str | bytes],
) -> None: ...


@_folder.script
def mark_filled(
    *, copy: Key, positions: Key, stamp: str, incarnation: str, generations: str, needed: Mapping[str, int]
) -> None: ...


@_folder.script
def store_as_of(
    *,
    copy: Key,
    as_of: Key,
    complete: Key,
    moment: int,
    lasts: int,
    apart: int,
    hidden: bool,
    number: int,
    count: int,
    topics: Sequence[CompleteRow],
    ends: Sequence[EndRow],
) -> None: ...


@_folder.script
def read_as_of(*, as_of: Key) -> None: ...


@_folder.script
def note_evictions(*, evictions: Key, noted: str) -> None: ...


@_folder.script
def mark_swept(*, copy: Key, stamp: str, incarnation: str, generation: str) -> None: ...


@_folder.script
def delete_rebuild(*, copy: Key, positions: Key, stamp: str, incarnation: str, generation: str) -> None: ...


@_folder.script
def store_targets(*, copy: Key, positions: Key, stamp: str, incarnation: str, targets: Mapping[str, int]) -> None: ...


@_folder.script
def checkpoint(
    *,
    copy: Key,
    positions: Key,
    dead_letters: OptionalKey = None,
    stamp: str,
    incarnation: str,
    number: int,
    advances: Sequence[AdvanceRow],
    letters: Mapping[str, bytes],
) -> None: ...


@_folder.script
def rewind(*, positions: Key, rewinds: Sequence[RewindRow]) -> None: ...


# Programs that write, dead letters and rights.


@_folder.script
def register_writer(*, writers: Key, writer: str, heartbeat: bytes) -> None: ...


@_folder.script
def read_writers(*, writers: Key) -> None: ...


@_folder.script
def forget_writers(*, writers: Key, age: int) -> None: ...


@_folder.script
def delete_dead_letters(*, dead_letters: Key, letters: Mapping[str, int]) -> None: ...


@_folder.script
def replace_dead_letters(*, dead_letters: Key, letters: Sequence[LetterRow]) -> None: ...


@_folder.script
def note_late_versions(*, late_versions: Key, most: int, versions: Mapping[str, bytes]) -> None: ...


@_folder.script
def delete_late_versions(*, late_versions: Key, versions: Sequence[LateRow]) -> None: ...


@_folder.script
def may(*, commands: bytes) -> None: ...
