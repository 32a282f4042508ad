"""Limits the bytes that a worker's clients do not read.

A response goes into the send buffer of its connection, which the kernel holds and whose size is fixed. So responses
that fit into it cost a worker nothing, however slowly they are read. What does not fit waits in the memory of the
worker, and all that waits is limited here.
"""

import fcntl
import socket
import struct
import sys
import termios
from asyncio import BaseTransport
from typing import Protocol

SEND_BUFFER = 128 * 1024
"""Bytes that the kernel takes for what a client has not read, with its own structures: there is room for at least half
as many bytes of responses. By itself, this buffer would grow up to 4 MB. It holds more than one segment of the loopback
device (64 KiB): with less, each part of a large response would wait 40 ms for an acknowledgement."""
RECEIVE_BUFFER = 32 * 1024
"""Likewise for what a client has sent and this worker has not read, because it answers a former request."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Of each worker: 64 of the largest documents, or some tens of thousands of usual ones."""

_DISCARD = struct.pack("ii", 1, 0)


class Connection(Protocol):
    """A connection whose client has not taken a whole response."""

    def abort(self) -> None:
        """Close it at once."""


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
