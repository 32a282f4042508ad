"""Entity tags: those that are sent, and those that are recognized in requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.request import MAX_TAGS, etag, tags_to_match

RAW = bytes(range(12))
TAG = RAW.hex().encode()


def test_the_tag_of_a_value() -> None:
    assert etag(b"h" * 22 + RAW + b"rest") == b'W/"%b"' % TAG


@pytest.mark.parametrize(
    ("header", "tags"),
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
        pytest.param(b'"%b", ' % TAG * 1000, (RAW,) * MAX_TAGS, id="too many"),
    ],
)
def test_if_none_match(header: bytes, tags: tuple[bytes, ...]) -> None:
    assert tags_to_match(header) == tags


@given(st.binary(max_size=200))
def test_any_header_is_read(header: bytes) -> None:
    tags = tags_to_match(header)
    assert tags == (b"*",) or all(len(tag) == 12 for tag in tags)


@given(st.binary(min_size=12, max_size=12))
def test_every_tag_that_is_sent_is_recognized(raw: bytes) -> None:
    assert tags_to_match(etag(bytes(22) + raw)) == (raw,)
