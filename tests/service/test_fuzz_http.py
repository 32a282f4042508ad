"""A short run of the fuzzers of both ports. `make fuzz` runs them for as long as one likes, with other seeds."""

from types import ModuleType

import pytest

from tests.fuzz import http, metrics


@pytest.mark.parametrize("fuzzer", [pytest.param(http, id="the API"), pytest.param(metrics, id="the metrics port")])
def test_a_short_run(fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the event loop is generous, because a busy machine makes processors slower, too."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 0.5)
    assert "seed 11" in fuzzer.fuzz(11, 3)
