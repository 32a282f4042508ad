"""The latency that a worker reports to Redis."""

import pytest

from api.metrics import BUCKETS_SECONDS, p99

SLOTS = len(BUCKETS_SECONDS) + 1


def buckets(**counts: int) -> list[int]:
    """Returns counts by the number of their bucket: `_0`, `_1` …"""
    return [counts.get(f"_{number}", 0) for number in range(SLOTS)]


@pytest.mark.parametrize(
    ("counted", "seconds"),
    [
        pytest.param(buckets(), 0.0, id="no responses"),
        pytest.param(buckets(_0=1000), 0.0005, id="all fast"),
        pytest.param(buckets(_0=990, _4=10), 0.0005, id="one in a hundred may be slow"),
        pytest.param(buckets(_0=989, _4=11), 0.01, id="more than that may not"),
        pytest.param(buckets(_4=1), 0.01, id="a single one"),
        pytest.param(buckets(_0=10, _11=1), 2.0, id="slower than the last bound"),
    ],
)
def test_p99(counted: list[int], seconds: float) -> None:
    assert p99(counted) == seconds
