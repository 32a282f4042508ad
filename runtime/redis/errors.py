"""The errors of the client of Redis, by what has to be done about them.

Unavailable                Redis is not reachable, too slow or overloaded: retry later
├── ConnectionLost         Redis closed the connection: try once more over the next one
└── ErrorReply             Redis replied with an error: LOADING, MASTERDOWN, OOM and the like
    ├── ScriptMissing      NOSCRIPT: load the script, then call it again
    ├── ReadOnly           READONLY: the server was demoted, so do not use this connection any more
    ├── Redirected         MOVED, ASK, TRYAGAIN: another node of the cluster has the slot, or both have a part of it
    ├── ClusterDown        CLUSTERDOWN: no node of the cluster serves the slot, so the slot map is out of date
    ├── NotPermitted       NOPERM: this user lacks a right
    └── Busy               BUSY: a script has run for seconds, which none of ours does

AddressError               the address of Redis, or its TLS files, in the settings
TooOld                     the server is older than Leadview needs
"""

from typing import ClassVar, Literal

ErrorKind = Literal["unavailable", "error", "busy", "rebuilding"]
"""The reason why Redis did not serve a request, in metrics."""


class Unavailable(Exception):
    """Redis cannot be used at the moment. Whether a command was executed is not known, unless it is an ErrorReply."""

    kind: ClassVar[ErrorKind] = "unavailable"


class ConnectionLost(Unavailable):
    """Redis, or the network, closed the connection. Whether the command was executed is not known."""


class ErrorReply(Unavailable):
    """Redis replied with an error. `str` of it is what Redis said."""

    kind: ClassVar[ErrorKind] = "error"

    @classmethod
    def of(cls, text: str) -> "ErrorReply":
        """Returns the error of the class that the text of a reply names."""
        kind = _KINDS.get(text.partition(" ")[0], cls)
        if kind is cls:
            kind = next((kind for part, kind in _OF_SCRIPTS.items() if part in text), cls)
        return kind(text)


class ScriptMissing(ErrorReply):
    """Redis does not know the script: it restarted, failed over, or ran SCRIPT FLUSH."""


class ReadOnly(ErrorReply):
    """The server is a replica: it was demoted a moment ago."""


class ClusterDown(ErrorReply):
    """No node of the cluster serves the slot at the moment."""


class NotPermitted(ErrorReply):
    """This user may not execute the command, or not use its keys."""


class Busy(ErrorReply):
    """A script has run for seconds: Redis answers everything with BUSY until an operator ends it."""

    kind = "busy"


class Redirected(ErrorReply):
    """A node of a cluster does not have all keys of a command. MOVED and ASK name the node that has them: MOVED from
    now on, ASK for this command only, after ASKING. TRYAGAIN names none, because two nodes have a part of the keys.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        word, *rest = text.split(" ")
        self.moved = word == "MOVED"
        self.asking = word == "ASK"
        self._node = rest[1] if self.moved or self.asking else ""

    def node(self, named_by: str) -> tuple[str, int] | None:
        """Returns host and port of the node that has the keys, and None if both have some. A node that does not know
        its own host leaves it out: then it is the host of the node that replied, `named_by`.
        """
        if not self._node:
            return None
        host, _, port = self._node.rpartition(":")
        return host or named_by, int(port)


_KINDS: dict[str, type[ErrorReply]] = {
    "NOSCRIPT": ScriptMissing,
    "READONLY": ReadOnly,
    "BUSY": Busy,
    "CLUSTERDOWN": ClusterDown,
    "NOPERM": NotPermitted,
    "MOVED": Redirected,
    "ASK": Redirected,
    "TRYAGAIN": Redirected,
}
_OF_SCRIPTS: dict[str, type[ErrorReply]] = {"READONLY": ReadOnly, "can't run this command": NotPermitted}
"""What stands in the error of a script: before Redis 7, the refusal of a write is in the middle of it."""


class TooOld(Exception):
    """The server is older than Leadview needs. The message is for the operator."""


class AddressError(ValueError):
    """The settings of Redis cannot be used. The message names the setting and says what to do, and has no password."""
