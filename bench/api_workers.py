"""The API with two workers."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates
from bench.benchmark import Bar, Measure
from bench.lab import Lab

_CASE = "64 connections, two workers"


class ApiWorkers:
    name = "api-workers"
    what = (
        "The same request to two workers over 64 connections. On two cores they share these with Redis and the load, "
        "so that it is the whole machine that is measured."
    )
    metrics = api.METRICS
    subjects = candidates.SUBJECTS
    bars: Sequence[Bar] = ()
    rounds = 3
    anew = True

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - the shape of a benchmark
        return (_CASE,)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        return api.measures(lab, candidates.set_up(lab, stack, workers=2))
