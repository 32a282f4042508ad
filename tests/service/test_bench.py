"""`python -m bench`: quick runs of the API's benchmark and of those of the whole service, from end to end."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import results
from bench.benchmark import LEADVIEW
from bench.outcome import Rounds
from devstack.jars import KAFKA
from devstack.redis_server import RedisServerMissing, redis_program
from tests.harness.services import not_available
from tests.harness.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
ALWAYS_THERE = {LEADVIEW, "asgi-constant", "starlette-constant", "idiomatic"}


PIPELINE = {
    "freshness": {"p50", "p99", "worst"},
    "rebuild": {"rate", "time", "p99"},
    "catch-up": {"p99", "caught up after", "rate", "second organization, worst", "revoked key, worst"},
    "cold-start": {"Redis loads for"},
    "fan-out": {"until all are right", "worst read, these leads", "worst read, others"},
    "worst-batches": {"p50", "p99", "worst", "projector's memory, peak"},
    "long-run": {"projector", "API worker"},
    "projector-processes": {"rate", "CPU per record"},
    "updates": {"rate"},
}
"""What each prints of Leadview in its last case."""


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=15 * PATIENCE_SECONDS, check=False)


def test_the_quick_benchmark_of_the_api(tmp_path: Path) -> None:
    try:
        redis_program()
    except RedisServerMissing as error:
        not_available(str(error))
    ended = bench("api", "--quick", "--into", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr

    outcome = results.read(tmp_path / "results.json").benchmarks["api"]
    assert outcome.quick
    assert {"processor", "cores", "memory", "python"} <= outcome.machine.keys()
    assert {"redis-server", "uvicorn"} <= outcome.versions.keys()
    measured = {subject.name for subject in outcome.subjects}
    assert measured >= ALWAYS_THERE
    assert measured | outcome.left_out.keys() >= {"nginx-lua", "redis-benchmark"}

    rounds = Rounds(outcome.rounds)
    for subject in ALWAYS_THERE:
        for metric in ("throughput", "p50", "p99", "p99.9"):
            found = rounds.spread("64 connections", subject, metric)
            assert found, f"{metric} of {subject} was not measured"
            assert 0 < found.least <= found.median <= found.most
    assert {verdict.target.against for verdict in outcome.targets} >= {"starlette-constant", "idiomatic"}
    assert all(subject in ended.stdout for subject in measured)
    assert "<svg" in (tmp_path / "charts" / "api-throughput.svg").read_text("utf-8")


@pytest.mark.long
@pytest.mark.parametrize("name", PIPELINE)
def test_the_quick_benchmarks_of_the_whole_service(name: str, tmp_path: Path) -> None:
    if reason := KAFKA.why_unavailable():
        not_available(reason)
    ended = bench(name, "--quick", "--into", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcome = results.read(tmp_path / "results.json").benchmarks[name]
    rounds = Rounds(outcome.rounds)
    found = {metric: rounds.spread(outcome.cases[-1], LEADVIEW, metric) for metric in PIPELINE[name]}
    assert all(spread and spread.least > 0 for spread in found.values()), found
    assert outcome.targets, "each has a target that can be judged"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [pytest.param(["nothing"], "no such benchmark: nothing", id="an unknown name")],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    ended = bench(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
