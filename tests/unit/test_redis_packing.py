"""A call of a script is packed as Redis's protocol says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadview.redis.connection import pack, pack_bytes

WORDS = st.lists(st.binary(max_size=40), min_size=1)


@given(WORDS)
def test_it_packs_as_hiredis_does(words: list[bytes]) -> None:
    assert pack_bytes(words) == pack((*words,))


@pytest.mark.parametrize("length", [0, 9, 10, 4095, 4096, 1_048_576])
def test_words_of_any_length(length: int) -> None:
    words = [b"SET", b"x" * length]
    assert pack_bytes(words) == pack((*words,))
