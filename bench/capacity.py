"""What an installation needs: a formula that is applied to the measured figures (`docs/capacity.md`)."""

from collections.abc import Mapping
from itertools import count
from math import ceil

from msgspec import Struct

from bench import cluster_costs
from bench.benchmark import LEADVIEW, Metric
from bench.cluster_costs import BUSY, CHECKPOINT, CLUSTER, CPU, ONE, RECORD, REDIS_CPU, REQUEST, SHARDS, TWICE
from bench.outcome import Rounds
from bench.results import Results
from bench.table import number
from projector.line.pace import FULL, YIELDING, YIELDING_ON_CLUSTER

PLANNED_CPU_SHARE = 0.6
"""Share of a core that is planned for. The rest is for peaks, for a rebuild, and for the work of a failed process."""
WARNING_MEMORY_SHARE = 0.8
"""Share of maxmemory at which the projector begins to warn."""
GENERATIONS = 2
"""During a rebuild, Redis holds the next generation and the live one."""
RECORDS_PER_ROUND_TRIP = 250
"""A full batch of 5,000 records takes 20 round trips: 2 for every 3 slices of 200, and 2 for the checkpoint."""
REPLY_SECONDS = 0.0007
"""Time until all masters that get a few records have replied: 0.5 ms between zones, and the queue of the slowest."""
_REPLAY_PIPELINES = 2.4
"""On a cluster, a rebuild that yields to readers writes 15 records at once: this many times as many pipelines."""
_CORE = 1e6
_GIB = 1 << 30
UNKNOWN = "not measured yet"


class Input(Struct, frozen=True):
    """A measured figure that the formula uses, and the benchmark that prints it."""

    symbol: str
    what: str
    unit: str
    benchmark: str
    case: str
    metric: str


INPUTS = (
    Input("m", "Redis memory for a lead with its contact", "bytes",
          "memory", "100,000 documents", "Redis, lead and contact"),
    Input("o", "Redis memory for an organization with a key", "bytes",
          "memory-organizations", "100,000 organizations", "Redis, organization and key"),
    Input("a", "API's CPU for a request", "µs", "api", "64 connections", "CPU per request"),
    Input("q", "Redis's CPU for a request", "µs", "api", "64 connections", "Redis CPU per request"),
    Input("p", "projector's CPU for an event", "µs", "projector", "new records", "CPU per record"),
    Input("w", "Redis's CPU for an event", "µs", "projector", "new records", "Redis CPU per record"),
    Input("r", "rebuild by one process while the API is in use", "records/s", "rebuild", "during the rebuild", "rate"),
)  # fmt: skip


class Demand(Struct, frozen=True):
    """The demand on an installation. Each lead has one contact. Requests and events are those of the busiest second."""

    name: str
    organizations: int
    leads: int
    requests: int
    events: int
    maxmemory_gib: int
    """The limit of one Redis."""


DEMANDS = (
    Demand("one machine", 1_000, 1_000_000, 5_000, 1_000, 8),
    Demand("a cluster", 50_000, 20_000_000, 50_000, 10_000, 16),
    Demand("a million organizations", 1_000_000, 200_000_000, 100_000, 20_000, 64),
)


