"""The API by number of connections."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates
from bench.benchmark import Bar, Measure
from bench.lab import Lab


class ApiConnections:
    name = "api-connections"
    what = "The same request to one worker over 1, 16 and 256 connections."
    metrics = api.METRICS
    subjects = candidates.SUBJECTS
    bars: Sequence[Bar] = ()
    rounds = 3
    anew = True

    def cases(self, lab: Lab) -> Sequence[str]:
        return ("16 connections",) if lab.quick else ("1 connection", "16 connections", "256 connections")

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        return api.measures(lab, candidates.set_up(lab, stack))
