"""The API: a full request, one worker, 64 connections."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from bench import candidates, redis_benchmark
from bench.benchmark import Measure, Metric, Subject, Target, Values
from bench.candidates import SUBJECTS, Stage
from bench.lab import Lab
from bench.server import Server

RATE = Metric("throughput", "requests/s", more_is_better=True, chart=True)
CPU = Metric("CPU per request", "µs", chart=True)
REDIS_CPU = Metric("Redis CPU per request", "µs")
P50 = Metric("p50", "ms")
P99 = Metric("p99", "ms", chart=True)
P999 = Metric("p99.9", "ms")
METRICS = (RATE, CPU, REDIS_CPU, P50, P99, P999)
_LIMIT = Subject(
    "redis-benchmark",
    "limit",
    "the same script calls, 16 in a pipeline: the most that this Redis serves",
)
CASE = "64 connections"
_SECONDS = 5.0


class Api:
    name = "api"
    what = (
        "Full requests (key, access, both rate limits, ETag, a document of about 1 KB) to one worker. Each of 64 "
        "connections sends its next request as soon as it has its response."
    )
    metrics = METRICS
    subjects = (*SUBJECTS, _LIMIT)
    targets = (
        Target(RATE.name, CASE, 1.0, at_least=True, against="starlette-constant"),
        Target(RATE.name, CASE, 3.0, at_least=True, against="idiomatic"),
        Target(RATE.name, CASE, 0.9, at_least=True, against="nginx-lua"),
        Target(P99.name, CASE, 3 / 2.8, at_least=False, against="nginx-lua"),
    )
    rounds = 5
    restarts_each_round = True

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (CASE,)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        stage = candidates.set_up(lab, stack)
        by_subject = measures(lab, stage)
        run_calls = redis_benchmark.runner(lab, stage)
        if run_calls is not None:
            by_subject[_LIMIT.name] = partial(_measure_limit, lab, stage, run_calls)
        return by_subject


def measures(lab: Lab, stage: Stage) -> dict[str, Measure]:
    """Returns a measure for each server of the stage. The name of a case begins with the number of connections."""
    return {name: partial(_measure, lab, stage, server) for name, server in stage.servers.items()}


def _measure(lab: Lab, stage: Stage, server: Server, case: str) -> Values:
    before, redis_before = server.cpu_seconds(), stage.redis_cpu_seconds()
    report = stage.load.closed(server.port, int(case.split(maxsplit=1)[0]), lab.seconds(_SECONDS))
    return {
        RATE.name: report.answered / report.seconds,
        CPU.name: (server.cpu_seconds() - before) / report.answered * 1e6,
        REDIS_CPU.name: (stage.redis_cpu_seconds() - redis_before) / report.answered * 1e6,
        P50.name: report.p50 * 1e3,
        P99.name: report.p99 * 1e3,
        P999.name: report.p999 * 1e3,
    }


def _measure_limit(lab: Lab, stage: Stage, run_calls: redis_benchmark.RunCalls, _: str) -> Values:
    before = stage.redis_cpu_seconds()
    rate, count = run_calls(lab.seconds(_SECONDS))
    return {RATE.name: rate, REDIS_CPU.name: (stage.redis_cpu_seconds() - before) / count * 1e6}
