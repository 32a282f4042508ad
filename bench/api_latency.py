"""The API's latency at fixed request rates."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from bench import candidates
from bench.api import CPU, P50, P99, P999
from bench.benchmark import Measure, Metric, Target, Values
from bench.candidates import Stage
from bench.lab import Lab
from bench.server import Server

_REACHED = Metric("answered", "requests/s", more_is_better=True)
_LATE = Metric("sender late, p99", "ms")
_CONNECTIONS = 64
_SECONDS = 5.0
_TARGET_AT = "10000 requests/s"


class ApiLatency:
    name = "api-latency"
    what = (
        "Latency when requests arrive at a fixed rate, however fast the server is (open loop, 64 connections). It is "
        "counted from the time at which a request was due. A server that handles fewer requests than arrive is "
        "overloaded: its latency grows as long as the measurement lasts."
    )
    metrics = (_REACHED, P50, P99, P999, CPU, _LATE)
    subjects = candidates.SUBJECTS
    targets = (Target(P99.name, _TARGET_AT, 1.3, at_least=False, against="nginx-lua"),)
    rounds = 3
    restarts_each_round = True

    def cases(self, lab: Lab) -> Sequence[str]:
        return ("1000 requests/s",) if lab.quick else ("2000 requests/s", _TARGET_AT, "20000 requests/s")

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        stage = candidates.set_up(lab, stack)
        return {name: partial(_measure, lab, stage, server) for name, server in stage.servers.items()}


def _measure(lab: Lab, stage: Stage, server: Server, case: str) -> Values:
    before = server.cpu_seconds()
    report = stage.load.open(server.port, _CONNECTIONS, lab.seconds(_SECONDS), float(case.split(maxsplit=1)[0]))
    return {
        _REACHED.name: report.answered / report.seconds,
        P50.name: report.p50 * 1e3,
        P99.name: report.p99 * 1e3,
        P999.name: report.p999 * 1e3,
        CPU.name: (server.cpu_seconds() - before) / report.answered * 1e6,
        _LATE.name: report.late * 1e3,
    }
