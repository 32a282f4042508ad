"""Limits the connections of a worker, so that clients which hold many of them keep no other client out."""

import resource
from collections.abc import Collection
from heapq import nsmallest
from typing import Protocol

MAX_CONNECTIONS = 4096
"""Of each worker. The connections of 4,096 clients that wait take about 30 MiB."""
_OTHER_FILES = 128
_SHARE = 10


class Waiting(Protocol):
    """A connection."""

    def waiting_since(self) -> float | None:
        """Returns when it began to wait for its client, by the clock of the event loop; None if it does not wait."""

    def abort(self) -> None:
        """Close it at once."""


class Crowd:
    """Limits how many connections are open."""

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self.most = most

    def make_room(self, connections: Collection[Waiting]) -> None:
        """Close a tenth of the connections if there are too many: those that have waited longest for their clients.

        A tenth, because to find them takes a look at all. A client whose request is being answered is never cut off.
        """
        if len(connections) <= self.most:
            return
        waiting = [(since, each) for each in connections if (since := each.waiting_since()) is not None]
        for _, each in nsmallest(max(1, self.most // _SHARE), waiting, key=lambda found: found[0]):
            each.abort()


def raise_file_limit() -> int:
    """Allow this process as many open files as `MAX_CONNECTIONS` needs. Returns how many connections it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, soft - _OTHER_FILES)
    return MAX_CONNECTIONS
