"""Where a request head ends, however it arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.edge import MAX_HEAD_BYTES, Head

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: \r\n\r\n"
PLACE = len(b"GET /healthz")


def take_all(head: Head, parts: list[bytes]) -> bytes:
    """Returns what belongs to the head, as far as it is taken."""
    taken = b""
    for part in parts:
        if not head.complete and part:
            taken += head.take(part, 0)
    return taken


@given(st.lists(st.integers(0, len(HEAD) + 8), max_size=6))
def test_it_ends_with_the_first_empty_line(cuts: list[int]) -> None:
    sent = HEAD + b"GET / HT"
    places = sorted(cuts)
    parts = [sent[start:end] for start, end in zip([0, *places], [*places, len(sent)], strict=True)]
    head = Head()
    assert take_all(head, parts) == HEAD
    assert (head.complete, head.size, head.version(PLACE)) == (True, len(HEAD), "1.1")


def test_several_in_one_piece() -> None:
    head, received, place = Head(), HEAD * 3, 0
    for _ in range(3):
        part = head.take(received, place)
        assert (part, head.complete) == (HEAD, True)
        place += len(part)
        head.clear()
    assert place == len(received)


@pytest.mark.parametrize("size", [1, 1000, MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1, 10 * MAX_HEAD_BYTES])
def test_its_size_is_limited_exactly(size: int) -> None:
    """Whatever the size of the parts."""
    longest = b"GET / HTTP/1.1\r\nA: ".ljust(MAX_HEAD_BYTES - 4, b"a") + b"\r\n\r\n"
    for sent, fits in ((longest, True), (b"G" + longest, False)):
        head = Head()
        take_all(
            head, [sent[start : start + size] for start in range(0, len(sent), size)][: MAX_HEAD_BYTES // size + 1]
        )
        assert (head.complete, head.size) == (fits, MAX_HEAD_BYTES)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (b"GET /healthz HTTP/1.1", "1.1"),
        (b"GET /healthz HTTP/1.0", "1.0"),
        (b"GET /healthz HTTP/1.2", None),
        (b"GET /healthz RTSP/1.0", None),
        (b"GET /healthz  HTTP/1.1", None),
        (b"GET /healthz HTTP/1.1 ", None),
        (b"GET /healthz", None),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_version(line: bytes, version: str | None, size: int) -> None:
    head, sent = Head(), line + b"\r\nA: x HTTP/1.1\r\n\r\n"
    take_all(head, [sent[start : start + size] for start in range(0, len(sent), size)])
    assert head.version(PLACE) == version


def test_a_head_request_is_known_by_its_method() -> None:
    head = Head()
    head.take(b"HEAD / HTTP", 0)
    assert head.asks_for_head
    head.clear()
    assert not head.asks_for_head
