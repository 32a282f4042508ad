"""Documents: whether a request costs more if Redis holds more documents or more organizations."""

from collections.abc import Mapping
from contextlib import ExitStack

from bench import api, servers
from bench.api import CPU, REDIS_CPU
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Subject, Target, Values
from bench.crm import Crm
from bench.servers import Stage

_FEW, _MANY = "10,000 documents", "1,000,000 documents"
_SIZES = {
    _FEW: (100, 10**4),
    "100,000 documents": (100, 10**5),
    _MANY: (100, 10**6),
    "1 organization": (1, 200_000),
    "1,000 organizations": (1000, 200_000),
    "100,000 organizations": (10**5, 200_000),
}
"""Organizations and documents."""
_QUICK_SHARE = 100
_REQUESTS = 100_000


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    stages = {case: _stage(lab, stack, *sizes) for case, sizes in _SIZES.items()}

    def measure(case: str) -> Values:
        return api.measure(stages[case], LEADVIEW, case)

    return {LEADVIEW: measure}


def _stage(lab: Lab, stack: ExitStack, organizations: int, documents: int) -> Stage:
    crm = Crm()
    if lab.quick:
        organizations, documents = max(1, organizations // _QUICK_SHARE), documents // _QUICK_SHARE
    records = crm.records(organizations, documents)
    return servers.stage(lab, stack, crm, records, requests=min(_REQUESTS, documents))


BENCHMARK = Benchmark(
    name="documents",
    what=(
        "The cost of a request by the number of documents in Redis (leads and contacts of 100 organizations), and by "
        "the number of organizations that share 200,000 documents. Each has its own key, and requests use the keys at "
        "random; a worker remembers 4096 to 8192 of them."
    ),
    metrics=api.METRICS,
    subjects=(Subject(LEADVIEW, "leadview", "one worker, 64 connections; requests for all documents in random order"),),
    cases=tuple(_SIZES),
    prepare=_prepare,
    targets=(
        Target(CPU.name, _MANY, 1.1, at_least=False, case_against=_FEW),
        Target(REDIS_CPU.name, _MANY, 1.1, at_least=False, case_against=_FEW),
    ),
)
