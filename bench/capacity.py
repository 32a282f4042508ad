"""What an installation needs: a formula that is applied to the measured figures (`docs/capacity.md`)."""

from math import ceil

from msgspec import Struct

from bench.benchmark import LEADVIEW
from bench.outcome import Rounds
from bench.results import Results
from bench.table import number

PLANNED_CPU_SHARE = 0.6
"""Share of a core that is planned for. The rest is for peaks, for a rebuild, and for the work of a failed process."""
WARNING_MEMORY_SHARE = 0.8
"""Share of maxmemory at which the projector begins to warn."""
GENERATIONS = 2
"""During a rebuild, Redis holds the next generation and the live one."""
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


def need(demand: Demand, figures: dict[str, float]) -> Need:
    """The formula. Raises KeyError if a figure is missing."""
    stored = demand.leads * figures["m"] * GENERATIONS + demand.organizations * figures["o"]
    memory = stored / WARNING_MEMORY_SHARE / _GIB
    redis_cores = (demand.requests * figures["q"] + demand.events * figures["w"]) / _CORE / PLANNED_CPU_SHARE
    projectors = ceil(demand.events * figures["p"] / _CORE / PLANNED_CPU_SHARE)
    return Need(
        memory,
        max(ceil(memory / demand.maxmemory_gib), ceil(redis_cores)),
        ceil(demand.requests * figures["a"] / _CORE / PLANNED_CPU_SHARE),
        projectors,
        2 * demand.leads / (figures["r"] * projectors) / 3600,
    )


def page(results: Results) -> str:
    """Both tables of the page, as Markdown."""
    figures = inputs(results)
    lines = ["| | figure | | printed by |", "|---|---|---|---|"]
    for each in INPUTS:
        value = f"{number(figures[each.symbol])} {each.unit}" if each.symbol in figures else UNKNOWN
        lines.append(f"| `{each.symbol}` | {each.what} | {value} | `{each.benchmark}`, {each.case} |")
    columns = [demand.name for demand in DEMANDS]
    lines += ["", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in _rows(figures).items()]
    return "\n".join(lines)


def _rows(figures: dict[str, float]) -> dict[str, list[str]]:
    rows = {
        "organizations": [f"{demand.organizations:,}" for demand in DEMANDS],
        "leads, with a contact each": [f"{demand.leads:,}" for demand in DEMANDS],
        "requests a second, at most": [f"{demand.requests:,}" for demand in DEMANDS],
        "events a second, at most": [f"{demand.events:,}" for demand in DEMANDS],
        "`maxmemory` of one Redis": [f"{demand.maxmemory_gib} GiB" for demand in DEMANDS],
    }
    if len(figures) < len(INPUTS):
        return rows | {"needs": [UNKNOWN] * len(DEMANDS)}
    needs = [need(demand, figures) for demand in DEMANDS]
    return rows | {
        "**Redis memory**": [f"{number(each.memory_gib)} GiB" for each in needs],
        "**Redis masters** (each also has a replica)": [str(each.shards) for each in needs],
        "**API workers**": [str(each.api_workers) for each in needs],
        "**projectors**": [str(each.projectors) for each in needs],
        "rebuild with that many processes": [f"{number(each.rebuild_hours * 60)} min" for each in needs],
    }
