"""Shards, projectors and API workers, as queues whose work takes as long as was measured.

    records ──► projector ──(slices of 200, three at once, a pipeline for each shard)──► shards
                    └──────(after each batch: a checkpoint in every shard, then in the home copy)──► shards
    requests ──► API worker ──► the organization's shard ──► the same worker

A shard does one thing at a time, and so does a projector and a worker. Records and requests of an organization go to
one shard. Kafka, the network's bandwidth and the operating system are not modelled.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from random import Random

from msgspec import Struct

from bench.simulation.engine import Gate, Process, Server, Simulation
from projector.line.line import FIRST_PAUSE, LONGEST_PAUSE
from projector.line.pace import FULL, YIELDING_ON_CLUSTER, Pace

BATCH = 5000
"""The default of `LEADVIEW_BATCH_RECORDS`."""
_SENDING = 0.75
"""Share of a process's work that is done before Redis is asked. The rest follows the reply."""
_SAMPLES = 300
_TICK = 0.001
_CONTACTS = 0.2
"""Share of records that need a second call: the leads of a contact get its summary."""


def pipelines(records: int, shards: int) -> float:
    """The number of pipelines that a slice of this number of records needs on average, in both calls."""
    hit = [shards * (1 - (1 - 1 / shards) ** count) for count in (records, round(records * _CONTACTS))]
    return sum(hit)


class Costs(Struct, frozen=True):
    """CPU time in seconds. A pipeline is what a process sends to one shard at once."""

    projector_record: float
    projector_pipeline: float
    projector_checkpoint: float
    """For each shard."""
    redis_record: float
    redis_pipeline: float
    redis_checkpoint: float
    """In each shard."""
    projector_second: float
    redis_second: float
    """What a record costs in addition if it is written in a second generation."""
    api_request: float
    redis_request: float


class Installation(Struct, frozen=True, kw_only=True):
    """What is simulated. `weights` are the shares of records and requests that each shard gets.

    `events` and `requests` are per second. With infinitely many events, the projectors always have a full batch. With
    `connections`, each of them sends its next request as soon as it has its response. Without workers, the requests
    are only a load on the shards. `round_trip` is in seconds.
    """

    costs: Costs
    weights: Sequence[float]
    projectors: int = 0
    events: float = 0.0
    workers: int = 0
    requests: float = 0.0
    connections: int = 0
    rebuilders: int = 0
    rebuild_overhead: float = 0.0
    """Seconds of each of their slices that are no work of the modelled processes."""
    round_trip: float = 0.0
    lost: tuple[float, float] | None = None
    """The first shard does not answer from this second to that one."""


class Measured(Struct):
    """What happened between two points in time."""

    seconds: float
    records: float
    rebuilt: float
    requests: float
    shard_use: list[float]
    projector_use: float
    worker_use: float
    freshness: list[float]
    """In seconds, sorted: from the record's arrival in Kafka to its write in Redis, for a sample of them."""
    reads: list[float]
    """Response times in seconds, sorted."""
    checkpoints: float

    @property
    def busiest(self) -> float:
        return max(self.shard_use)


