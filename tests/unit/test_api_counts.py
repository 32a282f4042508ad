"""What a worker counts in memory, which is bounded whatever callers send: uses of keys, and latencies."""

import pytest

from api.metrics import BUCKETS_SECONDS, p99
from api.request import Credentials, credentials
from api.usage import MAX_KEYS, MAX_REFUSED_KEYS, Usage
from schemas.api_keys import mint
from tests.harness import crm


def caller(digit: str = "1") -> Credentials:
    return credentials(f"Bearer {mint(crm.ORGANIZATION, digit * 30)}".encode())


def named(number: int) -> Credentials:
    name = b"key %d" % number
    return Credentials(name, name, name, name, name)


def figures(usage: Usage) -> dict[bytes, tuple[int, int, float]]:
    return {key: (used.requests, used.refusals, used.last) for key, used in usage._take().items()}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        pytest.param([200, 304, 404, 400], (4, 0, 4.0), id="answered"),
        pytest.param([200, 401, 403, 429, 503], (5, 3, 5.0), id="refused"),
        pytest.param([401, 401], (2, 2, 2.0), id="never accepted"),
        pytest.param([401, 200], (2, 1, 2.0), id="accepted later"),
    ],
)
def test_requests_and_refusals(statuses: list[int], expected: tuple[int, int, float]) -> None:
    """Also if the same key is sent in another form, such as `bearer`: then it has other credentials."""
    usage, forms = Usage(), (caller(), caller())
    for at, status in enumerate(statuses):
        usage.count(forms[at % 2], status, at + 1.0)
    assert figures(usage) == {forms[0].key_record: expected}
    assert figures(usage) == {}, "it begins again"
    usage.count(forms[0], 200, 9.0)
    assert figures(usage) == {forms[0].key_record: (1, 0, 9.0)}


def test_unknown_keys_take_no_place_of_others() -> None:
    usage = Usage()
    for number in range(MAX_REFUSED_KEYS + 100):
        usage.count(named(-number - 1), 401, 1.0)
    for number in range(MAX_KEYS + 100):
        usage.count(named(number), 200, 1.0)
    assert len(figures(usage)) == MAX_REFUSED_KEYS + MAX_KEYS


def test_what_could_not_be_written_is_kept() -> None:
    usage = Usage()
    usage.count(caller("1"), 200, 1.0)
    usage._keep(usage._take())
    usage.count(caller("1"), 429, 2.0)
    assert figures(usage) == {caller("1").key_record: (2, 1, 2.0)}


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
