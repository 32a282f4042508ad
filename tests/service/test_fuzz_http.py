"""A short run of the fuzzers of both ports. `make fuzz` runs them for as long as one likes, with other seeds."""

from types import ModuleType

import pytest

from api.edge import Edge
from tests.fuzz import http, metrics


@pytest.mark.parametrize("fuzzer", [pytest.param(http, id="the API"), pytest.param(metrics, id="the metrics port")])
def test_a_short_run(fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make fuzz` is strict about the event loop. Here, processors may be of any speed, and the heap is a large one."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)
    assert "seed 11" in fuzzer.fuzz(11, 3)


def test_it_finds_a_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a body is served as a request, and so is a request for two hosts. It ends with the first stream that
    shows the fault, which is one of the first hundreds.
    """
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)
    monkeypatch.setattr(Edge, "_check_framing", lambda _edge, _version: False)
    with pytest.raises(AssertionError, match="h11 found"):
        http.fuzz(5, 120)
