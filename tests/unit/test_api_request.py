"""What the API reads of a request (contract section 1): credentials, the client's address, tags; and what it sends."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import ApiError, InvalidApiKey, MissingApiKey
from api.request import MAX_ETAGS, REPEATED, Request, client_address, credentials, etag_of, etags_to_match
from schemas import api_keys, names
from schemas.settings import networks

ORGANIZATION = "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"
KEY = api_keys.mint(ORGANIZATION, "r" * 30)
SENT = KEY.encode()


@pytest.mark.parametrize("start", [b"Bearer ", b"bearer ", b"BEARER  ", b"bEaReR     "])
def test_a_key(start: bytes) -> None:
    found = credentials(start + SENT)
    owner = names.organization(ORGANIZATION)
    assert found.organization == owner
    assert found.organization_tag == api_keys.organization_tag(ORGANIZATION).encode()
    assert found.key_record == names.api_key(owner, api_keys.key_hash(KEY))
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


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        pytest.param("192.0.2.8", "192.0.2.8", id="one address"),
        pytest.param("192.0.2.7, 192.0.2.8", "192.0.2.8", id="what the client sent itself comes first"),
        pytest.param("192.0.2.7\n192.0.2.8", "192.0.2.8", id="two headers"),
        pytest.param("nonsense, 192.0.2.8:4711, 127.0.0.1", "192.0.2.8", id="a port, and a proxy behind it"),
        pytest.param("::ffff:192.0.2.8", "192.0.2.8", id="mapped to IPv6"),
        pytest.param("10.1.0.1, 10.0.0.1", "10.1.0.1", id="the farthest of several proxies"),
        pytest.param("192.0.2.7, 10.1.0.1, nonsense, 10.0.0.1", "10.0.0.1", id="behind what is not an address"),
        pytest.param("[2001:db8:0:1:ffff::1]:4711", "2001:db8:0:1::", id="a network of IPv6"),
        pytest.param("", "127.0.0.1", id="nothing"),
        pytest.param("nonsense", "127.0.0.1", id="nonsense"),
        pytest.param("127.0.0.1," * 40, "127.0.0.1", id="proxies alone"),
    ],
)
def test_the_client_is_the_last_address_that_is_not_a_proxy(sent: str, found: str) -> None:
    """Clients whose address is not known share that of their proxy. An address of IPv6 stands for its network."""
    expected = ip_address(found).packed[:8]
    for connected_from in ("127.0.0.1", "::ffff:127.0.0.1"):  # the latter where IPv6 is served, too
        request = Request(b"", headers={b"x-forwarded-for": sent.encode()}, client=connected_from)
        assert client_address(request, networks("127.0.0.1,10.0.0.0/8")) == expected
    stranger = Request(b"", headers={b"x-forwarded-for": sent.encode()}, client="198.51.100.1")
    assert client_address(stranger, networks("127.0.0.1")) == ip_address("198.51.100.1").packed
    assert client_address(Request(b""), ()) == b""


RAW = bytes(range(12))
TAG = RAW.hex().encode()


def test_the_tag_of_a_value() -> None:
    assert etag_of(b"h" * 22 + RAW + b"rest") == b'W/"%b"' % TAG


@pytest.mark.parametrize(
    ("header", "etags"),
    [
        pytest.param(b'W/"%b"' % TAG, (RAW,), id="weak"),
        pytest.param(b'"%b"' % TAG, (RAW,), id="strong"),
        pytest.param(b"*", (b"*",), id="any"),
        pytest.param(b" * ", (b"*",), id="any, with spaces"),
        pytest.param(b'"*"', (), id="a star in quotes is somebody's tag"),
        pytest.param(b'"x", W/"%b","y"' % TAG, (RAW,), id="in a list"),
        pytest.param(b'"x"\n"%b"' % TAG, (RAW,), id="of two headers"),
        pytest.param(TAG, (), id="no quotes"),
        pytest.param(b'"%b' % TAG, (), id="no end"),
        pytest.param(b'"%b"' % TAG.upper(), (), id="upper case is another tag"),
        pytest.param(b'"%b0"' % TAG, (), id="too long"),
        pytest.param(b'"%b-gzip"' % TAG, (), id="changed by a proxy"),
        pytest.param(b'"a"%b"b"' % TAG, (), id="between two tags"),
        pytest.param(b"", (), id="empty"),
        pytest.param(b'"%b", ' % TAG * 1000, (RAW,) * MAX_ETAGS, id="too many"),
    ],
)
def test_if_none_match(header: bytes, etags: tuple[bytes, ...]) -> None:
    assert etags_to_match(header) == etags


@given(st.binary(max_size=200))
def test_any_header_is_read(header: bytes) -> None:
    etags = etags_to_match(header)
    assert etags == (b"*",) or all(len(each) == 12 for each in etags)


@given(st.binary(min_size=12, max_size=12))
def test_every_tag_that_is_sent_is_recognized(raw: bytes) -> None:
    assert etags_to_match(etag_of(bytes(22) + raw)) == (raw,)