class Cluster(Struct, frozen=True):
    """The costs on a cluster: CPU time in seconds. They are measured with 64 masters; with fewer, they are lower."""

    a: float
    q: float
    p: float
    w: float
    k: float
    """Projector's CPU for one master at each checkpoint."""
    c: float
    """CPU of a master at each checkpoint."""
    p_twice: float
    w_twice: float
    """`p` and `w` while a rebuild runs: live records are written in two generations."""
    p_plain: float
    w_plain: float
    r_plain: float
    """`p`, `w` and `r` with one Redis."""

    def master_use(self, masters: int, projectors: int, requests: float, events: float, largest: float = 0.0) -> float:
        """The share of its core that the busiest master uses. `largest` is the largest organization's share of the
        requests and events; the others are spread evenly."""
        work = requests * self.q + events * self.w
        return work * (1 / masters + largest) + projectors * self.checkpoint_cores / masters

    @property
    def checkpoint_cores(self) -> float:
        """The cores that the checkpoints of a projector use in all masters, if it has a core's planned share of work.

        A projector without a backlog begins the next batch at once, so it spends the rest of its time on checkpoints.
        """
        return (1 - PLANNED_CPU_SHARE) * self.c / self.k

    def projector_rate(self, round_trip: float = 0.0) -> float:
        """The most that a projector writes, in records per second, if Redis is this many seconds away."""
        # Of the slices that it writes at once, the work of all but one is done during the round trips of the others.
        alone = self.p / FULL.slices_in_flight
        return 1 / max(self.p, alone + round_trip / RECORDS_PER_ROUND_TRIP)

    def catch_up_rate(self, masters: int, projectors: int, requests: float) -> float:
        """The most that all projectors write while the masters also serve these requests, in records per second."""
        return min(projectors * self.projector_rate(), (masters - requests * self.q) / self.w)

    @property
    def replay_rate(self) -> float:
        """What a process of a rebuild writes while the API is in use, in records per second."""
        work = self.p_plain + self.w_plain
        overhead = (1 / self.r_plain - work) * YIELDING.slice_records / YIELDING_ON_CLUSTER.slice_records
        in_pipelines = _REPLAY_PIPELINES * (self.p - self.p_plain)
        return 1 / (work + overhead + in_pipelines + 2 * REPLY_SECONDS / YIELDING_ON_CLUSTER.slice_records)

    @property
    def replay_work(self) -> float:
        """CPU time of Redis for a record of a rebuild."""
        return self.w_plain + _REPLAY_PIPELINES * (self.w - self.w_plain)


class Need(Struct, frozen=True):
    """What meets a demand. Numbers of processes are rounded up; a Redis uses one core."""

    memory_gib: float
    shards: int
    api_workers: int
    projectors: int
    rebuild_hours: float
    """If the rebuild has as many processes as there are projectors."""


def inputs(results: Results) -> dict[str, float]:
    """The measured figures by symbol; those that are not measured yet are missing."""
    figures = {}
    for each in INPUTS:
        outcome = results.benchmarks.get(each.benchmark)
        spread = Rounds(outcome.rounds).spread(each.case, LEADVIEW, each.metric) if outcome else None
        if spread:
            figures[each.symbol] = spread.median
    return figures


def cluster(results: Results) -> Cluster | None:
    """The costs on a cluster; None if they are not measured yet.

    `cluster-costs` measures work on a cluster beside the same work on one Redis. Requests cost in proportion. What
    records cost in addition is added to the other figures, scaled by the speed of the machine during both benchmarks.
    """
    figures = inputs(results)
    outcome = results.benchmarks.get(cluster_costs.ClusterCosts.name)
    if outcome is None or len(figures) < len(INPUTS):
        return None
    rounds = Rounds(outcome.rounds)

    def measured(work: str, where: str, metric: Metric) -> float:
        spread = rounds.spread(cluster_costs.case(work, where), LEADVIEW, metric.name)
        return spread.median if spread else 0.0

    a, q, p, w = (figures[symbol] / _CORE for symbol in "aqpw")
    scale = w / measured(RECORD, ONE, REDIS_CPU)

    def added(metric: Metric, where: str, work: str = RECORD) -> float:
        return scale * (measured(work, where, metric) - measured(RECORD, ONE, metric))

    return Cluster(
        a=a * measured(REQUEST, CLUSTER, CPU) / measured(REQUEST, ONE, CPU),
        q=q * measured(REQUEST, BUSY, REDIS_CPU) / measured(REQUEST, ONE, REDIS_CPU),
        p=p + added(CPU, CLUSTER),
        w=w + added(REDIS_CPU, BUSY),
        k=scale * measured(CHECKPOINT, CLUSTER, CPU) / SHARDS,
        c=scale * measured(CHECKPOINT, BUSY, REDIS_CPU),
        p_twice=p + added(CPU, CLUSTER, TWICE),
        w_twice=w + added(REDIS_CPU, BUSY, TWICE),
        p_plain=p,
        w_plain=w,
        r_plain=figures["r"],
    )


