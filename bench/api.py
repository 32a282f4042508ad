"""The API: a full request to one worker, as fast as it answers, and at a fixed rate."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from bench import servers
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Metric, Subject, Target, Values
from bench.crm import Crm
from bench.sender import Report
from bench.servers import Stage

RATE = Metric("throughput", "requests/s")
CPU = Metric("CPU per request", "µs")
REDIS_CPU = Metric("Redis CPU per request", "µs")
P50 = Metric("p50", "ms")
P99 = Metric("p99", "ms")
P999 = Metric("p99.9", "ms")
LATE = Metric("sender late, p99", "ms")
METRICS = (RATE, CPU, REDIS_CPU, P50, P99, P999, LATE)
ZSTD = Subject("leadview-zstd", "peer", "the same with `LEADVIEW_COMPRESSION=zstd`")
SATURATED, AT_A_RATE = "64 connections", "10000 requests/s"
_CONNECTIONS, _REQUESTS_A_SECOND = 64, 10_000.0
_TENANTS, _LEADS = 10, 1000
_SECONDS = 5.0


def measure(stage: Stage, name: str, case: str) -> Values:
    """Measure this server of the stage: with `AT_A_RATE` in an open loop, in all other cases in a closed one."""
    server, seconds = stage.servers[name], stage.lab.seconds(_SECONDS)
    before, redis_before = server.cpu_seconds(), stage.redis_cpu_seconds()
    if case == AT_A_RATE:
        report = stage.load.open(server.port, _CONNECTIONS, seconds, _REQUESTS_A_SECOND)
    else:
        report = stage.load.closed(server.port, _CONNECTIONS, seconds)
    return latency(report) | {
        RATE.name: report.answered / report.seconds,
        CPU.name: (server.cpu_seconds() - before) / report.answered * 1e6,
        REDIS_CPU.name: (stage.redis_cpu_seconds() - redis_before) / report.answered * 1e6,
    }


def latency(report: Report) -> dict[str, float]:
    """The metrics of the latency of requests. `LATE` is that of the sender of an open loop."""
    found = {P50.name: report.p50 * 1e3, P99.name: report.p99 * 1e3, P999.name: report.p999 * 1e3}
    return found | ({LATE.name: report.late * 1e3} if report.late else {})


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    crm, compressed = Crm(), Crm()
    stage = servers.stage(lab, stack, crm, crm.records(_TENANTS, 2 * _LEADS))
    servers.add_peers(stage)
    zstd = servers.stage(lab, stack, compressed, compressed.records(_TENANTS, 2 * _LEADS), compression="zstd")
    measures: dict[str, Measure] = {name: partial(measure, stage, name) for name in stage.servers}
    measures[ZSTD.name] = partial(measure, zstd, LEADVIEW)
    return measures


BENCHMARK = Benchmark(
    name="api",
    what=(
        "Full requests (key, access, both rate limits, ETag, a document of about 1 KB) to one worker over 64 "
        "connections: each sends its next request as soon as it has its response (closed loop), or requests are due at "
        "a fixed rate, however fast the server is (open loop). Then, latency counts from the time at which a request "
        "was due, and that of an overloaded server grows as long as the measurement lasts."
    ),
    metrics=METRICS,
    subjects=(
        Subject(LEADVIEW, "leadview", "`python -m api`, as it is delivered"),
        ZSTD,
        *servers.PEERS,
    ),
    cases=(SATURATED, AT_A_RATE),
    prepare=_prepare,
    targets=(
        Target(RATE.name, SATURATED, 1.1, at_least=True, against="starlette-constant"),
        Target(RATE.name, SATURATED, 0.95, at_least=True, against="nginx-lua"),
        Target(P99.name, SATURATED, 3 / 2.8, at_least=False, against="nginx-lua"),
        Target(P99.name, AT_A_RATE, 1.1, at_least=False, against="nginx-lua"),
    ),
    rounds=5,
    restarts_each_round=True,
)
