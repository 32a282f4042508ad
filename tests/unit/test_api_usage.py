"""Counting the use of keys in memory, which is bounded whatever callers send."""

import pytest

from api.usage import MAX_KEYS, MAX_REFUSED_KEYS, Usage, Used


def figures(usage: Usage) -> dict[bytes, tuple[int, int]]:
    tables: tuple[dict[bytes, Used], ...] = (usage._used, usage._refused)
    return {key: (used.requests, used.refusals) for table in tables for key, used in table.items()}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        pytest.param([200, 304, 404, 400], (4, 0), id="answered"),
        pytest.param([200, 401, 403, 429, 503], (5, 3), id="refused"),
        pytest.param([401, 401], (2, 2), id="never accepted"),
        pytest.param([401, 200], (2, 1), id="accepted later"),
    ],
)
def test_requests_and_refusals(statuses: list[int], expected: tuple[int, int]) -> None:
    usage = Usage()
    for status in statuses:
        usage.count(b"key", status)
    assert figures(usage) == {b"key": expected}


def test_unknown_keys_take_no_place_of_others() -> None:
    usage = Usage()
    for number in range(MAX_REFUSED_KEYS + 100):
        usage.count(b"unknown %d" % number, 401)
    assert len(figures(usage)) == MAX_REFUSED_KEYS
    for number in range(MAX_KEYS + 100):
        usage.count(b"known %d" % number, 200)
    assert len(figures(usage)) == MAX_REFUSED_KEYS + MAX_KEYS
    usage.count(b"known 0", 401)
    assert figures(usage)[b"known 0"] == (2, 1)
