"""The network of a world: connections between processes, over links between their hosts.

A link may be slow or cut, and cuts bytes where it likes. While it is cut, bytes wait for as long as TCP repeats them,
then the connection ends. A connection that a device on the way has forgotten loses all bytes, and ends when the kernel
has got no answer to its probes (`runtime/keep_alive.py`).
"""

import asyncio
import errno
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import Loop, Process, process

_SYN_SECONDS = 1.0
"""Between two attempts to open a connection."""
_UNANSWERED_SECONDS = 30.0
"""For so long, the kernel waits for an answer of the other side."""
_FIN, _RST = object(), object()
_SLICED_SHARE = 0.02


class Link:
    """The way between two hosts."""

    def __init__(self) -> None:
        self.latency = (0.000_1, 0.002)
        self.is_cut = False


class Network:
    """`listeners` makes the protocol of a connection to a host and a port, and says which process has it."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.links: defaultdict[frozenset[str], Link] = defaultdict(Link)
        self.listeners: dict[tuple[str, int], tuple[Process, Callable[[], asyncio.BaseProtocol]]] = {}
        self.connections: dict[Transport, None] = {}
        loop.connect = self.connect

    def link(self, one: str, other: str) -> Link:
        return self.links[frozenset((one, other))]

    def listen(self, server: Process, port: int, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self.listeners[server.host, port] = server, protocol

    async def connect(self, protocol_factory: Callable[[], Any], host: str, port: int) -> tuple["Transport", Any]:
        """Open a connection. Raises ConnectionRefusedError; waits while the link is cut."""
        client = process() or self.loop.outside
        link = self.link(client.host, host)
        while link.is_cut:  # noqa: ASYNC110 - as the kernel does
            await asyncio.sleep(_SYN_SECONDS)
        await asyncio.sleep(self.delay(link))
        server, accept = self.listeners.get((host, port), (None, None))
        if server is None or server.dead or accept is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        own = Transport(self, client, link, (host, port))
        other = Transport(self, server, link, (_address(client), 40_000))
        own.peer, other.peer = other, own
        other.context.run(self.loop.call_soon, other.begin, accept)
        own.protocol = protocol_factory()
        own.protocol.connection_made(own)
        return own, own.protocol

    def delay(self, link: Link) -> float:
        return self.loop.random.uniform(*link.latency)

    def heal(self, link: Link) -> None:
        """Let bytes flow again: what waits is sent once more."""
        link.is_cut = False
        for transport in self.connections:
            if transport.link is link:
                transport.flush()

    def of(self, one: str, other: str) -> list["Transport"]:
        """Returns the open connections between two hosts, at both of their ends."""
        link = self.link(one, other)
        return [transport for transport in self.connections if transport.link is link]

    def end(self, dead: Process) -> None:
        """A process has ended: its kernel resets its connections and listens no more."""
        for place in [place for place, (server, _) in self.listeners.items() if server is dead]:
            del self.listeners[place]
        for transport in [transport for transport in self.connections if transport.process is dead]:
            transport.abort()
            transport.vanish()


class Transport(asyncio.Transport):
    """One end of a connection. What it sends waits in `unsent` until it has arrived at the other end."""

    def __init__(self, network: Network, owner: Process, link: Link, peername: tuple[str, int]) -> None:
        super().__init__({"peername": peername, "socket": _Socket()})
        self.network = network
        self.process = owner
        self.context = owner.context()
        self.link = link
        self.peer: Transport | None = None
        self.protocol: Any = None
        self.unsent: deque[object] = deque()
        self.forgotten = False
        self._arrives_at = 0.0
        self._unanswered_since: float | None = None
        self._closing = self._lost = self._paused = self._finished = False
        self._received: deque[object] = deque()
        network.connections[self] = None

    def begin(self, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self.protocol = accept()
        self.protocol.connection_made(self)
        self._take()

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._finished:
            self._finished = True
            self._send(_FIN)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._lose_soon(None)

    def abort(self) -> None:
        if self._lost:
            return
        if self.link.is_cut:
            self.unsent.clear()  # the kernel has it in its buffer, and discards it
        self._closing = True
        self._send(_RST)
        self._lose_soon(None)

    def vanish(self) -> None:
        """The process at this end is gone, and hears nothing any more."""
        self._lost = True
        self.network.connections.pop(self, None)

    def forget(self) -> None:
        """A device on the way forgets this connection."""
        self.forgotten = True
        self.network.loop.call_later(_UNANSWERED_SECONDS, self._time_out, context=self.context)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The buffer has no limits."""

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.network.loop.call_soon(self._take, context=self.context)

    def is_reading(self) -> bool:
        return not self._paused

    def flush(self) -> None:
        """Send what waits once more."""
        self._unanswered_since = None
        for _ in self.unsent:
            self._schedule()

    def _send(self, content: object) -> None:
        self.unsent.append(content)
        self._schedule()

    def _schedule(self) -> None:
        assert self.peer
        loop = self.network.loop
        self._arrives_at = max(self._arrives_at, loop.now + self.network.delay(self.link))
        loop.call_at(self._arrives_at, self._arrive, context=self.peer.context)

    def _arrive(self) -> None:
        """The next of what was sent has come to the other end, unless the link is cut by now."""
        if self.forgotten or not self.unsent:
            return
        loop = self.network.loop
        if self.link.is_cut:
            if self._unanswered_since is None:
                self._unanswered_since = since = loop.now
                loop.call_later(_UNANSWERED_SECONDS, self._give_up, since, context=self.context)
            return
        peer, content = self.peer, self.unsent.popleft()
        assert peer
        if isinstance(content, bytes) and len(content) > 1 and loop.random.random() < _SLICED_SHARE:
            cut = loop.random.randrange(1, len(content))
            content, rest = content[:cut], content[cut:]
            self.unsent.appendleft(rest)
            self._schedule()
        if peer._lost:
            if content is not _RST:
                loop.call_later(self.network.delay(self.link), self._reset, context=self.context)
            return
        peer._received.append(content)
        peer._take()

    def _take(self) -> None:
        """Hand over what has arrived."""
        while self._received and not self._paused and not self._lost and self.protocol:
            content = self._received.popleft()
            if isinstance(content, bytes):
                self.protocol.data_received(content)
            elif content is _RST:
                self._reset()
            elif not self.protocol.eof_received():
                self.close()

    def _reset(self) -> None:
        self._end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _time_out(self) -> None:
        self._end(OSError(errno.ETIMEDOUT, "Connection timed out"))

    def _give_up(self, since: float) -> None:
        if self._unanswered_since == since:
            self._time_out()

    def _lose_soon(self, error: Exception | None) -> None:
        self.network.loop.call_soon(self._end, error, context=self.context)

    def _end(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self.network.connections.pop(self, None)
            if self.protocol and not self.process.dead:
                self.protocol.connection_lost(error)


class _Socket:
    """What programs do with the socket of a connection."""

    def setsockopt(self, *_: object) -> None:
        """The kernel's options are always as the programs want them."""

    def fileno(self) -> int:
        """Returns no number: the kernel holds nothing."""
        return -1


def _address(client: Process) -> str:
    return f"10.0.{client.pid // 250 % 250}.{client.pid % 250 + 1}"
