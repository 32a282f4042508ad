"""What `make bench` says about the limit of a benchmark."""

import pytest

from bench.benchmark import LEADVIEW, Metric
from bench.limit import limit
from bench.outcome import Outcome, Round

METRICS = [Metric("rate", "records/s"), Metric("CPU per record", "µs"), Metric("Redis CPU per record", "µs")]


def outcome(cases: dict[str, tuple[float, float, float]], cores: int) -> Outcome:
    """Cases with their values in the order of `METRICS`."""
    rounds = [
        Round(1, case, LEADVIEW, {metric.name: value for metric, value in zip(METRICS, values, strict=True)})
        for case, values in cases.items()
    ]
    machine = {"cores": str(cores)}
    return Outcome("projector", "", "", False, machine, {}, METRICS, [], list(cases), rounds, [], {})


@pytest.mark.parametrize(
    ("case", "values", "cores", "wanted"),
    [
        pytest.param("a", (10_000, 95, 20), 2, "Leadview's own core (a: Leadview used 95% of a core,", id="own"),
        pytest.param("a", (10_000, 60, 95), 4, "Redis (a: Leadview used 60% of a core, Redis 95%)", id="Redis"),
        pytest.param("a", (10_000, 60, 40), 2, "not known: Redis shares its core", id="shared core"),
        pytest.param("a", (10_000, 60, 40), 4, "not known: no process that was measured", id="something else"),
        pytest.param("2 processes", (10_000, 95, 40), 2, "not known: the processes share all cores", id="not pinned"),
        pytest.param("2 processes", (10_000, 190, 5), 2, "Leadview's own core", id="all cores"),
    ],
)  # fmt: skip
def test_the_limit_follows_from_the_measured_shares(
    case: str, values: tuple[float, float, float], cores: int, wanted: str
) -> None:
    assert limit(outcome({case: values}, cores)).startswith(wanted)


def test_the_case_with_the_most_cpu_time_counts() -> None:
    assert "(busy: " in limit(outcome({"idle": (10, 50, 10), "busy": (10_000, 92, 10), "less": (9_000, 50, 10)}, 2))


def test_without_cpu_times_the_limit_is_said_to_be_unknown() -> None:
    assert limit(outcome({}, 2)) == "not known, because CPU time is not among the metrics"
