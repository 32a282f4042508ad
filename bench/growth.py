"""Growth: does a request cost more where there is more?"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates, requests
from bench.benchmark import OURS, Bar, Measure, Subject, Values
from bench.candidates import Stage
from bench.cores import place
from bench.crm import Crm
from bench.filling import fill
from bench.lab import Lab
from bench.load import Load

_SUBJECTS = (Subject(OURS, "leadview", "one worker, 64 connections; requests for all documents in no order"),)
_REQUESTS = 100_000


class _Sizes:
    """Cases of growing size, each with a Redis and an API of its own."""

    metrics = api.METRICS
    subjects = _SUBJECTS
    rounds = 3
    anew = False

    def _prepare(self, lab: Lab, stack: ExitStack, sizes: Mapping[str, tuple[int, int]]) -> Mapping[str, Measure]:
        """`sizes`: organizations and documents, by case."""
        measures = {}
        for case, (organizations, documents) in sizes.items():
            stage = _stage(lab, stack, organizations, documents)
            measures[case] = api.measures(lab, stage)[OURS]

        def measure(case: str) -> Values:
            return measures[case]("64 connections")

        return {OURS: measure}


class GrowthDocuments(_Sizes):
    name = "growth-documents"
    what = "A request by the number of documents in Redis (leads and contacts, 100 organizations)."
    bars = (
        Bar(api.CPU.name, "1,000,000 documents", 1.1, at_least=False, case_against="10,000 documents"),
        Bar(api.REDIS_CPU.name, "1,000,000 documents", 1.1, at_least=False, case_against="10,000 documents"),
    )

    def cases(self, lab: Lab) -> Sequence[str]:
        return tuple(f"{number:,} documents" for number in ((1000, 2000) if lab.quick else (10**4, 10**5, 10**6)))

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        return self._prepare(lab, stack, {case: (100, _number(case)) for case in self.cases(lab)})


class GrowthOrganizations(_Sizes):
    name = "growth-organizations"
    what = (
        "A request by the number of organizations that 200,000 documents belong to. Each has a key of its own, and all "
        "keys are used in turn; a worker remembers 8192 of them."
    )
    bars: Sequence[Bar] = ()

    def cases(self, lab: Lab) -> Sequence[str]:
        return tuple(
            f"{number:,} organization{'s' if number > 1 else ''}"
            for number in ((1, 1000) if lab.quick else (1, 1000, 10**5))
        )

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        documents = 2000 if lab.quick else 200_000
        return self._prepare(lab, stack, {case: (_number(case), documents) for case in self.cases(lab)})


def _stage(lab: Lab, stack: ExitStack, organizations: int, documents: int) -> Stage:
    cores = place()
    redis = lab.redis(stack, f"redis-{organizations}-{documents}", cores)
    crm = Crm()
    fill(redis, crm.records(organizations, documents))
    asked = requests.for_leads(crm.tenants, min(_REQUESTS, documents))
    load = Load(lab, asked, cores.load)
    server = candidates.leadview(lab, stack, redis, cores)
    server.wait_until_ready(asked[0])
    load.closed(server.port, 16, lab.seconds(1.0))
    return Stage(redis, {OURS: server}, load, cores, crm.tenants)


def _number(case: str) -> int:
    return int(case.split(maxsplit=1)[0].replace(",", ""))
