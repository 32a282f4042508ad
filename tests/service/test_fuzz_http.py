"""A short run of the fuzzers of both ports. `make fuzz` runs them for as long as one likes, with other seeds."""

from collections.abc import Callable
from types import ModuleType

import pytest

from api.edge import Framing
from tests.fuzz import http, metrics


@pytest.mark.parametrize("fuzzer", [pytest.param(http, id="the API"), pytest.param(metrics, id="the metrics port")])
def test_a_short_run(fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make fuzz` is strict about the event loop. Here, processors may be of any speed, and the heap is a large one."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)
    assert "seed 11" in fuzzer.fuzz(11, 3)


def without_body(add: Callable[[Framing, bytes, bytes], None]) -> Callable[[Framing, bytes, bytes], None]:
    def add_and_forget_the_body(framing: Framing, name: bytes, value: bytes) -> None:
        add(framing, name, value)
        framing.has_body = False

    return add_and_forget_the_body


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        pytest.param("add", without_body, id="what follows a body is served as a request"),
        pytest.param("is_valid", lambda _: lambda _framing, _version: True, id="a request for two hosts is served"),
    ],
)
def test_it_finds_a_planted_fault(method: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the first stream that shows the fault, which is one of the first hundreds."""
    monkeypatch.setattr(http, "MOST_STANDING_SECONDS", 10.0)
    monkeypatch.setattr(Framing, method, fault(getattr(Framing, method)))
    with pytest.raises(AssertionError, match="h11 found"):
        http.fuzz(5, 120)
