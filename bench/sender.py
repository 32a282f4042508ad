"""A process that sends requests and measures latency, or sends events and measures the time until they are served over
HTTP: `python -m bench.sender`, with its order on standard input.

Closed loop (without a rate): each connection sends its next request as soon as it has its response. Open loop (with a
rate): requests are due at fixed times, however fast the server is. A latency counts from the time at which its request
was due, even if no connection was free then. So a server that stalls for a second is charged with all requests that
would have arrived in that second; leaving them out is known as coordinated omission. Requests that still wait at the
end count with the time that they have waited.

It uses plain sockets and epoll instead of an event loop: that takes a third of asyncio's CPU time, and the load must
not be what is measured.
"""

import re
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import cycle
from math import inf
from pathlib import Path
from time import perf_counter

import msgspec
from confluent_kafka import Producer
from msgspec import Struct

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_TIMER_SLACK = Path("/proc/self/timerslack_ns")
_DRAIN_SECONDS = 1.0
_RETRY_SECONDS = 0.001
_PROBE_CONNECTIONS = 32
_MOST_WAITING = 128
_AHEAD_SECONDS = 0.5
"""How long before its event a request begins to wait for it."""
_ETAG = re.compile(rb"(?i)\r\netag: *([^\r]+)")
_PROBED_SECONDS = 120.0
_FLUSH_SECONDS = 5.0
_PRODUCER = {"acks": "all", "linger.ms": 1, "partitioner": "murmur2_random"}
_PAUSE_SECONDS = 0.1
_COARSE_SECONDS = 0.005


class Order(Struct, tag=True):
    """Send these requests, which are whole HTTP requests, in turn. `rate` is in requests a second.

    The process prints an empty line when it begins; from then on SIGTERM ends it.
    """

    port: int
    connections: int
    seconds: float
    requests: list[bytes]
    rate: float | None = None


class Event(Struct, frozen=True):
    """From this event on, the response to `request` contains `mark`. An event without a request is not probed."""

    topic: str
    key: bytes
    value: bytes
    mark: bytes
    request: bytes | None


class ProbeOrder(Struct, tag=True):
    """Send these events to Kafka, `rate` a second. Request the documents of those with a request until they show it.
    With `waits`, another request for each of them also waits for it (`Prefer: wait`).
    """

    bootstrap_servers: str
    port: int
    rate: float
    events: Sequence[Event]
    waits: bool = False


class Report(Struct):
    """What was measured. Latencies are in seconds. `late` is the p99 of the sender's own delay behind its schedule.
    `failed` counts those of the `answered` ones that were not right."""

    answered: int
    failed: int
    seconds: float
    p50: float
    p99: float
    p999: float
    late: float = 0.0
    worst: float = 0.0
    failure: str = ""
    """What was not right, such as the first line of the first response that was not 200."""
    waited_p50: float = 0.0
    waited_p99: float = 0.0
    """Of the requests that wait for their event."""


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


class Pool:
    """Connections to a server. `idle` are those without a request in flight. They are used in turn, because a server
    closes idle connections.
    """

    def __init__(self, port: int, count: int) -> None:
        self.idle = deque(Connection(port) for _ in range(count))
        self.connections = {each.socket.fileno(): each for each in self.idle}
        self._epoll = select.epoll()
        for number in self.connections:
            self._epoll.register(number, select.EPOLLIN)

    def receive(self, until: float) -> Iterator[tuple[Connection, bytes]]:
        """Yields each whole response, and its connection, which is idle again. Waits for the first one until this time
        at most. Raises ConnectionError."""
        pause = until - perf_counter() - _COARSE_SECONDS
        if pause < 0:  # a timeout of epoll itself is in milliseconds; that of select() is in microseconds
            select.select([self._epoll], [], [], max(0.0, pause + _COARSE_SECONDS))
        for number, _ in self._epoll.poll(max(0.0, pause)):
            connection = self.connections[number]
            response = connection.receive()
            if response is not None:
                self.idle.append(connection)
                yield connection, response


