"""Which resource of this machine was the limit of a benchmark, as far as the measured CPU times say."""

import re

from bench.benchmark import LEADVIEW
from bench.outcome import Outcome, Rounds

_SATURATED = 0.9
_SEVERAL = re.compile(r"\b(two|2) (workers|processes)\b")
"""In the names of cases. On two cores, several processes are not pinned to any."""
_SHARING = 2
"""On this number of cores, Redis shares its core (`bench/cores.py`)."""


def limit(outcome: Outcome) -> str:
    """The resource, and the shares of a core that say so: of the case in which Leadview used the most CPU time."""
    rounds = Rounds(outcome.rounds)
    names = [metric.name for metric in outcome.metrics]
    rate = next((metric.name for metric in outcome.metrics if metric.unit.endswith("s/s")), None)
    cpu = next((name for name in names if name.startswith("CPU per ")), None)
    redis_cpu = next((name for name in names if name.startswith("Redis CPU per ")), None)
    found: list[tuple[float, float, str]] = []
    for case in outcome.cases:
        per_second, own, redis = (name and rounds.spread(case, LEADVIEW, name) for name in (rate, cpu, redis_cpu))
        if per_second and own:
            cores = [per_second.median * each.median / 1e6 if each else 0.0 for each in (own, redis)]
            found.append((cores[0], cores[1], case))
    if not found:
        return "not known, because CPU time is not among the metrics"
    used, by_redis, case = max(found)
    shares = f"used {used:.0%} of a core" + (f", Redis {by_redis:.0%}" if by_redis else "")
    return f"{_resource(case, used, by_redis, int(outcome.machine['cores']))} ({case}: Leadview {shares})"


def _resource(case: str, used: float, by_redis: float, cores: int) -> str:
    """`used` and `by_redis` are in cores."""
    if _SEVERAL.search(case) and used < _SATURATED * cores:
        return "not known: the processes share all cores with the load or Kafka, whose CPU time is not measured"
    if used >= _SATURATED:
        return "Leadview's own core"
    if by_redis >= _SATURATED:
        return "Redis"
    if cores == _SHARING:
        return "not known: Redis shares its core with the load or with Kafka, whose CPU time is not measured"
    return "not known: no process that was measured used a whole core"
