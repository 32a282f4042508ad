"""What an installation needs, by formula, from what was measured (`docs/capacity.md`)."""

from math import ceil

from msgspec import Struct

from bench.benchmark import OURS
from bench.outcome import Rounds
from bench.results import Results
from bench.table import number

BUSY = 0.6
"""Share of a core that is planned for: the rest is for peaks, a rebuild, and whoever has just failed."""
FULL = 0.8
"""Share of maxmemory at which the projector begins to warn."""
GENERATIONS = 2
"""A rebuild fills the next generation beside the live one."""
_CORE = 1e6
_GIB = 1 << 30
UNKNOWN = "not measured yet"


class Input(Struct, frozen=True):
    """A figure that enters, and the benchmark that prints it."""

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
    Input("a", "API's CPU for a request", "µs", "api", "64 connections", "CPU a request"),
    Input("q", "Redis's CPU for a request", "µs", "api", "64 connections", "Redis CPU a request"),
    Input("p", "projector's CPU for an event", "µs", "projector", "new records", "CPU a record"),
    Input("w", "Redis's CPU for an event", "µs", "projector", "new records", "Redis CPU a record"),
    Input("r", "rebuild by one process while the API answers", "records/s", "rebuild", "during the rebuild", "rate"),
)  # fmt: skip


class Demand(Struct, frozen=True):
    """What is asked for: leads have a contact each; requests and events are those of the busiest second."""

    name: str
    organizations: int
    leads: int
    requests: int
    events: int
    maxmemory_gib: int
    """Of one Redis."""


DEMANDS = (
    Demand("one machine", 1_000, 1_000_000, 5_000, 1_000, 8),
    Demand("a cluster", 50_000, 20_000_000, 50_000, 10_000, 16),
    Demand("a million organizations", 1_000_000, 200_000_000, 100_000, 20_000, 64),
)


class Need(Struct, frozen=True):
    """What answers it. Cores are rounded up; a Redis uses one."""

    memory_gib: float
    shards: int
    api_workers: int
    projectors: int
    rebuild_hours: float
    """With all of these projectors' cores."""


def inputs(results: Results) -> dict[str, float]:
    """What was measured, by symbol."""
    found = {}
    for each in INPUTS:
        outcome = results.benchmarks.get(each.benchmark)
        spread = Rounds(outcome.rounds).spread(each.case, OURS, each.metric) if outcome else None
        if spread:
            found[each.symbol] = spread.median
    return found


def need(demand: Demand, found: dict[str, float]) -> Need:
    """The formula. Raises KeyError where a figure is missing."""
    stored = demand.leads * found["m"] * GENERATIONS + demand.organizations * found["o"]
    memory = stored / FULL / _GIB
    redis_cores = (demand.requests * found["q"] + demand.events * found["w"]) / _CORE / BUSY
    projectors = ceil(demand.events * found["p"] / _CORE / BUSY)
    return Need(
        memory,
        max(ceil(memory / demand.maxmemory_gib), ceil(redis_cores)),
        ceil(demand.requests * found["a"] / _CORE / BUSY),
        projectors,
        2 * demand.leads / (found["r"] * projectors) / 3600,
    )


def page(results: Results) -> str:
    """Both tables, as Markdown."""
    found = inputs(results)
    lines = ["| | figure | | printed by |", "|---|---|---|---|"]
    for each in INPUTS:
        value = f"{number(found[each.symbol])} {each.unit}" if each.symbol in found else UNKNOWN
        lines.append(f"| `{each.symbol}` | {each.what} | {value} | `{each.benchmark}`, {each.case} |")
    columns = [demand.name for demand in DEMANDS]
    lines += ["", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in _rows(found).items()]
    return "\n".join(lines)


def _rows(found: dict[str, float]) -> dict[str, list[str]]:
    rows = {
        "organizations": [f"{demand.organizations:,}" for demand in DEMANDS],
        "leads, with a contact each": [f"{demand.leads:,}" for demand in DEMANDS],
        "requests a second, at most": [f"{demand.requests:,}" for demand in DEMANDS],
        "events a second, at most": [f"{demand.events:,}" for demand in DEMANDS],
        "`maxmemory` of one Redis": [f"{demand.maxmemory_gib} GiB" for demand in DEMANDS],
    }
    if len(found) < len(INPUTS):
        return rows | {"needs": [UNKNOWN] * len(DEMANDS)}
    needs = [need(demand, found) for demand in DEMANDS]
    return rows | {
        "**Redis memory**": [f"{number(each.memory_gib)} GiB" for each in needs],
        "**Redis masters** (a replica each besides)": [str(each.shards) for each in needs],
        "**API workers**": [str(each.api_workers) for each in needs],
        "**projectors**": [str(each.projectors) for each in needs],
        "rebuild with that many processes": [f"{number(each.rebuild_hours * 60)} min" for each in needs],
    }
