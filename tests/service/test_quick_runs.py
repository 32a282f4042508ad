"""Quick runs of what takes as long as one likes: each benchmark of `python -m bench` from end to end, and a few seconds
of what `make fuzz` does at each border, which runs with other seeds.
"""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench import outcome
from bench.benchmark import LEADVIEW
from bench.pages import sentence
from devstack.jars import KAFKA
from devstack.programs import ROOT
from tests.fuzz import http
from tests.fuzz.__main__ import main
from tests.harness.programs import printed_by
from tests.harness.services import not_available

PRINTED = {
    "api": {"throughput", "p50", "p99", "p99.9"},
    "memory": {"Redis, organization and key"},
    "projector": {"rate"},
    "freshness": {"p50", "p99", "worst"},
    "rebuild": {"p99", "time", "rate"},
    "cold-start": {"all is served after"},
    "fan-out": {"until all are right", "worst read, these leads", "worst read, others"},
    "documents": {"CPU per request"},
    "growth": {"commands of Redis in an idle second"},
}
"""What each prints of Leadview in its last case."""
WITHOUT_KAFKA = ("api", "memory")


@pytest.mark.long
@pytest.mark.parametrize("name", PRINTED)
def test_quick_run_of_a_benchmark_has_figures_and_targets(name: str, tmp_path: Path) -> None:
    if name not in WITHOUT_KAFKA and (reason := KAFKA.why_unavailable()):
        not_available(reason)
    printed = printed_by([sys.executable, "-m", "bench", name, "--quick", "--into", tmp_path], directory=ROOT)
    found = outcome.read(tmp_path / "results.json").benchmarks[name]
    assert found.quick
    spreads = {metric: found.spread(found.cases[-1], LEADVIEW, metric) for metric in PRINTED[name]}
    assert all(spread and 0 < spread.least <= spread.most for spread in spreads.values()), spreads
    assert found.targets, "each has a target that can be judged"
    if name == "growth":  # it counts, so that its targets can be met on any machine
        assert [sentence(verdict) for verdict in found.targets if not verdict.met] == []
    assert all(subject.name in printed for subject in found.subjects)


SECONDS = 3.0


@pytest.fixture(autouse=True)
def _any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make fuzz` is strict about the event loop. Here, processors may be of any speed, and the heap is a large one."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)


@pytest.mark.parametrize("border", ["kafka", "http"])
def test_fuzzer_of_each_border_finds_nothing(border: str) -> None:
    """tests/unit/test_limits.py tries what `events` does."""
    assert import_module(f"tests.fuzz.{border}").fuzz(1, SECONDS)


def test_fuzz_command_prints_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--seconds", "0", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("seed 7\nevents: ")
