"""Headers of scripts bind KEYS and ARGV to names, for Lua and for Python; codes of replies have one place. Every
command that may destroy or declare something is in the table of docs/how-it-works.md.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import pytest

import api.redis.scripts
import projector.redis.scripts
from docs.generate.preconditions import KAFKA, PLAIN, READS, ROOT, scripts
from runtime.redis.scripts import Key, Keys, OptionalKey, Script, ScriptError

P = ParamSpec("P")
LUA = sorted(path for package in ("api", "projector") for path in (ROOT / package).rglob("*.lua"))
PACKAGES = ("api", "leadview", "operate", "projector", "runtime", "schemas")
CODES = (
    "STALE|WRITTEN|ORGANIZATION_DELETED|ERASE_DUE|REPLAY_DUE|CONTROL_CHANGED|STATE_LIVE"
    "|STATE_TOMBSTONE|JOB_NONE|JOB_ERASE|JOB_REPLAY|KEY_REVOKED"
)
"""What scripts reply, and bytes of what is stored. 0 and 1 have other uses, so their values are not looked for."""


class Row(NamedTuple):
    field: str
    offset: int


def move(*, copy: Key, letters: OptionalKey = None, stamp: str, repair: bool, rows: Sequence[Row]) -> None: ...


HEADER = "-- Moves.\n-- KEYS  copy, letters?\n-- ARGV  stamp, repair, rows(field, offset)...\n--       stamp: now\n"
BODY = "for i = FIRST.rows, #ARGV, SIZE.rows do f(KEYS.copy, KEYS.letters, ARGV.stamp, ARGV.repair, ARGV[i].offset) end"


def load(declared: Callable[P, None], text: str) -> Script[P]:
    return Script(declared, lambda _: text)


def test_names_in_a_script_become_places() -> None:
    body = "for i = 3, #ARGV, 2 do f(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[i + 1]) end"
    assert load(move, HEADER + BODY).text == HEADER + body


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"repair": True, "rows": []}, (b"1", b"c", b"s", b"1"), id="no key, no rows"),
        pytest.param(
            {"repair": False, "rows": [Row("a", 1), Row("b", -1)], "letters": b"l"},
            (b"2", b"c", b"l", b"s", b"", b"a", b"1", b"b", b"-1"),
            id="an optional key, and rows",
        ),
    ],
)
def test_call_has_the_words_in_the_order_of_the_header(values: dict[str, Any], words: tuple[bytes, ...]) -> None:
    script = load(move, HEADER + BODY)
    assert script(copy=b"c", stamp="s", **values).words() == [b"EVALSHA", script.sha, *words]


def several(*, documents: Keys, owners: Keys, pairs: Mapping[str, int]) -> None: ...


def test_keys_and_pairs_of_several_are_flattened() -> None:
    script = load(several, "-- KEYS  documents..., owners...\n-- ARGV  pairs(name, time)...\nf(FIRST.documents)")
    command = script(documents=[b"a", b"b"], owners=[b"c"], pairs={"x": 1})
    assert (command.keys, command.arguments) == ([b"a", b"b", b"c"], [b"x", b"1"])


def header(keys: str = "copy, letters?", arguments: str = "stamp, repair, rows(field, offset)...") -> str:
    return f"-- Moves.\n-- KEYS  {keys}\n-- ARGV  {arguments}\n"


class Turned(NamedTuple):
    offset: int
    field: str


def confusing(*, copy: Key, rows: Sequence[Row], turned: Sequence[Turned]) -> None: ...


def unknown(*, copy: Key, share: float) -> None: ...


def without_end(*, documents: Keys, copy: Key) -> None: ...


def without_place(*, letters: OptionalKey = None, copy: Key) -> None: ...


def three(*, copy: Key, pairs: Mapping[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("declared", "text", "says"),
    [
        pytest.param(
            move,
            header("letters, copy?") + BODY,
            "KEYS is `letters, copy\\?` in the header, `copy, ",
            id="order of keys",
        ),
        pytest.param(move, header("copy") + BODY, "KEYS is `copy` in the header, `copy, letters", id="a key too few"),
        pytest.param(
            move, header("copy, letters?, more?") + BODY, "KEYS is `copy, letters., more", id="a key too many"
        ),
        pytest.param(move, header("copy, letters") + BODY, "KEYS is `copy, letters` in", id="a key that may be absent"),
        pytest.param(
            move,
            header(arguments="repair, stamp, rows(field, offset)...") + BODY,
            "ARGV is `repair, stamp, ",
            id="order",
        ),
        pytest.param(
            move, header(arguments="stamp, repair") + BODY, "ARGV is `stamp, repair` in the header", id="too few"
        ),
        pytest.param(
            move, header(arguments="stamp, rows(field, offset)...") + BODY, "ARGV is `stamp, rows", id="one missing"
        ),
        pytest.param(
            move,
            header(arguments="stamp, repair, rows(offset, field)...") + BODY,
            "rows.offset, field.",
            id="order in rows",
        ),
        pytest.param(
            move, header(arguments="stamp, repair, rows(field)...") + BODY, "rows.field.", id="a field too few"
        ),
        pytest.param(
            move, header(arguments="stamp, repair, rows...") + BODY, "`stamp, repair, rows...` in", id="no rows"
        ),
        pytest.param(move, header("1 copy  2 letters") + BODY, "KEYS is `1 copy  2 letters` in the header", id="prose"),
        pytest.param(move, "-- Moves.\n" + BODY, "KEYS is `` in the header", id="no line"),
        pytest.param(
            move, header() + BODY + " g(KEYS.other)", "no place for `KEYS.other`", id="an unknown key in the script"
        ),
        pytest.param(
            move, header() + BODY + " g(ARGV[i].to)", "no place for `ARGV.i..to`", id="an unknown field in the script"
        ),
        pytest.param(move, header() + BODY + " g(ARGV.rows)", "no place for `ARGV.rows`", id="many values as one"),
        pytest.param(move, header() + BODY.replace("KEYS.letters, ", ""), "nothing uses `KEYS.letters`", id="not used"),
        pytest.param(
            confusing,
            header("copy", "rows(field, offset)..., turned(offset, field)...") + "f(KEYS.copy)",
            "two things",
            id="two places",
        ),
        pytest.param(
            unknown,
            header("copy", "share") + "f(KEYS.copy)",
            "`share` of the caller cannot be an argument",
            id="its type",
        ),
        pytest.param(
            without_end,
            header("documents..., copy") + "f(KEYS.copy)",
            "where `copy` is after `documents...`",
            id="after many",
        ),
        pytest.param(
            without_place,
            header("letters?, copy") + "f(KEYS.copy)",
            "where `copy` is after `letters",
            id="after an optional one",
        ),
        pytest.param(
            three,
            header("copy", "pairs(a, b, c)...") + "f(KEYS.copy)",
            "`pairs.name, value.*` in the caller",
            id="pairs of three",
        ),
    ],
)
def test_header_that_does_not_fit_and_a_caller_that_cannot_be_are_refused(
    declared: Callable[..., None], text: str, says: str
) -> None:
    """The error names the script, and what is wrong in it."""
    with pytest.raises(ScriptError, match=rf"^{declared.__name__}\.lua: .*{says}"):
        load(declared, text)


def alone(*, copy: Key) -> None: ...


FRAME = "local count = 1\n--- write\nlocal after = count\n--- check\nreturn after\n"


def framed(script: str) -> str:
    texts = {"alone": f"-- Works.\n-- Within  frame\n-- KEYS  copy\n{script}", "frame": FRAME}
    return Script(alone, texts.__getitem__).text.partition("KEYS  copy\n")[2]


def test_sections_of_a_script_take_their_places_in_its_frame() -> None:
    text = framed("local width = 2\n--- write\ncall(KEYS.copy, width)\n")
    assert text == "local width = 2\nlocal count = 1\ncall(KEYS[1], width)\nlocal after = count\nreturn after\n"


def test_a_section_for_which_the_frame_has_no_place_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"^alone\.lua: the frame has no place for the section `writes`"):
        framed("--- writes\ncall(KEYS.copy)\n")


def test_a_call_defines_no_function_that_it_does_not_need() -> None:
    one_line, two_lines = "local function {0}() return {1} end", "local function {0}()\n  return {1}\nend"
    texts = {
        "alone": "-- Works.\n-- Uses  part\n-- KEYS  copy\nreturn outer(KEYS.copy)\n",
        "part": "\n\n".join(
            (
                "-- About the part.\nlocal call = redis.call",
                two_lines.format("inner", 1),
                two_lines.format("idle", "inner()"),
                one_line.format("outer", "inner()"),
                one_line.format("last", "idle()"),
            )
        ),
    }
    lines = Script(alone, texts.__getitem__).text.splitlines()
    assert [line for line in lines if line.startswith("local")] == [
        "local call = redis.call",
        "local function inner()",
        "local function outer() return inner() end",
    ]


def test_every_function_is_needed_by_a_script() -> None:
    named = re.compile(r"^local function (\w+)", re.MULTILINE)
    declared = {name for path in LUA if "projector" in path.parts for name in named.findall(path.read_text("utf-8"))}
    assert declared == {name for script in projector.redis.scripts.SCRIPTS for name in named.findall(script.text)}


def test_every_script_is_declared_and_in_the_table() -> None:
    declared = {
        (folder, script.name)
        for folder, of_program in (
            ("api", (api.redis.scripts.serve, api.redis.scripts.usage)),
            ("projector", projector.redis.scripts.SCRIPTS),
        )
        for script in of_program
    }
    parts = {"heads", "contact_index", "evicted", "index_repair", "key_record", "order", "write_each"}
    written = {(path.relative_to(ROOT).parts[0], path.stem) for path in LUA if path.stem not in parts}
    assert declared == written, "declare it in projector/redis/scripts.py or api/redis/scripts.py"
    assert {path.name for path in LUA} - {script.path.name for script in scripts()} == {f"{part}.lua" for part in parts}


@pytest.mark.parametrize(
    ("kind", "written", "home"),
    [
        pytest.param(
            "*.lua",
            r"\b(?:KEYS|ARGV)\s*\[\s*\d|\bunpack\((?:KEYS|ARGV),\s*[2-9]|#ARGV\s*[-+]\s*\d",
            set(),
            id="the place of a key or an argument, which the header names",
        ),
        pytest.param(
            "*.lua",
            rf"\blocal [^=\n]*\b(?:{CODES})\b[^=\n]*="
            r"|outcome[^=~\n]*[=~]=? [1-9]\b|[=~]= (?:8[24]|7[69]|49|45)\b|(?:return|[=~]=|=) \{? ?'(?:stamp|E|R)'",
            set(),
            id="a code, in a script",
        ),
        pytest.param(
            "*.py",
            rf"^(?:[A-Z_]+, )*(?:{CODES})\b[A-Z_, ]* = "
            r"|(?:JOB_DUE|KEY_ENTRY_STATE)\b.*\bb\".\"|\bb\".\".*(?:JOB_DUE|KEY_ENTRY_STATE)\b",
            {"schemas/layouts.py"},
            id="a code",
        ),
        pytest.param("*.py", r"\bCommand\(|b\"EVALSHA\"", {"runtime/redis/scripts.py"}, id="the call of a script"),
    ],
)
def test_what_scripts_and_callers_share_is_written_once(kind: str, written: str, home: set[str]) -> None:
    """Codes are in schemas/layouts.py, and the places of keys and arguments in the headers of scripts."""
    found = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob(kind)):
        text = path.read_text("utf-8")
        code = re.sub("--.*", "", text) if kind == "*.lua" else text
        if re.search(written, code, re.MULTILINE):
            found.add(str(path.relative_to(ROOT)))
    assert found == home


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
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {(str(path.relative_to(ROOT)), verb) for path in modules for verb in sent(path)}
    assert found == {(it.file, it.verb) for it in PLAIN}, "add it to docs/generate/preconditions.py, or remove it there"


def test_every_commit_to_kafka_is_in_the_table() -> None:
    modules = (ROOT / "projector" / "kafka").glob("*.py")  # nothing else speaks to Kafka
    found = {str(path.relative_to(ROOT)) for path in modules if ".commit(" in path.read_text()}
    assert found == {it.file for it in KAFKA}


@pytest.mark.parametrize(
    ("path", "requires"), [pytest.param(path, requires, id=path.stem) for path, requires in scripts()]
)
def test_every_script_says_what_it_requires(path: Path, requires: str) -> None:
    assert requires, "its header needs a line `-- Requires  …`"
    if requires == READS:
        called = set(re.findall(r"call\('([A-Z]+)'", path.read_text()))
        assert called.isdisjoint(verb.decode() for verb in WRITES)