class Run:
    """One installation in simulated time. The same seed gives the same results."""

    def __init__(self, installation: Installation, seed: int = 1) -> None:
        self._of = installation
        self._random = Random(seed)  # noqa: S311 - it must be repeatable
        self._clock = Simulation()
        self._shards = [Server() for _ in installation.weights]
        self._cumulative = list(accumulate(installation.weights))
        self._projectors = [Server() for _ in range(installation.projectors)]
        self._workers = [Server() for _ in range(installation.workers)]
        self._samples: dict[int, list[Mapping[Server, int]]] = {}
        self._lag = [0.0] * installation.projectors
        self._counts = Counter[str]()
        self._freshness: list[float] = []
        self._reads: list[float] = []
        for number, cpu in enumerate(self._projectors):
            self._clock.start(self._line(number, cpu))
        for _ in range(installation.rebuilders):
            self._clock.start(self._replay(Server()))
        if installation.requests and not installation.workers:
            each = installation.requests * installation.costs.redis_request * _TICK / sum(installation.weights)
            self._clock.start(self._read_steadily([each * weight for weight in installation.weights]))
        for number, worker in enumerate(self._workers):
            for _ in range(-(-installation.connections // installation.workers) if installation.connections else 1):
                self._clock.at(number * 1e-6, self._connect, worker)
        self._mark = self._totals()

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._clock.now

    @property
    def lag(self) -> float:
        """Seconds between now and the arrival of the oldest record that is not covered by a checkpoint."""
        return max(self._clock.now - covered for covered in self._lag)

    def until(self, time: float) -> Measured:
        """Let time pass. Returns what happened since the last call."""
        self._clock.run(time)
        before, self._mark = self._mark, self._totals()
        now = self._mark
        seconds = now[0] - before[0]
        counts = now[4] - before[4]
        measured = Measured(
            seconds,
            counts["records"] / seconds,
            counts["rebuilt"] / seconds,
            counts["requests"] / seconds,
            [(after - ago) / seconds for ago, after in zip(before[1], now[1], strict=True)],
            (now[2] - before[2]) / seconds / max(1, self._of.projectors),
            (now[3] - before[3]) / seconds / max(1, self._of.workers),
            sorted(self._freshness),
            sorted(self._reads),
            counts["checkpoints"] / seconds / max(1, self._of.projectors),
        )
        self._freshness.clear()
        self._reads.clear()
        return measured

    def _totals(self) -> tuple[float, list[float], float, float, Counter[str]]:
        def done(server: Server) -> float:
            return server.busy - max(0.0, server.free_at - self._clock.now)

        return (
            self._clock.now,
            [done(shard) for shard in self._shards],
            sum(map(done, self._projectors)),
            sum(map(done, self._workers)),
            self._counts.copy(),
        )

    # Projectors

    def _line(self, number: int, cpu: Server) -> Process:
        """A live line: batch after batch, each again until every shard has answered."""
        of, clock = self._of, self._clock
        rate = of.events / of.projectors
        taken, pause = 0.0, FIRST_PAUSE
        while True:
            available = inf if rate == inf else clock.now * rate - taken
            if available < 1:
                yield (taken + 1 + self._random.random()) / rate
                continue
            size, began, done = int(min(available, BATCH)), clock.now, Gate()
            if not self._is_lost(began, began):
                clock.start(self._batch(cpu, size, FULL, done, (taken, rate)))
                yield done
            if self._is_lost(began, clock.now):
                yield clock.now + pause
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            taken += size
            self._lag[number] = taken / rate

    def _replay(self, cpu: Server) -> Process:
        """A process of a rebuild, which yields to readers."""
        while True:
            done = Gate()
            self._clock.start(self._batch(cpu, BATCH, YIELDING_ON_CLUSTER, done, None))
            yield done

    def _batch(self, cpu: Server, size: int, pace: Pace, done: Gate, arrivals: tuple[float, float] | None) -> Process:
        """Write a batch in slices, then store the positions. A replay has no `arrivals`: the offset and the rate."""
        in_flight: list[Gate] = []
        for start in range(0, size, pace.slice_records):
            if len(in_flight) == pace.slices_in_flight:
                yield in_flight.pop(0)
            written = Gate()
            records = min(pace.slice_records, size - start)
            one = start + self._random.random() * records
            arrived = (arrivals[0] + one) / arrivals[1] if arrivals else None
            self._clock.start(self._slice(cpu, records, written, arrived))
            in_flight.append(written)
        yield from in_flight
        costs = self._of.costs
        others, home = self._shards[1:], self._shards[:1]
        for shards in (others, home) if others else (home,):
            yield cpu.serve(self._clock.now, costs.projector_checkpoint * len(shards))
            yield self._ask([(shard, costs.redis_checkpoint) for shard in shards])
        self._counts["checkpoints"] += 1
        self._clock.open(done)

    def _slice(self, cpu: Server, records: int, written: Gate, arrived: float | None) -> Process:
        """Decode a slice and write it; then write the leads of changed contacts."""
        costs = self._of.costs
        for_projector, for_redis = costs.projector_record, costs.redis_record
        if arrived is None:
            yield self._clock.now + self._of.rebuild_overhead
        elif self._of.rebuilders:
            for_projector, for_redis = for_projector + costs.projector_second, for_redis + costs.redis_second
        for count, share in ((records, 1.0), (round(records * _CONTACTS), 0.0)):
            if not count:
                continue
            chosen = self._spread(count)
            work = share * count * for_projector + len(chosen) * costs.projector_pipeline
            yield cpu.serve(self._clock.now, _SENDING * work)
            replied = self._ask([(shard, share * n * for_redis + costs.redis_pipeline) for shard, n in chosen.items()])
            if arrived is not None and share:
                self._freshness.append(self._random.choice(list(chosen)).free_at - arrived)
            yield replied
            yield cpu.serve(self._clock.now, (1 - _SENDING) * work)
        self._counts["rebuilt" if arrived is None else "records"] += records
        self._clock.open(written)

    def _spread(self, count: int) -> Mapping[Server, int]:
        """How many of these records each shard gets. A few hundred samples are used again and again: that is faster."""
        samples = self._samples.setdefault(count, [])
        if len(samples) < _SAMPLES:
            samples.append(Counter(self._random.choices(self._shards, cum_weights=self._cumulative, k=count)))
            return samples[-1]
        return samples[int(self._random.random() * _SAMPLES)]

    def _ask(self, works: Sequence[tuple[Server, float]]) -> float:
        """Send each shard its work. Returns when the last reply has arrived."""
        half = self._of.round_trip / 2
        arrives = self._clock.now + half
        return max(shard.serve(arrives, work) for shard, work in works) + half

    def _is_lost(self, begin: float, end: float) -> bool:
        """Whether the first shard does not answer at some time between these."""
        lost = self._of.lost
        return lost is not None and begin < lost[1] and end >= lost[0]

    def _read_steadily(self, shares: Sequence[float]) -> Process:
        """Requests as a constant load on each shard, which is much faster than to simulate each of them."""
        while True:
            for shard, share in zip(self._shards, shares, strict=True):
                shard.serve(self._clock.now, share)
            yield self._clock.now + _TICK

    # The API

    def _connect(self, worker: Server) -> None:
        if self._of.connections:
            self._request(worker)
        elif self._of.requests:
            self._arrive(worker)

    def _arrive(self, worker: Server) -> None:
        self._request(worker)
        pause = self._random.expovariate(self._of.requests / self._of.workers)
        self._clock.at(self._clock.now + pause, self._arrive, worker)

    def _request(self, worker: Server) -> None:
        now = self._clock.now
        sent = worker.serve(now, _SENDING * self._of.costs.api_request)
        self._clock.at(sent, self._look_up, (worker, now))

    def _look_up(self, of: tuple[Server, float]) -> None:
        half = self._of.round_trip / 2
        shard = self._shards[bisect(self._cumulative, self._random.random() * self._cumulative[-1])]
        replied = shard.serve(self._clock.now + half, self._of.costs.redis_request) + half
        self._clock.at(replied, self._answer, of)

    def _answer(self, of: tuple[Server, float]) -> None:
        worker, began = of
        ended = worker.serve(self._clock.now, (1 - _SENDING) * self._of.costs.api_request)
        self._counts["requests"] += 1
        self._reads.append(ended - began)
        if self._of.connections:
            self._clock.at(ended, self._request, worker)
