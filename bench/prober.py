"""A process that sends events to Kafka at a fixed rate, and measures the time until they are served over HTTP:
`python -m bench.prober`, which reads its order from standard input.

The document of a probed event is requested as soon as the event was produced, and again, usually a millisecond after
each response that does not show it yet. The time of an event starts at the call of the producer, so it includes linger
and acknowledgement; it ends with the whole response that shows it. Events are due at fixed times, even if others are
late.
"""

import select
import sys
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from time import perf_counter

import msgspec
from confluent_kafka import Producer
from msgspec import Struct

from bench.sender import Connection, percentile, use_fine_timers

RETRY_SECONDS = 0.001
_TIMEOUT_SECONDS = 120.0
_FLUSH_SECONDS = 5.0
_PRODUCER = {"partitioner": "murmur2_random", "acks": "all", "linger.ms": 1}


class Event(Struct, frozen=True):
    """From this event on, the response to `request` contains `mark`. An event without a request is not probed."""

    topic: str
    key: bytes
    value: bytes
    mark: bytes
    request: bytes | None


class Order(Struct):
    """What to do. `rate` is in events a second. `connections` is the most requests that may be in flight at once.

    A document is requested again `retry_seconds` after each response that does not show its event.
    """

    bootstrap_servers: str
    port: int
    rate: float
    connections: int
    events: Sequence[Event]
    retry_seconds: float


class Report(Struct):
    """What was measured. Times are in seconds. `late` is the p99 of the producer's own delay behind its schedule."""

    events: int
    probes: int
    missing: int
    requests: int
    seconds: float
    p50: float
    p99: float
    p999: float
    worst: float
    late: float


class _Probe(Struct, order=True):
    """An event whose document is requested until it shows the event: next at the time `at`."""

    at: float
    produced: float
    mark: bytes
    request: bytes


class Prober:
    """Carries out an order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._producer = Producer({**_PRODUCER, "bootstrap.servers": order.bootstrap_servers})
        self._producer.list_topics(timeout=10)  # so that it is connected before the first event
        opened = [Connection(order.port) for _ in range(order.connections)]
        self._connections = {each.socket.fileno(): each for each in opened}
        self._idle = deque(opened)  # used in turn, because a server closes idle connections
        self._epoll = select.epoll()
        for number in self._connections:
            self._epoll.register(number, select.EPOLLIN)
        self._waiting: list[_Probe] = []
        self._in_flight: dict[int, _Probe] = {}
        self._times: list[float] = []
        self._late: list[float] = []
        self._requests = 0

    def run(self) -> Report:
        events, at = self._order.events, 0
        started = due = perf_counter()
        ended = started + len(events) / self._order.rate
        while (now := perf_counter()) < ended + _TIMEOUT_SECONDS:
            while at < len(events) and due <= now:
                self._late.append(now - due)
                self._produce(events[at])
                at, due = at + 1, due + 1 / self._order.rate
            self._send_due()
            if at == len(events) and not self._waiting and not self._in_flight:
                break
            self._receive(due if at < len(events) else now + 1.0)
        seconds = perf_counter() - started
        self._producer.flush(_FLUSH_SECONDS)
        return self._report(seconds)

    def _produce(self, event: Event) -> None:
        produced = perf_counter()
        self._producer.produce(event.topic, event.value, event.key)
        self._producer.poll(0)
        if event.request is not None:
            heappush(self._waiting, _Probe(produced, produced, event.mark, event.request))

    def _send_due(self) -> None:
        """Send the requests that are due, as long as there are idle connections."""
        while self._waiting and self._idle and self._waiting[0].at <= perf_counter():
            probe, connection = heappop(self._waiting), self._idle.popleft()
            self._in_flight[connection.socket.fileno()] = probe
            connection.send(probe.request, probe.produced)
            self._requests += 1

    def _receive(self, until: float) -> None:
        """Receive responses. Waits for the first one at most until something is due."""
        if self._waiting and self._idle:
            until = min(until, self._waiting[0].at)
        # A timeout of epoll itself is in milliseconds; that of select() is in microseconds.
        select.select([self._epoll], [], [], max(0.0, until - perf_counter()))
        for number, _ in self._epoll.poll(0):
            response = self._connections[number].receive()
            if response is not None:
                self._idle.append(self._connections[number])
                self._evaluate(self._in_flight.pop(number), response)

    def _evaluate(self, probe: _Probe, response: bytes) -> None:
        now = perf_counter()
        if probe.mark in response:
            self._times.append(now - probe.produced)
        else:
            probe.at = now + self._order.retry_seconds
            heappush(self._waiting, probe)

    def _report(self, seconds: float) -> Report:
        times, late = sorted(self._times), sorted(self._late)
        missing = len(self._waiting) + len(self._in_flight)
        p50, p99, p999, worst = (percentile(times, share) for share in (0.5, 0.99, 0.999, 1.0))
        probes = len(times) + missing
        return Report(
            len(late), probes, missing, self._requests, seconds, p50, p99, p999, worst, percentile(late, 0.99)
        )


def main() -> None:
    use_fine_timers()
    report = Prober(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)).run()
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