class Sender:
    """Carries out an order to send requests."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._requests = cycle(order.requests)
        self._pool = Pool(order.port, order.connections)
        self._waiting: deque[float] = deque()
        """The times at which the requests were due that no connection was free for."""
        self._late: list[float] = []
        self._latencies: list[float] = []
        self._failed = 0
        self._failure = ""
        self._end = inf

    def run(self) -> Report:
        pool = self._pool
        started = due = now = perf_counter()
        self._end = min(self._end, started + self._order.seconds)
        while now < self._end + _DRAIN_SECONDS:
            due = self._schedule(due, now)
            while self._waiting and pool.idle:
                pool.idle.popleft().send(next(self._requests), self._waiting.popleft())
            if now >= self._end and not self._waiting and len(pool.idle) == len(pool.connections):
                break
            for connection, response in pool.receive(due if now < due < self._end else now + _PAUSE_SECONDS):
                self._note(perf_counter() - connection.due, response)
            now = perf_counter()
        answered = len(self._latencies)
        busy = [each.due for each in pool.connections.values() if each not in pool.idle]
        self._latencies += [now - each for each in (*self._waiting, *busy)]
        return _report(self._latencies, self._late, answered, self._failed, self._failure, now - started)

    def end(self) -> None:
        """Stop: from now on no request is due."""
        self._end = perf_counter()

    def _schedule(self, due: float, now: float) -> float:
        """Let all requests wait that are due by now. Returns when the next one is due."""
        if self._order.rate is None:
            if now < self._end:
                self._waiting.extend([now] * len(self._pool.idle))
            return now
        while due <= now and due < self._end:
            self._waiting.append(due)
            self._late.append(now - due)
            due += 1 / self._order.rate
        return due

    def _note(self, seconds: float, response: bytes) -> None:
        self._latencies.append(seconds)
        if response[9:12] != b"200":
            self._failed += 1
            self._failure = self._failure or response.split(b"\r\n", 1)[0].decode(errors="replace")


class _Probe(Struct, order=True):
    """An event whose document is requested until it shows the event: next at the time `at`.

    A probe that waits asks for the ETag of the document first, before its event is produced.
    """

    at: float
    produced: float
    mark: bytes
    request: bytes
    waits: bool = False
    etag: bytes = b""

    def next_request(self) -> bytes:
        if not self.etag:
            return self.request
        return b"%bIf-None-Match: %b\r\nPrefer: wait=30\r\n\r\n" % (self.request.removesuffix(b"\r\n"), self.etag)


class Prober:
    """Carries out an order to probe events.

    The document of a probed event is requested as soon as the event was produced, and again, usually a millisecond
    after each response that does not show it yet. The time of an event starts at the call of the producer, so it
    includes linger and acknowledgement; it ends with the whole response that shows it. Events are due at fixed times,
    even if others are late.
    """

    def __init__(self, order: ProbeOrder) -> None:
        self._order = order
        self._producer = Producer({**_PRODUCER, "bootstrap.servers": order.bootstrap_servers})
        self._producer.list_topics(timeout=10)  # so that it is connected before the first event
        self._pool = Pool(order.port, _PROBE_CONNECTIONS + (_MOST_WAITING if order.waits else 0))
        self._due: list[_Probe] = []
        self._in_flight: dict[Connection, _Probe] = {}
        self._ahead: dict[int, _Probe] = {}
        """Those that wait, by the number of their event, until it is produced."""
        self._waiting = 0
        self._times: list[float] = []
        self._waited: list[float] = []
        self._late: list[float] = []

    def run(self) -> Report:
        """Returns the times until the events were visible. `failed` counts those that never were."""
        events, at, begun = self._order.events, 0, 0
        started = perf_counter()
        due = started + _AHEAD_SECONDS
        ended = due + len(events) / self._order.rate
        while (now := perf_counter()) < ended + _PROBED_SECONDS:
            while at < len(events) and due <= now:
                self._late.append(now - due)
                self._produce(events[at], self._ahead.pop(at, None))
                at, due = at + 1, due + 1 / self._order.rate
            while self._order.waits and begun < min(len(events), at + 1 + int(_AHEAD_SECONDS * self._order.rate)):
                self._begin_to_wait(begun, events[begun])
                begun += 1
            self._send_due()
            if at == len(events) and not self._due and not self._in_flight:
                break
            self._receive(due if at < len(events) else now + 1.0)
        seconds = perf_counter() - started
        self._producer.flush(_FLUSH_SECONDS)
        missing = len(self._due) + len(self._in_flight)
        report = _report(
            self._times, self._late, len(self._times) + missing, missing, "an event was never served", seconds
        )
        self._waited.sort()
        report.waited_p50, report.waited_p99 = (_percentile(self._waited, share) for share in (0.5, 0.99))
        return report

    def _begin_to_wait(self, number: int, event: Event) -> None:
        if event.request is not None and self._waiting < _MOST_WAITING:
            self._waiting += 1
            self._ahead[number] = _Probe(perf_counter(), inf, event.mark, event.request, waits=True)
            heappush(self._due, self._ahead[number])

    def _produce(self, event: Event, waiting: _Probe | None) -> None:
        produced = perf_counter()
        self._producer.produce(event.topic, event.value, event.key)
        self._producer.poll(0)
        if waiting is not None:
            waiting.produced = produced
        if event.request is not None:
            heappush(self._due, _Probe(produced, produced, event.mark, event.request))

    def _send_due(self) -> None:
        """Send the requests that are due, as long as there are idle connections."""
        while self._due and self._pool.idle and self._due[0].at <= perf_counter():
            probe, connection = heappop(self._due), self._pool.idle.popleft()
            self._in_flight[connection] = probe
            connection.send(probe.next_request(), probe.produced)

    def _receive(self, until: float) -> None:
        """Receive responses. Waits for the first one at most until something is due."""
        if self._due and self._pool.idle:
            until = min(until, self._due[0].at)
        for connection, response in self._pool.receive(until):
            probe, now = self._in_flight.pop(connection), perf_counter()
            if probe.mark in response:
                (self._waited if probe.waits else self._times).append(now - probe.produced)
                self._waiting -= probe.waits
                continue
            if probe.waits and (etag := _ETAG.search(response)):
                probe.etag, probe.at = etag[1], now
            else:
                probe.at = now + _RETRY_SECONDS
            heappush(self._due, probe)


def _report(
    latencies: list[float], late: list[float], answered: int, failed: int, failure: str, seconds: float
) -> Report:
    """Returns the report of these latencies and of these delays of the sender."""
    latencies.sort()
    late.sort()
    p50, p99, p999, worst = (_percentile(latencies, share) for share in (0.5, 0.99, 0.999, 1.0))
    return Report(answered, failed, seconds, p50, p99, p999, _percentile(late, 0.99), worst, failure)


def _percentile(ordered: list[float], share: float) -> float:
    """The percentile of sorted numbers; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _use_fine_timers() -> None:
    """Let this process wake up at the exact time: by default the kernel may wake it up to 50 µs late."""
    if _TIMER_SLACK.exists():
        _TIMER_SLACK.write_text("1")


def main() -> None:
    _use_fine_timers()
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order | ProbeOrder)
    found = Prober(order).run() if isinstance(order, ProbeOrder) else _send(order)
    sys.stdout.buffer.write(msgspec.json.encode(found))


def _send(order: Order) -> Report:
    sender = Sender(order)
    signal.signal(signal.SIGTERM, lambda *_: sender.end())
    print(flush=True)
    return sender.run()


if __name__ == "__main__":
    main()
