"""A process that sends events to Kafka at a fixed rate, and takes the time until they are served over HTTP:
`python -m bench.prober`, told what to do by its standard input.

A probed event is asked for as soon as it was produced, and a millisecond after each answer that does not show it yet.
Its time is from the call of the producer, linger and acknowledgement included, to the whole answer that shows it.
Events are due at fixed times whatever happens to others.
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

from bench.sender import Connection, finely_timed, percentile

_AGAIN_SECONDS = 0.001
_PATIENCE_SECONDS = 20.0
_FLUSH_SECONDS = 5.0
_PRODUCER = {"partitioner": "murmur2_random", "acks": "all", "linger.ms": 1}


class Event(Struct, frozen=True):
    """`mark` is in the answer to `request` from this event on. Without a request it is not probed."""

    topic: str
    key: bytes
    value: bytes
    mark: bytes
    request: bytes | None


class Order(Struct):
    """What to do. `rate` is in events a second, `connections` is how many probes may be under way at once."""

    bootstrap_servers: str
    port: int
    rate: float
    connections: int
    events: Sequence[Event]


class Report(Struct):
    """What happened. Times in seconds; `late` is how far behind its own plan the producer was, p99."""

    events: int
    probes: int
    missing: int
    asked: int
    seconds: float
    p50: float
    p99: float
    p999: float
    worst: float
    late: float


class _Probe(Struct, order=True):
    """An event that is asked for, next `at`."""

    at: float
    produced: float
    mark: bytes
    request: bytes


class Prober:
    """Carries out an order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._producer = Producer({**_PRODUCER, "bootstrap.servers": order.bootstrap_servers})
        self._producer.list_topics(timeout=10)  # connected before the first event
        opened = [Connection(order.port) for _ in range(order.connections)]
        self._connections = {each.socket.fileno(): each for each in opened}
        self._idle = deque(opened)  # in turn: a server closes those that rest for long
        self._epoll = select.epoll()
        for number in self._connections:
            self._epoll.register(number, select.EPOLLIN)
        self._waiting: list[_Probe] = []
        self._asked: dict[int, _Probe] = {}
        self._times: list[float] = []
        self._late: list[float] = []
        self._requests = 0

    def run(self) -> Report:
        events, at = self._order.events, 0
        started = due = perf_counter()
        ended = started + len(events) / self._order.rate
        while (now := perf_counter()) < ended + _PATIENCE_SECONDS:
            while at < len(events) and due <= now:
                self._late.append(now - due)
                self._produce(events[at])
                at, due = at + 1, due + 1 / self._order.rate
            self._ask()
            if at == len(events) and not self._waiting and not self._asked:
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

    def _ask(self) -> None:
        """Those that are to be asked for by now, where a connection is free."""
        while self._waiting and self._idle and self._waiting[0].at <= perf_counter():
            probe, connection = heappop(self._waiting), self._idle.popleft()
            self._asked[connection.socket.fileno()] = probe
            connection.send(probe.request, probe.produced)
            self._requests += 1

    def _receive(self, until: float) -> None:
        """Wait for an answer, or until something is due."""
        if self._waiting and self._idle:
            until = min(until, self._waiting[0].at)
        # epoll alone counts in milliseconds; select on it in microseconds.
        select.select([self._epoll], [], [], max(0.0, until - perf_counter()))
        for number, _ in self._epoll.poll(0):
            answer = self._connections[number].receive()
            if answer is not None:
                self._idle.append(self._connections[number])
                self._judge(self._asked.pop(number), answer)

    def _judge(self, probe: _Probe, answer: bytes) -> None:
        now = perf_counter()
        if answer[9:12] == b"200" and probe.mark in answer:
            self._times.append(now - probe.produced)
        else:
            probe.at = now + _AGAIN_SECONDS
            heappush(self._waiting, probe)

    def _report(self, seconds: float) -> Report:
        times, late = sorted(self._times), sorted(self._late)
        missing = len(self._waiting) + len(self._asked)
        p50, p99, p999, worst = (percentile(times, share) for share in (0.5, 0.99, 0.999, 1.0))
        probes = len(times) + missing
        return Report(
            len(late), probes, missing, self._requests, seconds, p50, p99, p999, worst, percentile(late, 0.99)
        )


def main() -> None:
    finely_timed()
    report = Prober(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)).run()
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
