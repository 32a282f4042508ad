"""The simulator on queues whose answers are known, and the formula beside the stored results of the simulation."""

from math import inf
from pathlib import Path
from random import Random

import pytest

from bench import results
from bench.capacity import Cluster, Demand, need
from bench.outcome import Rounds
from bench.simulation import scenarios
from bench.simulation.benchmark import FORMULA, MEASURED, Simulation
from bench.simulation.engine import Gate, Process, Server
from bench.simulation.engine import Simulation as Clock
from bench.simulation.model import Costs, Installation, Measured, Run, pipelines

RESULTS = Path(__file__).parents[2] / "bench" / "results.json"
US = 1e-6
COSTS = Costs(
    projector_record=50 * US,
    projector_pipeline=0.0,
    projector_checkpoint=0.0,
    redis_record=40 * US,
    redis_pipeline=0.0,
    redis_checkpoint=0.0,
    projector_second=0.0,
    redis_second=0.0,
    api_request=50 * US,
    redis_request=20 * US,
)


def simulated(installation: Installation, seconds: float = 2.0) -> Measured:
    run = Run(installation)
    run.until(0.2)
    return run.until(0.2 + seconds)


@pytest.mark.parametrize("use", [0.3, 0.6, 0.9])
def test_the_mean_wait_is_that_of_an_m_d_1_queue(use: float) -> None:
    """Poisson arrivals at a server with constant work: the mean wait is use / (2 (1 - use)) times the work."""
    random, server, arrives, waits = Random(1), Server(), 0.0, 0.0
    count = 300_000
    for _ in range(count):
        arrives += random.expovariate(use)
        waits += server.serve(arrives, 1.0) - 1.0 - arrives
    assert waits / count == pytest.approx(use / (2 * (1 - use)), rel=0.05)


def test_what_happens_at_the_same_time_keeps_its_order_and_gates_let_all_through() -> None:
    clock, gate, happened = Clock(), Gate(), list[str]()

    def waits(name: str) -> Process:
        yield gate
        happened.append(name)
        yield clock.now + 1.0
        happened.append(f"{name} later")

    for name in "ab":
        clock.start(waits(name))
    clock.at(5.0, lambda _: clock.open(gate))
    clock.run(5.5)
    assert happened == ["a", "b"]
    clock.run(7.0)
    assert happened == ["a", "b", "a later", "b later"]


def test_requests_wait_for_a_shard_as_in_an_m_d_1_queue() -> None:
    costs = Costs(*(0.0,) * 9, redis_request=50 * US)
    measured = simulated(Installation(costs=costs, weights=[1], workers=1, requests=12_000))
    assert measured.requests == pytest.approx(12_000, rel=0.03)
    assert measured.shard_use == [pytest.approx(0.6, rel=0.03)]
    mean = sum(measured.reads) / len(measured.reads)
    assert mean == pytest.approx(50 * US * (1 + 0.6 / 0.8), rel=0.1)


def test_a_saturated_worker_serves_what_its_cpu_allows_and_each_connection_waits_for_all_others() -> None:
    measured = simulated(Installation(costs=COSTS, weights=[1], workers=1, connections=64))
    assert measured.requests == pytest.approx(1 / (50 * US), rel=0.01)
    assert scenarios.percentile(measured.reads, 0.5) == pytest.approx(64 * 50 * US, rel=0.02)


@pytest.mark.parametrize(
    ("redis_record", "limit"),
    [
        pytest.param(1 * US, 50 * US, id="the projector is the limit"),
        pytest.param(200 * US, 200 * US, id="Redis is the limit"),
    ],
)
def test_a_projector_with_a_backlog_is_as_fast_as_the_slower_of_the_two(redis_record: float, limit: float) -> None:
    fields = {name: getattr(COSTS, name) for name in COSTS.__struct_fields__} | {"redis_record": redis_record}
    measured = simulated(Installation(costs=Costs(**fields), weights=[1], projectors=1, events=inf), 10.0)
    assert measured.records == pytest.approx(1 / limit, rel=0.1)


