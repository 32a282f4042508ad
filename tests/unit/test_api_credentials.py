"""The Authorization header (contract section 1, rows 3 and 4): no Redis is needed to refuse these."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import ApiError, InvalidApiKey, MissingApiKey
from api.request import REPEATED, credentials
from schemas import api_keys, names

ORGANIZATION = "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"
KEY = api_keys.mint(ORGANIZATION, "r" * 30)
SENT = KEY.encode()


@pytest.mark.parametrize("start", [b"Bearer ", b"bearer ", b"BEARER  ", b"bEaReR     "])
def test_a_key(start: bytes) -> None:
    found = credentials(start + SENT)
    owner = names.organization(ORGANIZATION)
    assert found.organization == owner
    assert found.organization_tag == api_keys.organization_tag(ORGANIZATION).encode()
    assert found.active_key == names.api_key(owner, api_keys.key_hash(KEY))
    assert found.key_limit == names.key_limit(owner, api_keys.key_hash(KEY))
    assert found.organization_limit == names.organization_limit(owner)
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        pytest.param(None, MissingApiKey, id="no header"),
        pytest.param(b"", MissingApiKey, id="empty"),
        pytest.param(b"Bearer", MissingApiKey, id="no token"),
        pytest.param(b"Bearer  ", MissingApiKey, id="spaces"),
        pytest.param(b"Basic " + SENT, MissingApiKey, id="another scheme"),
        pytest.param(SENT, MissingApiKey, id="no scheme"),
        pytest.param(b"Bearer" + SENT, MissingApiKey, id="no space"),
        pytest.param(b"Bearer " + SENT + REPEATED + b"Bearer " + SENT, InvalidApiKey, id="two headers"),
        pytest.param(REPEATED + b"Bearer " + SENT, InvalidApiKey, id="the first of two is empty"),
        pytest.param(b"Bearer " + SENT + b", Bearer " + SENT, InvalidApiKey, id="a list"),
        pytest.param(b"Bearer " + SENT[:-1], InvalidApiKey, id="a character short"),
        pytest.param(b"Bearer " + SENT + b"0", InvalidApiKey, id="a character too many"),
        pytest.param(b"Bearer " + SENT.swapcase(), InvalidApiKey, id="case swapped"),
        pytest.param(b"Bearer LV_LIVE_" + SENT[8:], InvalidApiKey, id="prefix in capitals"),
        pytest.param(b"Bearer " + SENT[:20] + b"\xe9" + SENT[21:], InvalidApiKey, id="not ASCII"),
        pytest.param(b"Bearer " + SENT[:20] + b"}" + SENT[21:], InvalidApiKey, id="leaves the hash tag"),
    ],
)
def test_refused(header: bytes | None, error: type[ApiError]) -> None:
    with pytest.raises(error) as raised:
        credentials(header)
    assert KEY[8:] not in str(raised.value)


@pytest.mark.parametrize("place", range(len(SENT)))
def test_every_near_miss_is_refused(place: int) -> None:
    other = b"A" if SENT[place : place + 1] != b"A" else b"B"
    with pytest.raises(InvalidApiKey):
        credentials(b"Bearer " + SENT[:place] + other + SENT[place + 1 :])


@given(st.binary(max_size=100))
def test_any_header_is_refused(header: bytes) -> None:
    with pytest.raises((MissingApiKey, InvalidApiKey)):
        credentials(header)
