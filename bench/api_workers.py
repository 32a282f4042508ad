"""The API's throughput and latency with two workers."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates
from bench.benchmark import Measure, Target
from bench.lab import Lab

_CASE = "64 connections, two workers"


class ApiWorkers:
    name = "api-workers"
    what = (
        "The requests of `api` to two workers over 64 connections. On two cores the workers share both with Redis and "
        "the load, so the whole machine is measured."
    )
    metrics = api.METRICS
    subjects = candidates.SUBJECTS
    targets: Sequence[Target] = ()
    rounds = 3
    restarts_each_round = True

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (_CASE,)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        return api.measures(lab, candidates.set_up(lab, stack, workers=2))