def test_a_full_batch_takes_twenty_round_trips() -> None:
    """Nine groups of three slices and a checkpoint, of two round trips each. The formula relies on it."""
    away = Installation(costs=Costs(*(0.0,) * 10), weights=[1, 1], projectors=1, events=inf, round_trip=0.1)
    assert simulated(away, 100.0).records == pytest.approx(5000 / (20 * 0.1), rel=0.03)


def test_records_that_arrived_while_a_master_was_lost_are_caught_up() -> None:
    run = Run(Installation(costs=COSTS, weights=[1], projectors=1, events=10_000, lost=(1.0, 3.0)))
    assert run.until(1.0).records == pytest.approx(10_000, rel=0.05)
    assert run.until(3.0).records == pytest.approx(0, abs=100)
    assert run.lag == pytest.approx(2.0, abs=0.1)
    run.until(9.0)
    assert run.lag < 0.5


def test_the_same_seed_gives_the_same_results() -> None:
    of = Installation(costs=COSTS, weights=[1, 2], projectors=2, events=9_000, workers=1, requests=900)
    assert simulated(of, 0.2) == simulated(of, 0.2)


def test_a_slice_reaches_about_as_many_shards_as_expected() -> None:
    assert pipelines(1, 64) == 1
    assert pipelines(200, 1) == 2
    assert pipelines(200, 64) == pytest.approx(91, abs=1)


CLUSTER = Cluster(
    a=1e-4, q=1e-5, p=1e-4, w=1e-4, k=1e-5, c=2e-5, p_twice=1e-4, w_twice=1e-4, p_plain=5e-5, w_plain=5e-5, r_plain=5e3
)


def test_a_hot_organization_and_the_checkpoints_add_to_the_use_of_a_master() -> None:
    assert CLUSTER.master_use(10, 0, 100_000, 10_000) == pytest.approx(0.2)
    assert CLUSTER.master_use(10, 0, 100_000, 10_000, largest=0.05) == pytest.approx(0.3)
    assert CLUSTER.master_use(10, 5, 100_000, 10_000) == pytest.approx(0.2 + 5 * 0.4 * 2 / 10)
    assert CLUSTER.projector_rate() == pytest.approx(10_000)
    assert CLUSTER.projector_rate(0.1) == pytest.approx(1 / (1e-4 / 3 + 4e-4))


def test_the_formula_uses_the_costs_of_a_cluster_if_one_redis_is_not_enough() -> None:
    figures = {"m": 1_000.0, "o": 500.0, "a": 50.0, "q": 5.0, "p": 50.0, "w": 50.0, "r": 5e3}
    small = Demand("", 0, 100, 1_000, 1_000, 1)
    assert need(small, figures, CLUSTER) == need(small, figures)
    large = need(Demand("", 0, 100, 100_000, 10_000, 1), figures, CLUSTER)
    # 2 cores of work and 2 projectors with 0.8 cores of checkpoints each, at 60 %.
    assert (large.shards, large.projectors, large.api_workers) == (6, 2, 17)


def test_the_formula_and_what_was_measured_differ_from_the_simulation_by_at_most_a_fifth() -> None:
    """If this fails after a run of `make bench`, change the formula in bench/capacity.py and docs/capacity.md."""
    rounds = results.read(RESULTS).benchmarks[Simulation.name].rounds
    ratios = {
        (each.case, metric): Rounds(rounds).ratio(each.case, each.subject, metric)
        for each in rounds
        if each.subject in (FORMULA, MEASURED)
        for metric in each.values
    }
    assert len(ratios) > len(scenarios.SCENARIOS)
    assert {name: ratio for name, ratio in ratios.items() if not ratio or abs(1 / ratio - 1) > 0.2} == {}