def need(demand: Demand, figures: Mapping[str, float], costs: Cluster | None = None) -> Need:
    """The formula. With the costs of a cluster, it uses them if one Redis is not enough. Raises KeyError if a figure is
    missing."""
    stored = demand.leads * figures["m"] * GENERATIONS + demand.organizations * figures["o"]
    memory = stored / WARNING_MEMORY_SHARE / _GIB
    for_memory = ceil(memory / demand.maxmemory_gib)
    a, q, p, w = (figures[symbol] / _CORE for symbol in "aqpw")
    shards = max(for_memory, ceil((demand.requests * q + demand.events * w) / PLANNED_CPU_SHARE))
    replay_rate = figures["r"]
    if costs and shards > 1:
        a, p, replay_rate = costs.a, costs.p, costs.replay_rate
    projectors = ceil(demand.events * p / PLANNED_CPU_SHARE)
    if costs and shards > 1:
        fits = (
            number
            for number in count(for_memory)
            if costs.master_use(number, projectors, demand.requests, demand.events) <= PLANNED_CPU_SHARE
        )
        shards = next(fits)
    return Need(
        memory,
        shards,
        ceil(demand.requests * a / PLANNED_CPU_SHARE),
        projectors,
        2 * demand.leads / (replay_rate * projectors) / 3600,
    )


def page(results: Results) -> str:
    """Both tables of the page, as Markdown."""
    figures = inputs(results)
    lines = ["| | figure | | printed by |", "|---|---|---|---|"]
    for each in INPUTS:
        value = f"{number(figures[each.symbol])} {each.unit}" if each.symbol in figures else UNKNOWN
        lines.append(f"| `{each.symbol}` | {each.what} | {value} | `{each.benchmark}`, {each.case} |")
    if costs := cluster(results):
        lines += ["", *_cluster_rows(costs)]
    columns = [demand.name for demand in DEMANDS]
    lines += ["", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in _rows(figures, costs).items()]
    return "\n".join(lines)


def _cluster_rows(costs: Cluster) -> list[str]:
    """The costs on a cluster, as a table."""
    times = {
        "`a`, `q`, `p`, `w` on a cluster": (costs.a, costs.q, costs.p, costs.w),
        "`p`, `w` on a cluster while a rebuild runs": (costs.p_twice, costs.w_twice),
        "`k`: projector's CPU for one master at a checkpoint": (costs.k,),
        "`c`: CPU of a master at a checkpoint": (costs.c,),
    }
    rows = [f"| {what} | {', '.join(f'{number(each * _CORE)} µs' for each in of)} |" for what, of in times.items()]
    replay = f"| `r` on a cluster, calculated | {number(costs.replay_rate)} records/s |"
    return [f"| on a cluster of {SHARDS} masters | from `cluster-costs` |", "|---|---|", *rows, replay]


def _rows(figures: dict[str, float], costs: Cluster | None) -> dict[str, list[str]]:
    rows = {
        "organizations": [f"{demand.organizations:,}" for demand in DEMANDS],
        "leads, with a contact each": [f"{demand.leads:,}" for demand in DEMANDS],
        "requests a second, at most": [f"{demand.requests:,}" for demand in DEMANDS],
        "events a second, at most": [f"{demand.events:,}" for demand in DEMANDS],
        "`maxmemory` of one Redis": [f"{demand.maxmemory_gib} GiB" for demand in DEMANDS],
    }
    if len(figures) < len(INPUTS):
        return rows | {"needs": [UNKNOWN] * len(DEMANDS)}
    needs = [need(demand, figures, costs) for demand in DEMANDS]
    return rows | {
        "**Redis memory**": [f"{number(each.memory_gib)} GiB" for each in needs],
        "**Redis masters** (each also has a replica)": [str(each.shards) for each in needs],
        "**API workers**": [str(each.api_workers) for each in needs],
        "**projectors**": [str(each.projectors) for each in needs],
        "rebuild with that many processes": [f"{number(each.rebuild_hours * 60)} min" for each in needs],
    }
