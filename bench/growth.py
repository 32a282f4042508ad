"""Growth: whether a request costs more if Redis holds more documents or more organizations."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates, requests
from bench.benchmark import LEADVIEW, Measure, Subject, Target, Values
from bench.candidates import Stage
from bench.cores import worker_cores
from bench.crm import Crm
from bench.filling import fill
from bench.lab import Lab
from bench.load import Load

_SUBJECTS = (Subject(LEADVIEW, "leadview", "one worker, 64 connections; requests for all documents in random order"),)
_REQUESTS = 100_000


class _Sizes:
    """Cases of growing size. Each has its own Redis and API."""

    metrics = api.METRICS
    subjects = _SUBJECTS
    rounds = 3
    restarts_each_round = False

    def _prepare(self, lab: Lab, stack: ExitStack, sizes: Mapping[str, tuple[int, int]]) -> Mapping[str, Measure]:
        """`sizes` holds for each case the number of organizations and of documents."""
        measures = {}
        for case, (organizations, documents) in sizes.items():
            stage = _stage(lab, stack, organizations, documents)
            measures[case] = api.measures(lab, stage)[LEADVIEW]

        def measure(case: str) -> Values:
            return measures[case]("64 connections")

        return {LEADVIEW: measure}


class GrowthDocuments(_Sizes):
    name = "growth-documents"
    what = "The cost of a request by the number of documents in Redis (leads and contacts of 100 organizations)."
    targets = (
        Target(api.CPU.name, "1,000,000 documents", 1.1, at_least=False, case_against="10,000 documents"),
        Target(api.REDIS_CPU.name, "1,000,000 documents", 1.1, at_least=False, case_against="10,000 documents"),
    )

    def cases(self, lab: Lab) -> Sequence[str]:
        return tuple(f"{number:,} documents" for number in ((1000, 2000) if lab.quick else (10**4, 10**5, 10**6)))

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        return self._prepare(lab, stack, {case: (100, _number(case)) for case in self.cases(lab)})


class GrowthOrganizations(_Sizes):
    name = "growth-organizations"
    what = (
        "The cost of a request by the number of organizations that share 200,000 documents. Each has its own key, and "
        "requests use the keys at random; a worker caches 8192 of them."
    )
    targets: Sequence[Target] = ()

    def cases(self, lab: Lab) -> Sequence[str]:
        return tuple(
            f"{number:,} organization{'s' if number > 1 else ''}"
            for number in ((1, 1000) if lab.quick else (1, 1000, 10**5))
        )

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        documents = 2000 if lab.quick else 200_000
        return self._prepare(lab, stack, {case: (_number(case), documents) for case in self.cases(lab)})


def _stage(lab: Lab, stack: ExitStack, organizations: int, documents: int) -> Stage:
    cores = worker_cores()
    redis = lab.redis(stack, f"redis-{organizations}-{documents}", cores)
    crm = Crm()
    fill(redis, crm.records(organizations, documents))
    asked = requests.for_leads(crm.tenants, min(_REQUESTS, documents))
    load = Load(lab, asked, cores.load)
    server = candidates.leadview(lab, stack, redis, cores)
    server.wait_until_ready(asked[0])
    load.closed(server.port, 16, lab.seconds(1.0))
    return Stage(redis, {LEADVIEW: server}, load, cores, crm.tenants)


def _number(case: str) -> int:
    return int(case.split(maxsplit=1)[0].replace(",", ""))
