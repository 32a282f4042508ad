"""Limits what the clients of a worker hold of it while it waits for them: connections, time, and bytes that they do not
read.

A response goes into the send buffer of its connection, which the kernel holds and whose size is fixed. So responses
that fit into it cost a worker nothing, however slowly they are read. What does not fit waits in the memory of the
worker, and all that waits is limited here.
"""

import fcntl
import resource
import socket
import struct
import sys
import termios
from asyncio import AbstractEventLoop, BaseTransport, TimerHandle
from collections.abc import Callable, Collection
from heapq import nsmallest
from typing import Protocol

MAX_CONNECTIONS = 4096
"""Of each worker. The connections of 4,096 clients that wait take about 30 MiB."""
_OTHER_FILES = 128
_SHARE = 10
SEND_BUFFER = 128 * 1024
"""Bytes that the kernel takes for what a client has not read, with its own structures: there is room for at least half
as many bytes of responses. By itself, this buffer would grow up to 4 MB. It holds more than one segment of the loopback
device (64 KiB): with less, each part of a large response would wait 40 ms for an acknowledgement."""
RECEIVE_BUFFER = 32 * 1024
"""Likewise for what a client has sent and this worker has not read, because it answers a former request."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Of each worker: 64 of the largest documents, or some tens of thousands of usual ones."""
_DISCARD = struct.pack("ii", 1, 0)


class Timer:
    """Calls an action once it has run for `seconds` without being stopped. Only a running timer refers to its action,
    so a connection whose timers are stopped is freed at once, without a garbage collection.
    """

    __slots__ = ("_handle", "_loop", "_seconds")

    def __init__(self, loop: AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._handle: TimerHandle | None = None

    def start(self, action: Callable[[], object]) -> None:
        """Start the timer. A timer that was started before keeps its time and its action."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, action)

    @property
    def started_at(self) -> float | None:
        """When it was started, by the clock of the event loop; None if it does not run."""
        return self._handle.when() - self._seconds if self._handle else None

    def stop(self) -> None:
        """Stop the timer, so that it can be started again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Connection(Protocol):
    """A connection, which waits for its client while one of its timers runs."""

    timers: tuple[Timer, ...]

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


class Unread:
    """The responses that wait in this worker until their clients read on.

    If there are too many bytes, the connection whose response has waited longest is closed, among those of the
    organization that holds the most. So clients that do not read harm others of their own organization at most. The
    responses without an organization, such as the OpenAPI document, count as those of one more.
    """

    def __init__(self, most: int = MAX_UNREAD_BYTES) -> None:
        self.most = most
        self.total = 0
        self._waiting: dict[Connection, tuple[bytes, int]] = {}  # in the order in which they began to wait
        self._held: dict[bytes, int] = {}  # by organization

    def add(self, connection: Connection, organization: bytes, waiting: int) -> None:
        """Note that `waiting` bytes of a response to this organization did not fit into the send buffer. They count
        until the client has taken all of them, because the memory of a response is freed at once.
        """
        size = waiting + SEND_BUFFER
        self._waiting[connection] = organization, size
        self._held[organization] = self._held.get(organization, 0) + size
        self.total += size
        while self.total > self.most:
            largest = max(self._held, key=self._held.__getitem__)
            oldest = next(each for each, (owner, _) in self._waiting.items() if owner == largest)
            self.remove(oldest)
            oldest.abort()

    def remove(self, connection: Connection) -> None:
        """Note that everything was taken, or that the connection is closed."""
        if connection in self._waiting:
            organization, size = self._waiting.pop(connection)
            self.total -= size
            self._held[organization] -= size
            if not self._held[organization]:
                del self._held[organization]


def _waiting_since(connection: Connection) -> float | None:
    """Returns when it began to wait for its client, by the clock of the event loop; None if it does not wait."""
    return min((at for timer in connection.timers if (at := timer.started_at) is not None), default=None)


def raise_file_limit() -> int:
    """Allow this process as many open files as `MAX_CONNECTIONS` needs. Returns how many connections it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, soft - _OTHER_FILES)
    return MAX_CONNECTIONS


def limit_buffers(listener: socket.socket, seconds: float) -> None:
    """Limit what the kernel holds for each connection that this socket will accept: how much, and for how many seconds
    if the client takes nothing of it.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER // 2)  # the kernel doubles these
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER // 2)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def in_kernel(transport: BaseTransport) -> int:
    """Returns how many bytes the kernel holds that the client's machine has not acknowledged; 0 if it is closed."""
    number = transport.get_extra_info("socket").fileno()
    return int.from_bytes(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)), sys.byteorder) if number >= 0 else 0


def discard_at_close(transport: BaseTransport) -> None:
    """Make the kernel forget these bytes when the connection is closed. Otherwise it would hold them until the client
    takes them, though the connection does not count any more.
    """
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
