"""The API's throughput and latency over different numbers of connections."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates
from bench.benchmark import Measure, Target
from bench.lab import Lab


class ApiConnections:
    name = "api-connections"
    what = "The requests of `api` to one worker, over 1, 16 and 256 connections."
    metrics = api.METRICS
    subjects = candidates.SUBJECTS
    targets: Sequence[Target] = ()
    rounds = 3
    restarts_each_round = True

    def cases(self, lab: Lab) -> Sequence[str]:
        return ("16 connections",) if lab.quick else ("1 connection", "16 connections", "256 connections")

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        return api.measures(lab, candidates.set_up(lab, stack))
