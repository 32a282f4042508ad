"""Scripts in Lua and their callers: a header says which names KEYS and ARGV have for both, and in which order.

A script begins with a comment. Its first sentence says what the script does. These lines are read by this module, the
first one by docs/generate/preconditions.py:

    -- Requires  what must hold, so that the script destroys or declares nothing wrong
    -- Uses  the parts whose functions it needs
    -- Within  the frame around the script
    -- KEYS  control, positions, dead_letters?
    -- ARGV  stamp, number, advances(partition, expected, position)..., letters(field, letter)...

A name with `?` may be absent. One with `...` stands for any number of values, or of rows with these fields. Indented
lines after that say what the names mean. The body has only names. When a script is loaded, they are replaced by places,
so that they cost nothing:

    KEYS.control, ARGV.stamp       KEYS[1], ARGV[1]
    FIRST.advances, SIZE.advances  where the rows begin, and how many arguments each of them has
    ARGV[i].expected               a field of the row that begins at i

In place of a line `-- Here  part`, the script has the text of this part, which costs no call of a function.

A function costs as much as ten arguments whenever the script is called. So those of a part that nothing names are left
out, and a frame, which several scripts share, is no function: the lines `--- NAME` in it are replaced by the sections
of the script that begin with such a line. What comes before the first section comes before the frame.

Names in capitals, such as `ETAG` or `STATE_LIVE`, are constants of `schemas/layouts.py` (`with_constants`).

The caller is declared as a function without a body, whose place the `Script` takes (`Folder.script`). Its parameters
must be those of the header: names, order, and which of them may be absent or are rows. Otherwise the program does not
start.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import signature
from itertools import chain, pairwise
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, get_args, get_origin

import msgspec

from schemas.layouts import with_constants

P = ParamSpec("P")
_KEYS, _ARGV = "KEYS", "ARGV"
Key = Annotated[bytes, _KEYS]
OptionalKey = Annotated[bytes | None, _KEYS]
Keys = Annotated[Sequence[bytes], _KEYS]

_LINE = re.compile(r"^-- (KEYS|ARGV|Uses|Within)  (.+)$", re.MULTILINE)
_HERE = re.compile(r"^ *-- Here  (\w+)\n", re.MULTILINE)
_SECTION = re.compile(r"^--- (\w+)\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_ROWS = re.compile(r"(\w+)\(([^)]*)\)\.\.\.")
_NAMED = re.compile(r"\b(?:(KEYS|ARGV|FIRST|SIZE)|ARGV\[(\w+)\])\.(\w+)")
_PAIR = 2


class ScriptError(Exception):
    """A header does not fit the script or its caller."""


class Place(NamedTuple):
    """A key or an argument, with `?` one that may be absent, or with `...` any number of them.

    These may be rows with `fields`. `write` turns a value into what Redis gets: one argument, or several.
    """

    name: str
    kind: str
    fields: tuple[str, ...]
    write: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"{self.name}{'(' + ', '.join(self.fields) + ')' if self.fields else ''}{self.kind}"


class Command(msgspec.Struct, frozen=True, gc=False):
    """A call of a script."""

    script: "Script[...]"
    keys: list[bytes]
    arguments: list[bytes]

    def words(self) -> list[bytes]:
        """Returns the command for Redis."""
        return [b"EVALSHA", self.script.sha, b"%d" % len(self.keys), *self.keys, *self.arguments]


class Script(Generic[P]):
    """A script. To call it with its keys and arguments, by name, makes a Command.

    A bool becomes `1` or nothing; a number is written in digits; a mapping is rows of two fields.
    """

    def __init__(self, declared: Callable[P, None], read: Callable[[str], str], always: Iterable[str] = ()) -> None:
        """Load the script that has the name of this function. `read` returns the text of a script or of a part, by its
        name; the script begins with the parts in `always`. Raises ScriptError.
        """
        self.name = declared.__name__
        text = _HERE.sub(lambda line: read(line[1]), read(self.name))
        header = dict(_LINE.findall(text))
        uses = header["Uses"].split(", ") if "Uses" in header else ()
        try:
            keys = _declared(declared, _KEYS, header.get(_KEYS, ""))
            arguments = _declared(declared, _ARGV, header.get(_ARGV, ""))
            framed = _within(read(header["Within"]), text) if "Within" in header else text
            needed = _needed("\n".join(map(read, (*always, *uses))), framed)
            self.text = with_constants(_with_places(keys, arguments, needed))
        except ScriptError as error:
            raise ScriptError(f"{self.name}.lua: {error}") from None
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest().encode()
        self._keys = [(place.name, place.kind == "...") for place in keys]
        self._arguments = [(place.name, place.kind == "...", place.write) for place in arguments]

    def __call__(self, *_: P.args, **values: P.kwargs) -> Command:
        keys: list[Any] = []
        arguments: list[Any] = []
        for name, many in self._keys:
            key = values.get(name)
            if many:
                keys += key  # type: ignore[arg-type]
            elif key is not None:
                keys.append(key)
        for name, many, write in self._arguments:
            if many:
                arguments += write(values[name])
            else:
                arguments.append(write(values[name]))
        return Command(self, keys, arguments)


class Folder:
    """The scripts in the folder `lua` of a package. Every one of them begins with the parts that are in `always`."""

    def __init__(self, package: str, always: Sequence[str] = ()) -> None:
        self._path: Traversable = files(package) / "lua"
        self._always = always
        self.scripts: list[Script[...]] = []

    def script(self, declared: Callable[P, None]) -> Script[P]:
        """Load the script that has the name of this function, and check that its header has the same parameters.

        Keys are declared as `Key`, `OptionalKey` or `Keys`. Everything else is an argument: a text, a number or a bool;
        or a sequence of bytes, a sequence of named tuples, or a mapping. Raises ScriptError.
        """
        script = Script(declared, self._text, self._always)
        self.scripts.append(script)
        return script

    def _text(self, name: str) -> str:
        return (self._path / f"{name}.lua").read_text("utf-8")


def _declared(declared: Callable[..., None], table: str, line: str) -> list[Place]:
    """Returns the keys, or the arguments, of a caller. Raises ScriptError if this line of the header does not name the
    same, or if their places could not be found in a call.
    """
    fields = {name: tuple(named.split(", ")) for name, named in _ROWS.findall(line)}
    found: list[Place] = []
    for name, parameter in signature(declared).parameters.items():
        hint, own_table = parameter.annotation, _ARGV
        if get_origin(hint) is Annotated:
            hint, own_table = get_args(hint)
        if own_table == table:
            found.append(_place(name, hint, fields.get(name, ()), may_be_absent=parameter.default is None))
    names = ", ".join(map(str, found))
    if names != line:
        raise ScriptError(f"{table} is `{line}` in the header, `{names}` in the caller")
    for before, place in pairwise(found):
        if before.kind and place.kind != before.kind:
            raise ScriptError(f"nobody can tell where `{place}` is after `{before}`")
    return found


def _place(name: str, hint: Any, fields: tuple[str, ...], *, may_be_absent: bool) -> Place:
    """Returns the place of a parameter. A mapping is rows of two fields, whose names only the header has."""
    origin = get_origin(hint)
    if origin is Mapping:
        pair = fields if len(fields) == _PAIR else ("name", "value")
        return Place(name, "...", pair, lambda pairs: _words_of_rows(pairs.items()))
    if origin is Sequence:
        (row,) = get_args(hint)
        write: Callable[[Any], Any] = list if row is bytes else _words_of_rows
        return Place(name, "...", getattr(row, "_fields", ()), write)
    if may_be_absent:
        return Place(name, "?", (), bytes)
    if hint not in _WORDS:
        raise ScriptError(f"`{name}` of the caller cannot be an argument")
    return Place(name, "", (), _WORDS[hint])


def _within(frame: str, script: str) -> str:
    """Returns the script with its sections in the places that the frame has for them. Raises ScriptError if the frame
    has no such place.
    """
    before, *parts = _SECTION.split(script)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if unknown := sections.keys() - set(_SECTION.findall(frame)):
        raise ScriptError(f"the frame has no place for the section `{min(unknown)}`")
    return before + _SECTION.sub(lambda match: sections.get(match[1], ""), frame)


def _needed(parts: str, script: str) -> str:
    """Returns the script behind what it needs of these parts: all but functions that nothing behind them names. Blocks
    are separated by empty lines, and a block has at most one function.
    """
    text = script
    for block in reversed(parts.split("\n\n")):
        function = _FUNCTION.search(block)
        if block and (function is None or re.search(rf"\b{function[1]}\b", text)):
            text = f"{block}\n\n{text}"
    return text


def _with_places(keys: Sequence[Place], arguments: Sequence[Place], text: str) -> str:
    """Returns the script with places instead of names. Raises ScriptError if a name is unknown, stands for two things,
    or is not used.
    """
    known = _known(_KEYS, keys) | _known(_ARGV, arguments)
    fields, used = _fields(arguments), set()

    def placed(match: re.Match[str]) -> str:
        row, name = match[2], match[3]
        used.add(match[0])
        if row is None and match[0] in known:
            return known[match[0]]
        if row is not None and name in fields:
            return f"ARGV[{row} + {fields[name]}]" if fields[name] else f"ARGV[{row}]"
        raise ScriptError(f"the header has no place for `{match[0]}`")

    placed_text = _NAMED.sub(placed, text)
    if unused := [name for name in known if name.startswith((_KEYS, _ARGV)) and name not in used]:
        raise ScriptError(f"nothing uses `{unused[0]}`")
    return placed_text


def _known(table: str, places: Sequence[Place]) -> dict[str, str]:
    """Returns what takes the place of each name."""
    known: dict[str, str] = {}
    before = ""
    for number, place in enumerate(places, 1):
        if place.kind != "...":
            known[f"{table}.{place.name}"] = f"{table}[{number}]"
        else:
            known[f"SIZE.{place.name}"] = str(len(place.fields) or 1)
            if before != "...":  # where the second of two such names begins depends on the call
                known[f"FIRST.{place.name}"] = str(number)
        before = place.kind
    return known


def _fields(arguments: Sequence[Place]) -> dict[str, int]:
    """Returns the distance of each field from the first field of its row."""
    fields: dict[str, int] = {}
    for place in arguments:
        for at, field in enumerate(place.fields):
            if fields.setdefault(field, at) != at:
                raise ScriptError(f"`{field}` stands for two things")
    return fields


def _word(value: bytes | str | int) -> bytes:
    return value if isinstance(value, bytes) else _WORDS[type(value)](value)


def _words_of_rows(rows: Iterable[Iterable[Any]]) -> Iterable[bytes]:
    return map(_word, chain.from_iterable(rows))


_WORDS: dict[Any, Callable[[Any], bytes]] = {
    bytes: bytes,  # which makes no copy
    str: str.encode,
    bool: lambda on: b"1" if on else b"",
    int: b"%d".__mod__,
}
