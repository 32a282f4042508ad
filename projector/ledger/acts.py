"""Records who did what: each act of an operator, in a stream of Redis beside the home copy of the control record.

It is kept through promotions, restarts and failovers, like the record itself, and lost if Redis is emptied. Acts that
another version of Leadview has written stay there, and are read if they can be decoded.
"""

import getpass
import logging
import os
import socket
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from projector.errors import ProjectorError, Refused, Unavailable
from projector.redis.store import Store
from schemas import names
from schemas.api_keys import PREFIX
from schemas.version import VERSION
from schemas.words import utc

MOST = 1000
"""The number of acts that are kept."""
_LONGEST = 500
"""The number of characters that are kept of each word and reason."""
_FIELD = b"act"

logger = logging.getLogger(__name__)

Result = Literal["begun", "done", "refused", "failed", "interrupted"]
_INTERRUPTED = 130
"""The exit code of a command that a signal has ended."""


class Act(msgspec.Struct, frozen=True):
    """`arguments` are the words after the verb on the command line. `chosen` has what the command chose by itself, such
    as the generation, by its name. `by` is `<login>@<host>`, or what `--by` said. `reason` says why it was refused or
    has failed. `time` is RFC 3339, `version` that of the program.
    """

    verb: str
    arguments: Sequence[str]
    by: str
    outcome: str = "begun"
    reason: str = ""
    time: str = ""
    version: str = VERSION
    chosen: Mapping[str, int | float | str] = {}

    def __str__(self) -> str:
        """What was done, with what the command chose by itself in parentheses."""
        chosen = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.chosen.items())
        return " ".join((self.verb, *self.arguments, *([f"({chosen})"] if chosen else [])))


def operator() -> str:
    """Returns who runs this process: the login, that before `sudo` if there is one, and the host."""
    login = os.environ.get("SUDO_USER", "")
    if not login:
        try:
            login = getpass.getuser()
        except (KeyError, OSError):  # a container may run as a user without a name
            login = str(os.getuid())
    return f"{login}@{socket.gethostname()}"


async def noted(
    store: Store, act: Act, doing: Awaitable[int], chosen: Mapping[str, int | float | str], *, lasts: bool = False
) -> int:
    """Returns the exit code of a command, and records its outcome; with `lasts`, also its start. The command has filled
    `chosen` when it ends.

    Raises what the command raises. If the act cannot be recorded, that is logged, and does not change the result.
    """
    if lasts:
        await note(store, act)
    try:
        code = await doing
    except BaseException as error:
        reason = str(error) if isinstance(error, ProjectorError | ValueError) else type(error).__name__
        await note(store, replace(act, outcome=_outcome(error), reason=reason, chosen=chosen))
        raise
    outcomes: dict[int, Result] = {0: "done", _INTERRUPTED: "interrupted"}
    await note(store, replace(act, outcome=outcomes.get(code, "failed"), chosen=chosen))
    return code


def _outcome(error: BaseException) -> Result:
    if isinstance(error, Refused):
        return "refused"
    return "failed" if isinstance(error, Exception) else "interrupted"


async def note(store: Store, act: Act) -> None:
    """Adds an act to the history, without pasted API keys. Raises nothing."""
    act = replace(act, arguments=[_shown(word) for word in act.arguments], by=_shown(act.by), reason=_shown(act.reason))
    chosen = {name: _shown(value) if isinstance(value, str) else value for name, value in act.chosen.items()}
    act = replace(act, chosen=chosen)
    try:
        await store.ask_one(b"XADD", names.HISTORY, b"MAXLEN", MOST, b"*", _FIELD, msgspec.json.encode(act))
    except Unavailable as error:
        fields = {"verb": act.verb, "outcome": act.outcome, "error": str(error)}
        logger.error("an act could not be noted, and is missing in `status --history`", extra=fields)  # noqa: TRY400 - it says why


async def read(store: Store, most: int = MOST) -> list[Act]:
    """Returns the latest acts, the newest one first. Raises Unavailable."""
    return [act for _, act in await _entries(store, b"XREVRANGE", b"+", b"-", most) if act]


class ActLog:
    """Logs the acts of all operators, wherever their commands ran, in the log of a projector."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: bytes | None = None

    async def report(self) -> None:
        """Log what was noted since the last call; the first call logs nothing. Raises Unavailable."""
        if self._last is None:
            newest = await _entries(self._store, b"XREVRANGE", b"+", b"-", 1)
            self._last = newest[0][0] if newest else b"0"
            return
        for id_, act in await _entries(self._store, b"XRANGE", b"(" + self._last, b"+", MOST):
            self._last = id_
            if act is None:
                continue
            fields = {name: value for name, value in msgspec.structs.asdict(act).items() if value}
            logger.info("an operator has acted", extra=fields | {"at": fields.pop("time")})


def _shown(text: str) -> str:
    """Returns what is kept of a text: at most `_LONGEST` characters, and none of an API key or after one."""
    before, key, _ = text.encode(errors="backslashreplace").decode().partition(PREFIX)
    kept = f"{before}{key}…" if key else before
    return kept if len(kept) <= _LONGEST else f"{kept[:_LONGEST]}…"


async def _entries(
    store: Store, command: bytes, first: bytes, last: bytes, most: int
) -> list[tuple[bytes, Act | None]]:
    """Returns the id and the act of each entry; None for an act that cannot be decoded, of another version."""
    found: list[tuple[bytes, Act | None]] = []
    for id_, fields in await store.ask_one(command, names.HISTORY, first, last, b"COUNT", most):
        act = None
        with suppress(msgspec.MsgspecError, KeyError):
            act = msgspec.json.decode(dict(zip(fields[::2], fields[1::2], strict=True))[_FIELD], type=Act)
            added_at = int(id_.partition(b"-")[0])  # by the clock of Redis
            act = replace(act, time=utc(added_at))
        found.append((id_, act))
    return found
