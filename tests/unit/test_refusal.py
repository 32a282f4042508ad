"""Which check of the API refuses a key, from what Redis holds."""

import pytest

from projector.commands.refusal import Bucket, refusal_of_key, refusal_of_organization
from schemas.layouts import Head
from schemas.settings import Limit

LIVE, DELETED = Head(True, 1, 0, 0, 0), Head(False, 2, 1, 0, 0)
NOW = 1_000_000
ACTIVE = ("k1", "active", None)
FREE = Bucket.of("key", Limit(100, 10), False, 0)
USED_UP = Bucket.of("organization", Limit(10, 10), True, 9_500_000)


def row(
    head: Head | None = LIVE,
    api_access: bool = True,
    replaying: bool = False,
    complete: bool = True,
    keys: tuple[tuple[str, str, int | None], ...] = (ACTIVE,),
    limits: tuple[Bucket, ...] = (FREE,),
) -> str | None:
    organization = refusal_of_organization(head, api_access=api_access, replaying=replaying, complete=complete)
    found = refusal_of_key(organization, keys, limits, NOW)
    return f"{found.row} {found.status}" if found else None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(row(), None, id="accepted"),
        pytest.param(row(keys=()), "5 401", id="unknown"),
        pytest.param(row(keys=(ACTIVE, ("k2", "revoked", None))), "5 401", id="one of two is revoked"),
        pytest.param(row(keys=(("k1", "active", NOW),)), "5 401", id="expired at this moment"),
        pytest.param(row(keys=(("k1", "active", NOW + 1),)), None, id="expires later"),
        pytest.param(row(head=None), "6 403", id="an organization never heard of"),
        pytest.param(row(head=DELETED), "6 403", id="a deleted organization"),
        pytest.param(row(api_access=False), "6 403", id="access is off"),
        pytest.param(row(api_access=False, keys=()), "5 401", id="the key is checked before access"),
        pytest.param(row(replaying=True, keys=()), "- 503", id="recreated: before any other check"),
        pytest.param(row(complete=False, api_access=False), "- 503", id="Redis is not complete"),
        pytest.param(row(limits=(FREE, USED_UP)), "7 429", id="the limit is used up"),
        pytest.param(row(limits=(FREE, USED_UP), api_access=False), "6 403", id="access is checked before limits"),
    ],
)
def test_the_first_check_that_refuses(found: str | None, expected: str | None) -> None:
    assert found == expected


def test_a_bucket() -> None:
    assert (FREE.remaining, FREE.wait) == (100, 0)
    assert (USED_UP.remaining, USED_UP.wait) == (0, 0.5)
    assert Bucket.of("key", Limit(10, 10), True, 99_000_000).remaining == 0, "the limit was lowered"
