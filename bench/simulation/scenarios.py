"""The scenarios: what is simulated, and what the formula says about it (`bench/capacity.py`)."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from random import Random

from msgspec.structs import replace

from bench.capacity import PLANNED_CPU_SHARE, Cluster
from bench.cluster_costs import SHARDS
from bench.simulation.model import Costs, Installation, Measured, Run, pipelines
from projector.line.line import LONGEST_PAUSE
from projector.line.pace import FULL, YIELDING

PROJECTORS, ORGANIZATIONS = 32, 50_000
ZIPF = 0.6
"""Exponent of the sizes of organizations, by rank. The largest has half a percent of all records and requests."""
ZONES, REGIONS = 0.0005, 0.07
"""Round trips between the zones of a region, and between two regions, in seconds."""
LOOPBACK = 0.0001
OUTAGE = 15.0
"""Seconds until a replica takes over: the default of `cluster-node-timeout` of Redis."""
_NORMAL_LAG = 0.5
_LONG_SECONDS = 20.0

RECORDS, REQUESTS, REBUILT, CAUGHT_UP = "records", "requests", "rebuilt", "caught up after"
MEAN, BUSIEST, PROJECTOR, WORKER = "masters, mean", "busiest master", "projectors", "API workers"
FRESH_P50, FRESH_P99, READ_P50, READ_P99 = "freshness p50", "freshness p99", "read p50", "read p99"

SCENARIOS = (
    "even",
    "a backlog",
    "hot organizations",
    "a master lost",
    "a rebuild beside peaks",
    "a region away",
)

Values = Mapping[str, float]
Both = tuple[Values, Values]
"""The values of the simulation and those of the formula."""


class Scenarios:
    """64 masters, 32 projectors and the API workers that the formula demands, in the busiest second that it allows.

    So all of them use 60 % of a core if the formula is right. Each scenario simulates
    `seconds`, after as many to warm up.
    """

    def __init__(self, costs: Cluster, seconds: float, outage: float = OUTAGE) -> None:
        self._costs, self._seconds, self._outage = costs, seconds, outage
        self._events = PROJECTORS * PLANNED_CPU_SHARE * costs.projector_rate()
        room = PLANNED_CPU_SHARE - costs.master_use(SHARDS, PROJECTORS, 0, self._events)
        self._requests = room * SHARDS / costs.q
        self._workers = ceil(self._requests * costs.a / PLANNED_CPU_SHARE)
        self._planned = Installation(
            costs=_simulated(costs),
            weights=_weights(0.0),
            projectors=PROJECTORS,
            events=self._events,
            workers=self._workers,
            requests=self._requests,
            round_trip=ZONES,
        )
        each = (self.even, self.backlog, self.hot_organizations, self.master_lost, self.rebuild, self.region_away)
        self.by_name: Mapping[str, Callable[[], Both]] = dict(zip(SCENARIOS, each, strict=True))

    def even(self) -> Both:
        """All organizations have the same size."""
        return self._simulated(self._planned), self._by_formula()

    def backlog(self) -> Both:
        """The projectors have more records than they can write, in the busiest second of the API."""
        fastest = self._costs.catch_up_rate(SHARDS, PROJECTORS, self._requests)
        return self._simulated(replace(self._planned, events=inf)), {RECORDS: fastest, REQUESTS: self._requests}

    def hot_organizations(self) -> Both:
        """Few organizations have most of the records and requests. All of one are in one master."""
        return self._simulated(replace(self._planned, weights=_weights(ZIPF))), self._by_formula(max(_sizes(ZIPF)))

    def master_lost(self) -> Both:
        """One master does not answer until its replica takes over. No line stores positions meanwhile."""
        lost = (1.0, 1.0 + self._outage)
        run = Run(replace(self._planned, workers=0, lost=lost))
        run.until(lost[1])
        while run.lag > _NORMAL_LAG:
            run.until(run.now + _NORMAL_LAG / 2)
        fastest = self._costs.catch_up_rate(SHARDS, PROJECTORS, self._requests)
        halted = self._outage + min(self._outage, LONGEST_PAUSE) / 2  # half a pause on average, after the outage
        return {CAUGHT_UP: run.now - lost[0]}, {CAUGHT_UP: halted * fastest / (fastest - self._events)}

    def rebuild(self) -> Both:
        """32 processes rebuild, and the live lines write two generations, in the busiest second."""
        costs = self._costs
        slice_seconds = YIELDING.slice_records * (1 / costs.r_plain - costs.p_plain - costs.w_plain)
        simulated = self._simulated(
            replace(self._planned, rebuilders=PROJECTORS, rebuild_overhead=max(0.0, slice_seconds))
        )
        rate = PROJECTORS * costs.replay_rate
        added = rate * costs.replay_work + self._events * (costs.w_twice - costs.w)
        use = PLANNED_CPU_SHARE + added / SHARDS
        return simulated, self._by_formula() | {REBUILT: rate, MEAN: 100 * use, BUSIEST: 100 * use}

    def region_away(self) -> Both:
        """Redis is in another region than the projectors and the API, and the projectors have a backlog."""
        simulated = self._simulated(replace(self._planned, round_trip=REGIONS))
        backlog = Run(replace(self._planned, events=inf, workers=0, round_trip=REGIONS))
        records = backlog.until(_LONG_SECONDS).records
        rate = PROJECTORS * self._costs.projector_rate(REGIONS)
        reads = {name: simulated[name] for name in (REQUESTS, READ_P50, READ_P99)}
        return {RECORDS: records} | reads, {RECORDS: rate, REQUESTS: self._requests, READ_P50: REGIONS * 1e3}

    def _by_formula(self, largest: float = 0.0) -> dict[str, float]:
        busiest = self._costs.master_use(SHARDS, PROJECTORS, self._requests, self._events, largest)
        workers = self._requests * self._costs.a / self._workers
        return {
            RECORDS: self._events,
            REQUESTS: self._requests,
            MEAN: 100 * PLANNED_CPU_SHARE,
            BUSIEST: 100 * busiest,
            WORKER: 100 * workers,
        }

    def _simulated(self, installation: Installation) -> Values:
        run = Run(installation)
        warm_up = self._seconds + 2 * installation.round_trip
        run.until(warm_up)
        return values(run.until(warm_up + self._seconds))


def one_projector(costs: Cluster, seconds: float) -> float:
    """The records per second of a projector with a backlog, beside one Redis, as in the benchmark `projector`."""
    run = Run(Installation(costs=_plain(costs), weights=[1], projectors=1, events=inf, round_trip=LOOPBACK))
    run.until(seconds)
    return run.until(10 * seconds).records


def one_worker(costs: Cluster, a: float, q: float, seconds: float) -> Measured:
    """A worker with 64 connections and one Redis, as in the benchmark `api`. `a` and `q` are in seconds."""
    plain = replace(_plain(costs), api_request=a, redis_request=q)
    run = Run(Installation(costs=plain, weights=[1], workers=1, connections=64, round_trip=LOOPBACK))
    run.until(seconds)
    return run.until(3 * seconds)


def values(measured: Measured) -> dict[str, float]:
    """The values of a simulated time, by the name of the metric."""
    found = {
        RECORDS: measured.records,
        REBUILT: measured.rebuilt,
        REQUESTS: measured.requests,
        MEAN: 100 * sum(measured.shard_use) / len(measured.shard_use),
        BUSIEST: 100 * max(measured.shard_use),
        PROJECTOR: 100 * measured.projector_use,
        WORKER: 100 * measured.worker_use,
    }
    return {name: value for name, value in found.items() if value} | {
        FRESH_P50: percentile(measured.freshness, 0.5) * 1e3,
        FRESH_P99: percentile(measured.freshness, 0.99) * 1e3,
        READ_P50: percentile(measured.reads, 0.5) * 1e3,
        READ_P99: percentile(measured.reads, 0.99) * 1e3,
    }


def percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[int(share * len(sorted_values))] if sorted_values else 0.0


def _simulated(costs: Cluster) -> Costs:
    """What `cluster-costs` found for a record on a cluster is divided among the pipelines of a slice of 200."""
    each = FULL.slice_records / pipelines(FULL.slice_records, SHARDS)
    return Costs(
        projector_record=costs.p_plain,
        projector_pipeline=(costs.p - costs.p_plain) * each,
        projector_checkpoint=costs.k,
        redis_record=costs.w_plain,
        redis_pipeline=(costs.w - costs.w_plain) * each,
        redis_checkpoint=costs.c,
        projector_second=costs.p_twice - costs.p,
        redis_second=costs.w_twice - costs.w,
        api_request=costs.a,
        redis_request=costs.q,
    )


def _plain(costs: Cluster) -> Costs:
    return replace(_simulated(costs), projector_pipeline=0.0, redis_pipeline=0.0)


def _sizes(exponent: float) -> list[float]:
    """The share of each organization."""
    sizes = [rank**-exponent for rank in range(1, ORGANIZATIONS + 1)]
    total = sum(sizes)
    return [size / total for size in sizes]


def _weights(exponent: float) -> list[float]:
    """The share of each master, with every organization in one of them."""
    random = Random(1)  # noqa: S311 - it must be repeatable
    weights = [0.0] * SHARDS
    for size in _sizes(exponent):
        weights[random.randrange(SHARDS)] += size
    return weights
