"""A short run of the fuzzers of both ports. `make fuzz` runs them for as long as one likes, with other seeds."""

from types import ModuleType

import pytest

from tests.fuzz import http, metrics


@pytest.mark.parametrize("fuzzer", [pytest.param(http, id="the API"), pytest.param(metrics, id="the metrics port")])
def test_a_short_run(fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make fuzz` is strict about the event loop. Here, processors may be of any speed, and the heap is a large one."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)
    assert "seed 11" in fuzzer.fuzz(11, 3)
