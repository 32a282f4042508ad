"""Limits the connections of a worker, so that clients which hold many of them keep no other client out."""

import resource
from asyncio import TimerHandle
from collections.abc import Collection
from heapq import nsmallest
from typing import Protocol

from api.edge.timer import Timer

MAX_CONNECTIONS = 4096
"""Of each worker. The connections of 4,096 clients that wait take about 30 MiB."""
_OTHER_FILES = 128
_SHARE = 10


class Connection(Protocol):
    """A connection, which waits for its client while one of its timers runs."""

    timers: tuple[Timer, ...]
    timeout_keep_alive_task: TimerHandle | None
    """uvicorn's timer, which runs between two requests."""
    timeout_keep_alive: int
    """Its seconds."""

    def abort(self) -> None:
        """Close it at once."""


class Crowd:
    """Limits how many connections are open."""

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self.most = most

    def make_room(self, connections: Collection[Connection]) -> None:
        """Close a tenth of the connections if there are too many: those that have waited longest for their clients.

        A tenth, because to find them takes a look at all. A client whose request is being answered is never cut off.
        """
        if len(connections) <= self.most:
            return
        waiting = [(since, each) for each in connections if (since := _waiting_since(each)) is not None]
        for _, each in nsmallest(max(1, self.most // _SHARE), waiting, key=lambda found: found[0]):
            each.abort()


def _waiting_since(connection: Connection) -> float | None:
    """Returns when it began to wait for its client, by the clock of the event loop; None if it does not wait."""
    found = [timer.started_at for timer in connection.timers]
    if idle := connection.timeout_keep_alive_task:
        found.append(idle.when() - connection.timeout_keep_alive)
    return min((at for at in found if at is not None), default=None)


def raise_file_limit() -> int:
    """Allow this process as many open files as `MAX_CONNECTIONS` needs. Returns how many connections it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, soft - _OTHER_FILES)
    return MAX_CONNECTIONS
