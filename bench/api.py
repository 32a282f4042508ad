"""The API: a full request to one worker, as fast as it answers, and at a fixed rate."""

import csv
import io
import shutil
import struct
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from api.redis import scripts
from bench import servers
from bench.benchmark import (
    LEADVIEW,
    Benchmark,
    Lab,
    Measure,
    MeasurementFailed,
    Metric,
    Subject,
    Target,
    Values,
    client,
)
from bench.crm import Crm, Tenant
from bench.filling import live
from bench.machine import pinned
from bench.sender import Report
from bench.servers import Stage
from schemas import api_keys, names, resources
from schemas.control import GenerationId

RATE = Metric("throughput", "requests/s", more_is_better=True)
CPU = Metric("CPU per request", "µs")
REDIS_CPU = Metric("Redis CPU per request", "µs")
P50 = Metric("p50", "ms")
P99 = Metric("p99", "ms")
P999 = Metric("p99.9", "ms")
LATE = Metric("sender late, p99", "ms")
METRICS = (RATE, CPU, REDIS_CPU, P50, P99, P999, LATE)
ZSTD = Subject("leadview-zstd", "peer", "the same with `LEADVIEW_COMPRESSION=zstd`")
_REDIS_BENCHMARK = Subject(
    "redis-benchmark", "limit", "the same script calls, 16 in a pipeline: the most that this Redis serves"
)
SATURATED, AT_A_RATE = "64 connections", "10000 requests/s"
_CONNECTIONS, _REQUESTS_A_SECOND = 64, 10_000.0
_TENANTS, _LEADS = 10, 1000
_SECONDS = 5.0
_PIPELINE = 16
"""Commands in one pipeline of redis-benchmark: as many as the API sends."""
_EXPECTED_RATE = 50_000


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
    if program := shutil.which("redis-benchmark"):
        measures[_REDIS_BENCHMARK.name] = partial(_measure_calls, stage, program)
    else:
        lab.left_out[_REDIS_BENCHMARK.name] = "not installed (Debian: redis-tools)"
    return measures


def _measure_calls(stage: Stage, program: str, case: str) -> Values:
    if case != SATURATED:
        return {}
    before = stage.redis_cpu_seconds()
    rate, count = _run_calls(program, stage, stage.lab.seconds(_SECONDS))
    return {RATE.name: rate, REDIS_CPU.name: (stage.redis_cpu_seconds() - before) / count * 1e6}


def _run_calls(program: str, stage: Stage, seconds: float) -> tuple[float, int]:
    """Let redis-benchmark call the API's script for about so many seconds: it shows how many requests this Redis could
    serve if the API cost nothing. Returns the calls a second, and their number."""
    count = max(1000, int(seconds * _EXPECTED_RATE))
    command = [program, "-p", str(stage.redis.port), "-c", "1", "-P", str(_PIPELINE), "-n", str(count), "--csv"]
    tenant = stage.tenants[0]
    # The last word contains zeros, so that it cannot be an argument: with -x, the program reads it from its input.
    with client(stage.redis) as connection:
        *words, limits = script_call(tenant, tenant.leads[0], live(connection))
    # It runs on the worker's core, so that Redis has a core to itself.
    with pinned(stage.cores.worker):
        ended = subprocess.run([*command, "-x", *words], input=limits, capture_output=True, check=False)
    rows = list(csv.DictReader(io.StringIO(ended.stdout.decode())))
    if ended.returncode or not rows:
        raise MeasurementFailed(f"redis-benchmark: {(ended.stderr or ended.stdout).decode()}")
    return float(rows[-1]["rps"]), count


def script_call(tenant: Tenant, lead_id: str, generation: GenerationId) -> list[bytes]:
    """Returns the call of the API's script for a request for this lead."""
    owner, hashed = names.organization(tenant.organization_id), api_keys.key_hash(tenant.key)
    command = scripts.serve(
        key=names.api_key(owner, hashed),
        organization=owner,
        key_limit=names.key_limit(owner, hashed),
        organization_limit=names.organization_limit(owner),
        document=names.document(resources.LEAD, owner, generation, lead_id),
        tag=api_keys.organization_tag(tenant.organization_id).encode(),
        limits=struct.pack("<IIII", 100, 10, 300, 10),
        etags=(),
    )
    return command.words()


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
        _REDIS_BENCHMARK,
    ),
    cases=(SATURATED, AT_A_RATE),
    prepare=_prepare,
    targets=(
        Target(RATE.name, SATURATED, 1.0, at_least=True, against="starlette-constant"),
        Target(RATE.name, SATURATED, 3.0, at_least=True, against="idiomatic"),
        Target(RATE.name, SATURATED, 0.9, at_least=True, against="nginx-lua"),
        Target(P99.name, SATURATED, 3 / 2.8, at_least=False, against="nginx-lua"),
        Target(P99.name, AT_A_RATE, 1.3, at_least=False, against="nginx-lua"),
    ),
    rounds=5,
    restarts_each_round=True,
)
