"""`python -m bench`: quick runs of the API's benchmark and of those of the whole service, from end to end."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import outcome
from bench.benchmark import LEADVIEW
from devstack.jars import KAFKA
from devstack.redis_server import RedisServerMissing, redis_program
from tests.harness.services import not_available
from tests.harness.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
ALWAYS_THERE = {LEADVIEW, "leadview-zstd", "asgi-constant", "starlette-constant", "idiomatic"}


PIPELINE = {
    "freshness": {"p50", "p99", "worst"},
    "rebuild": {"p99", "time", "rate"},
    "cold-start": {"Redis loads for"},
    "fan-out": {"until all are right", "worst read, these leads", "worst read, others"},
    "projector": {"rate"},
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

    found = outcome.read(tmp_path / "results.json").benchmarks["api"]
    assert found.quick
    assert {"processor", "cores", "memory", "python", "python flags"} <= found.machine.keys()
    assert "optimized" in found.machine["python"]
    assert {"redis-server", "uvicorn"} <= found.versions.keys()
    assert found.versions["redis-server"].endswith(("with libc", "with jemalloc"))
    measured = {subject.name for subject in found.subjects}
    assert measured >= ALWAYS_THERE
    assert measured | found.left_out.keys() >= {"nginx-lua"}

    for subject in ALWAYS_THERE:
        for metric in ("throughput", "p50", "p99", "p99.9"):
            spread = found.spread("64 connections", subject, metric)
            assert spread, f"{metric} of {subject} was not measured"
            assert 0 < spread.least <= spread.median <= spread.most
    assert {verdict.target.against for verdict in found.targets} >= {"starlette-constant", "idiomatic"}
    assert all(subject in ended.stdout for subject in (LEADVIEW, "idiomatic"))


@pytest.mark.long
@pytest.mark.parametrize("name", PIPELINE)
def test_the_quick_benchmarks_of_the_whole_service(name: str, tmp_path: Path) -> None:
    if reason := KAFKA.why_unavailable():
        not_available(reason)
    ended = bench(name, "--quick", "--into", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = outcome.read(tmp_path / "results.json").benchmarks[name]
    spreads = {metric: found.spread(found.cases[-1], LEADVIEW, metric) for metric in PIPELINE[name]}
    assert all(spread and spread.least > 0 for spread in spreads.values()), spreads
    assert found.targets, "each has a target that can be judged"
