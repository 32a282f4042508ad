"""A process that sends requests and takes the time: `python -m bench.sender`, told what to do by its standard input.

Closed loop (no rate): every connection asks again as soon as it has its answer. Open loop (a rate): requests are due
at fixed times whatever the server does, and a latency is counted from when its request was due, also where it had to
wait for a free connection: a server that stalls for a second is charged with all who would have come in that second
("coordinated omission" would leave them out). Requests that are still waiting at the end count as long as they
waited.

Bare sockets and epoll, no event loop: that takes a third of the time of asyncio, and the load must not be what is
measured.
"""

import re
import select
import signal
import socket
import sys
from collections import deque
from math import inf
from pathlib import Path
from time import perf_counter

import msgspec
from msgspec import Struct

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_TIMER_SLACK = Path("/proc/self/timerslack_ns")
_PATIENCE_SECONDS = 1.0


class Order(Struct):
    """What to do. `requests` are whole HTTP requests that are sent in turn. `rate` is in requests a second. With
    `announce`, an empty line says that it begins; from then on SIGTERM ends it (open loop)."""

    port: int
    connections: int
    seconds: float
    requests: list[bytes]
    rate: float | None = None
    announce: bool = False


class Report(Struct):
    """What happened. Latencies in seconds; `late` is how far behind its own plan the sender was (open loop)."""

    answered: int
    failed: int
    seconds: float
    p50: float
    p99: float
    p999: float
    late: float = 0.0
    worst: float = 0.0
    failure: str = ""
    """The first line of the first answer that was not 200."""


class Connection:
    """One connection, and the request that is under way on it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = 0.0
        self._received = b""
        self._wanted = 0

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """The whole answer, or None while a part of it is missing. Raises ConnectionError."""
        received = self.socket.recv(262_144)
        if not received:
            raise ConnectionError("the server closed a connection")
        received = self._received = self._received + received
        if not self._wanted:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return None
            length = _LENGTH.search(received, 0, head)
            self._wanted = head + 4 + (int(length[1]) if length else 0)
        if len(received) < self._wanted:
            return None
        self._received, self._wanted = b"", 0
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
        end = started + self._order.seconds
        for connection in self._connections.values():
            connection.send(self._request(), now)
        while now < end:
            ready = self._epoll.poll(_PATIENCE_SECONDS)
            for number, _ in ready:
                connection = self._connections[number]
                if self._took(connection):
                    connection.send(self._request(), perf_counter())
            now = perf_counter()
        return self._report(now - started)

    def open(self, rate: float) -> Report:
        idle = deque(self._connections.values())  # in turn: a server closes those that rest for long
        waiting: deque[float] = deque()
        late: list[float] = []
        started = due = perf_counter()
        self._end = min(self._end, started + self._order.seconds)
        while (now := perf_counter()) < self._end + _PATIENCE_SECONDS:
            while due <= now and due < self._end:
                waiting.append(due)
                late.append(now - due)
                due += 1 / rate
            while waiting and idle:
                idle.popleft().send(self._request(), waiting.popleft())
            if due >= self._end and not waiting and len(idle) == len(self._connections):
                break
            # epoll alone counts in milliseconds; select on it in microseconds.
            select.select([self._epoll], [], [], self._pause(due))
            for number, _ in self._epoll.poll(0):
                connection = self._connections[number]
                if self._took(connection):
                    idle.append(connection)
        answered = len(self._latencies)
        busy = [each.due for each in self._connections.values() if each not in idle]
        self._latencies += [now - each for each in (*waiting, *busy)]
        return self._report(now - started, answered, percentile(sorted(late), 0.99))

    def end(self) -> None:
        """No request is due any more (open loop)."""
        self._end = perf_counter()

    def _pause(self, due: float) -> float:
        return max(0.0, due - perf_counter()) if due < self._end else _PATIENCE_SECONDS

    def _open(self) -> list[Connection]:
        return [Connection(self._order.port) for _ in range(self._order.connections)]

    def _request(self) -> bytes:
        requests = self._order.requests
        self._next = (self._next + 1) % len(requests)
        return requests[self._next]

    def _took(self, connection: Connection) -> bool:
        """Is its answer complete?"""
        answer = connection.receive()
        if answer is None:
            return False
        self._latencies.append(perf_counter() - connection.due)
        if answer[9:12] != b"200":
            self._failed += 1
            self._failure = self._failure or answer.split(b"\r\n", 1)[0].decode(errors="replace")
        return True

    def _report(self, seconds: float, answered: int | None = None, late: float = 0.0) -> Report:
        ordered = sorted(self._latencies)
        p50, p99, p999, worst = (percentile(ordered, share) for share in (0.5, 0.99, 0.999, 1.0))
        count = len(ordered) if answered is None else answered
        return Report(count, self._failed, seconds, p50, p99, p999, late, worst, self._failure)


def percentile(ordered: list[float], share: float) -> float:
    """Of numbers in order; 0 where there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def finely_timed() -> None:
    """Let this process wake up when it wants to: else the kernel wakes it up to 50 µs late."""
    if _TIMER_SLACK.exists():
        _TIMER_SLACK.write_text("1")


def main() -> None:
    finely_timed()
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    sender = Sender(order)
    signal.signal(signal.SIGTERM, lambda *_: sender.end())
    if order.announce:
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
    report = sender.closed() if order.rate is None else sender.open(order.rate)
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
