"""Every command that may destroy or declare something is in the table of docs/how-it-works.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate.preconditions import KAFKA, PLAIN, READS, ROOT, scripts

WRITES = frozenset(
    b"APPEND COPY DECR DECRBY DEL EXPIRE EXPIREAT FLUSHALL FLUSHDB GETDEL GETEX GETSET HDEL HINCRBY HMSET HSET HSETNX "
    b"INCR INCRBY LPOP LPUSH LREM LTRIM MOVE MSET MSETNX PERSIST PEXPIRE PSETEX RENAME RENAMENX RESTORE RPOP RPUSH "
    b"SADD SET SETEX SETNX SETRANGE SMOVE SPOP SREM SWAPDB UNLINK XADD XDEL XTRIM ZADD ZREM".split()
)


def sent(path: Path) -> Iterator[str]:
    """Yields the verbs of write commands that a module sends without a script."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value in WRITES:
            yield node.value.decode()


def test_every_plain_write_is_in_the_table() -> None:
    modules = [path for package in ("projector", "api") for path in (ROOT / package).rglob("*.py")]
    found = {(str(path.relative_to(ROOT)), verb) for path in modules for verb in sent(path)}
    assert found == {(it.file, it.verb) for it in PLAIN}, "add it to docs/generate/preconditions.py, or remove it there"


def test_every_commit_to_kafka_is_in_the_table() -> None:
    modules = (ROOT / "projector" / "kafka").glob("*.py")  # nothing else speaks to Kafka
    found = {str(path.relative_to(ROOT)) for path in modules if ".commit(" in path.read_text()}
    assert found == {it.file for it in KAFKA}


@pytest.mark.parametrize(
    ("path", "requires"), [pytest.param(path, requires, id=path.stem) for path, _, requires in scripts()]
)
def test_every_script_says_what_it_requires(path: Path, requires: str) -> None:
    assert requires, "its header needs a line `-- Requires  …`"
    if requires == READS:
        called = set(re.findall(r"call\('([A-Z]+)'", path.read_text()))
        assert called.isdisjoint(verb.decode() for verb in WRITES)


def test_no_script_is_overlooked() -> None:
    names = {script.path.name for script in scripts()}
    parts = {"layout.lua", "contact_index.lua", "index_repair.lua", "key_record.lua", "write_each.lua"}
    everything = {path.name for directory in ("projector", "api") for path in (ROOT / directory).rglob("*.lua")}
    assert everything - names == parts
