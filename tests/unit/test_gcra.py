"""The arithmetic of the rate limits, without a server."""

import pytest

from schemas.gcra import Bucket, bucket, interval


@pytest.mark.parametrize(
    ("quota", "window", "full_in", "found"),
    [
        pytest.param(100, 10, 0, Bucket(100_000, 100, 0, 0), id="full"),
        pytest.param(100, 10, -5, Bucket(100_000, 100, 0, 0), id="full for some time"),
        pytest.param(100, 10, 150_000, Bucket(100_000, 98, 150_000, 0), id="a request and a half are missing"),
        pytest.param(10, 10, 9_500_000, Bucket(1_000_000, 0, 9_500_000, 500_000), id="half a request is left"),
        pytest.param(10, 10, 99_000_000, Bucket(1_000_000, 0, 10_000_000, 1_000_000), id="the limit was lowered"),
        pytest.param(3, 10, 0, Bucket(3_333_334, 3, 0, 0), id="the interval is rounded up"),
    ],
)
def test_a_bucket(quota: int, window: int, full_in: int, found: Bucket) -> None:
    assert bucket(quota, window, full_in) == found
    assert interval(quota, window) == found.interval
