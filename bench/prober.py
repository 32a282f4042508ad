"""A process that sends events to Kafka at a fixed rate, and measures the time until they are served over HTTP:
`python -m bench.prober`, which reads its order from standard input.

The document of a probed event is requested as soon as the event was produced, and again, usually a millisecond after
each response that does not show it yet. The time of an event starts at the call of the producer, so it includes linger
and acknowledgement; it ends with the whole response that shows it. Events are due at fixed times, even if others are
late.
"""

import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from time import perf_counter

import msgspec
from confluent_kafka import Producer
from msgspec import Struct

from bench.sender import Connection, Pool, Report, report, use_fine_timers

_RETRY_SECONDS = 0.001
_CONNECTIONS = 32
_TIMEOUT_SECONDS = 120.0
_FLUSH_SECONDS = 5.0
_PRODUCER = {"acks": "all", "linger.ms": 1}


class Event(Struct, frozen=True):
    """From this event on, the response to `request` contains `mark`. An event without a request is not probed."""

    topic: str
    key: bytes
    value: bytes
    mark: bytes
    request: bytes | None


class Order(Struct):
    """What to do. `rate` is in events a second."""

    bootstrap_servers: str
    port: int
    rate: float
    events: Sequence[Event]


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
        self._pool = Pool(order.port, _CONNECTIONS)
        self._waiting: list[_Probe] = []
        self._in_flight: dict[Connection, _Probe] = {}
        self._times: list[float] = []
        self._late: list[float] = []

    def run(self) -> Report:
        """Returns the times until the events were visible. `failed` counts those that never were."""
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
        missing = len(self._waiting) + len(self._in_flight)
        probes = len(self._times) + missing
        return report(self._times, self._late, probes, missing, "an event was never served", seconds)

    def _produce(self, event: Event) -> None:
        produced = perf_counter()
        self._producer.produce(event.topic, event.value, event.key)
        self._producer.poll(0)
        if event.request is not None:
            heappush(self._waiting, _Probe(produced, produced, event.mark, event.request))

    def _send_due(self) -> None:
        """Send the requests that are due, as long as there are idle connections."""
        while self._waiting and self._pool.idle and self._waiting[0].at <= perf_counter():
            probe, connection = heappop(self._waiting), self._pool.idle.popleft()
            self._in_flight[connection] = probe
            connection.send(probe.request, probe.produced)

    def _receive(self, until: float) -> None:
        """Receive responses. Waits for the first one at most until something is due."""
        if self._waiting and self._pool.idle:
            until = min(until, self._waiting[0].at)
        for connection, response in self._pool.receive(until):
            probe, now = self._in_flight.pop(connection), perf_counter()
            if probe.mark in response:
                self._times.append(now - probe.produced)
            else:
                probe.at = now + _RETRY_SECONDS
                heappush(self._waiting, probe)


def main() -> None:
    use_fine_timers()
    found = Prober(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)).run()
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
