"""API keys against the vectors of `docs/api-keys.json`, which other languages test against as well."""

import re
import tomllib
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from docs.generate.key_vectors import PATTERN, Malformed, Vector, Vectors
from schemas import api_keys, base62
from schemas.api_keys import KEY_LENGTH, MalformedKey, ParsedKey, key_hash, mint, organization_tag, parse

DOCS = Path(__file__).parents[2] / "docs"
VECTORS = msgspec.json.decode((DOCS / "api-keys.json").read_bytes(), type=Vectors)

keys = st.builds(mint, st.uuids().map(str), st.text(base62.ALPHABET, min_size=30, max_size=30))


@pytest.mark.parametrize("vector", VECTORS.valid, ids=lambda vector: vector.key[-6:])
def test_valid_vector_is_minted_and_parsed(vector: Vector) -> None:
    assert mint(vector.organization_id, vector.random_part) == vector.key
    assert sha256(vector.key.encode()).hexdigest() == vector.sha256
    parsed = ParsedKey(organization_tag(vector.organization_id), vector.sha256)
    assert (parse(vector.key), parsed.organization_id) == (parsed, vector.organization_id)


@pytest.mark.parametrize("row", VECTORS.malformed, ids=lambda row: row.why)
def test_malformed_vector_raises(row: Malformed) -> None:
    with pytest.raises(MalformedKey):
        parse(row.text)


def test_each_malformed_vector_is_refused_for_what_it_says() -> None:
    """A wrong checksum would hide that a later check is missing."""
    checked = [row.text for row in VECTORS.malformed if "right checksum" in row.why]
    assert [text[-6:] == api_keys.checksum(text[:-6]) for text in checked] == [True] * 3


@given(keys, st.integers(0, KEY_LENGTH - 1), st.characters())
@example(VECTORS.valid[0].key, 8, "8")
@example(VECTORS.valid[0].key, 65, "\n")
def test_any_changed_character_is_refused(key: str, position: int, character: str) -> None:
    changed = key[:position] + character + key[position + 1 :]
    if changed == key:
        assert parse(changed).hash == key_hash(key)
    else:
        with pytest.raises(MalformedKey):
            parse(changed)


def changed_or_not(key: str) -> st.SearchStrategy[str]:
    """Texts near a key, where a check that is off by one would show."""
    return st.one_of(st.just(key), st.integers(0, KEY_LENGTH).map(lambda end: key[:end]), st.just(key * 2))


@given(st.text() | keys.flatmap(changed_or_not) | st.text(min_size=58, max_size=58).map(api_keys.PREFIX.__add__))
def test_parse_answers_or_refuses_any_text(text: str) -> None:
    try:
        parsed = parse(text)
    except MalformedKey:
        return
    assert mint(parsed.organization_id, text[30:60]) == text
    assert len(text) == KEY_LENGTH == 66


def test_minted_keys_differ() -> None:
    assert len({mint(VECTORS.valid[2].organization_id) for _ in range(100)}) == 100


@pytest.mark.parametrize("random_part", ["", "0" * 29, "0" * 31, "-" * 30, "é" * 30])
def test_bad_random_part_is_refused(random_part: str) -> None:
    with pytest.raises(ValueError, match="base62"):
        mint(VECTORS.valid[0].organization_id, random_part)


@pytest.mark.parametrize("number", [62**6, -1])
def test_base62_refuses_what_does_not_fit(number: int) -> None:
    with pytest.raises(OverflowError):
        base62.encode(number, 6)


RULE = tomllib.loads((DOCS / "examples" / "gitleaks.toml").read_text("utf-8"))["rules"][0]
KEY = VECTORS.valid[2].key


def leaked(text: str) -> list[str]:
    """What gitleaks would report: the group of the rule's secret, in texts that have one of its keywords."""
    if not any(keyword in text.lower() for keyword in RULE["keywords"]):
        return []
    return [match[RULE["secretGroup"]] for match in re.finditer(RULE["regex"], text)]


@pytest.mark.parametrize("vector", VECTORS.valid, ids=lambda vector: vector.organization_id)
def test_scanner_finds_every_key(vector: Vector) -> None:
    assert re.fullmatch(PATTERN, vector.key)
    for around in (
        "{}",
        "{}\n",
        'API_KEY="{}"',
        "Authorization: Bearer {}\r\n",
        "?key={}&a=1",
        "old_{}_2026",
        "{0},{0}",
    ):
        assert set(leaked(around.format(vector.key))) == {vector.key}, around


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(KEY[:-1], id="one character short"),
        pytest.param(KEY + "0", id="one character long"),
        pytest.param(KEY.replace("lv_live_", "lv_test_"), id="another prefix"),
        pytest.param(KEY.upper(), id="prefix in upper case"),
        pytest.param(KEY[:8] + "8" + KEY[9:], id="more than 128 bits"),
        pytest.param(KEY[:-6] + "5" + KEY[-5:], id="a checksum of more than 32 bits"),
        pytest.param(KEY[:40] + "-" + KEY[41:], id="a character that is not base62"),
        pytest.param(KEY[:40] + "\n" + KEY[40:], id="cut by a line"),
        pytest.param("lv_live_" + "x" * 58, id="letters in its place"),
        pytest.param("the prefix lv_live_ alone", id="prefix"),
        pytest.param(VECTORS.valid[2].sha256, id="the hash"),
    ],
)
def test_scanner_ignores_what_only_resembles_a_key(text: str) -> None:
    assert leaked(text) == []
