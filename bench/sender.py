"""A process that sends requests and measures latency: `python -m bench.sender`, with its order on standard input.

Closed loop (without a rate): each connection sends its next request as soon as it has its response. Open loop (with a
rate): requests are due at fixed times, however fast the server is. A latency counts from the time at which its request
was due, even if no connection was free then. So a server that stalls for a second is charged with all requests that
would have arrived in that second; leaving them out is known as coordinated omission. Requests that still wait at the
end count with the time that they have waited.

It uses plain sockets and epoll instead of an event loop: that takes a third of asyncio's CPU time, and the load must
not be what is measured.
"""

import os
import re
import select
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from math import inf
from pathlib import Path
from time import perf_counter

import msgspec
from msgspec import Struct

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_TIMER_SLACK = Path("/proc/self/timerslack_ns")
_DRAIN_SECONDS = 1.0


class Order(Struct):
    """What to do. `requests` are whole HTTP requests, which are sent in turn. `rate` is in requests a second.

    With `announce`, the process prints an empty line when it begins; from then on SIGTERM ends it. With `idle`, it runs
    only while no other process needs its core. With `first`, it runs whenever it wants to, if it is allowed to (root
    is): what it would wait for its core is not what it measures.
    """

    port: int
    connections: int
    seconds: float
    requests: list[bytes]
    rate: float | None = None
    announce: bool = False
    idle: bool = False
    first: bool = False


class Report(Struct):
    """What was measured. Latencies are in seconds. `late` is the p99 of the sender's own delay behind its schedule."""

    answered: int
    failed: int
    seconds: float
    p50: float
    p99: float
    p999: float
    late: float = 0.0
    worst: float = 0.0
    failure: str = ""
    """The first line of the first response that was not 200."""


class Connection:
    """One connection, and the request that is in flight on it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = 0.0
        self._received = b""
        self._expected = 0

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """Returns the whole response, or None while a part of it is missing. Raises ConnectionError."""
        received = self.socket.recv(262_144)
        if not received:
            raise ConnectionError("the server closed a connection")
        received = self._received = self._received + received
        if not self._expected:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return None
            length = _LENGTH.search(received, 0, head)
            self._expected = head + 4 + (int(length[1]) if length else 0)
        if len(received) < self._expected:
            return None
        self._received, self._expected = b"", 0
        return received


class Sender:
    """Carries out an order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._next = 0
        self._connections = {each.socket.fileno(): each for each in self._open()}
        self._epoll = select.epoll()
        for number in self._connections:
            self._epoll.register(number, select.EPOLLIN)
        self._latencies: list[float] = []
        self._failed = 0
        self._failure = ""
        self._end = inf

    def closed(self) -> Report:
        started = now = perf_counter()
        self._end = min(self._end, started + self._order.seconds)
        for connection in self._connections.values():
            connection.send(self._request(), now)
        while now < self._end:
            ready = self._epoll.poll(_DRAIN_SECONDS)
            for number, _ in ready:
                connection = self._connections[number]
                if self._receive(connection):
                    connection.send(self._request(), perf_counter())
            now = perf_counter()
        return self._report(now - started)

    def open(self, rate: float) -> Report:
        idle = deque(self._connections.values())  # used in turn, because a server closes idle connections
        waiting: deque[float] = deque()
        late: list[float] = []
        started = due = perf_counter()
        self._end = min(self._end, started + self._order.seconds)
        while (now := perf_counter()) < self._end + _DRAIN_SECONDS:
            while due <= now and due < self._end:
                waiting.append(due)
                late.append(now - due)
                due += 1 / rate
            while waiting and idle:
                idle.popleft().send(self._request(), waiting.popleft())
            if due >= self._end and not waiting and len(idle) == len(self._connections):
                break
            # A timeout of epoll itself is in milliseconds; that of select() is in microseconds.
            select.select([self._epoll], [], [], self._pause(due))
            for number, _ in self._epoll.poll(0):
                connection = self._connections[number]
                if self._receive(connection):
                    idle.append(connection)
        answered = len(self._latencies)
        busy = [each.due for each in self._connections.values() if each not in idle]
        self._latencies += [now - each for each in (*waiting, *busy)]
        return self._report(now - started, answered, percentile(sorted(late), 0.99))

    def end(self) -> None:
        """Stop: from now on no request is due."""
        self._end = perf_counter()

    def _pause(self, due: float) -> float:
        return max(0.0, due - perf_counter()) if due < self._end else _DRAIN_SECONDS

    def _open(self) -> list[Connection]:
        return [Connection(self._order.port) for _ in range(self._order.connections)]

    def _request(self) -> bytes:
        requests = self._order.requests
        self._next = (self._next + 1) % len(requests)
        return requests[self._next]

    def _receive(self, connection: Connection) -> bool:
        """Receive a part of a response. Returns whether it is complete now."""
        response = connection.receive()
        if response is None:
            return False
        self._latencies.append(perf_counter() - connection.due)
        if response[9:12] != b"200":
            self._failed += 1
            self._failure = self._failure or response.split(b"\r\n", 1)[0].decode(errors="replace")
        return True

    def _report(self, seconds: float, answered: int | None = None, late: float = 0.0) -> Report:
        ordered = sorted(self._latencies)
        p50, p99, p999, worst = (percentile(ordered, share) for share in (0.5, 0.99, 0.999, 1.0))
        count = len(ordered) if answered is None else answered
        return Report(count, self._failed, seconds, p50, p99, p999, late, worst, self._failure)


def percentile(ordered: list[float], share: float) -> float:
    """The percentile of sorted numbers; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def use_fine_timers() -> None:
    """Let this process wake up at the exact time: by default the kernel may wake it up to 50 µs late."""
    if _TIMER_SLACK.exists():
        _TIMER_SLACK.write_text("1")


def main() -> None:
    use_fine_timers()
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    if order.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if order.first:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    sender = Sender(order)
    signal.signal(signal.SIGTERM, lambda *_: sender.end())
    if order.announce:
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
    report = sender.closed() if order.rate is None else sender.open(order.rate)
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
