"""Scripts in Lua and their callers: a header says which names KEYS and ARGV have for both, and in which order.

A script begins with a comment. Its first sentence says what the script does. These lines are read by this module:

    -- Requires  what must hold, so that the script destroys or declares nothing wrong (docs/generate/preconditions.py)
    -- Uses  the parts whose functions it needs
    -- KEYS  control, positions, dead_letters?
    -- ARGV  stamp, number, steps(partition, expected, position)..., letters(name, letter)...

A name with `?` may be absent. One with `...` stands for any number of values, or of rows with these fields. Indented
lines after that say what the names mean. The body has only names. When a script is loaded, places take their place, so
that they cost nothing:

    KEYS.control, ARGV.stamp       KEYS[1], ARGV[1]
    FIRST.steps, SIZE.steps        where the rows begin, and how many arguments each of them has
    ARGV[i].expected               a field of the row that begins at i

The caller is declared as a function without a body (`Folder.script`). Its parameters must be those of the header:
names, order, and which of them may be absent or are rows. Otherwise the program does not start.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import Parameter, signature
from itertools import chain, pairwise, zip_longest
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, get_args, get_origin, get_type_hints

import msgspec

from schemas.layouts import with_constants

P = ParamSpec("P")
_KEYS, _ARGV = "KEYS", "ARGV"
Key = Annotated[bytes, _KEYS]
OptionalKey = Annotated[bytes | None, _KEYS]
Keys = Annotated[Sequence[bytes], _KEYS]

_LINE = re.compile(r"^(KEYS|ARGV|Uses|Requires)  (.+(?:\n {2,}.+)*)", re.MULTILINE)
_PLACE = re.compile(r"(\w+)(?:\((\w+(?:, \w+)*)\))?(\?|\.\.\.)?(?:, |$)")
_NAMED = re.compile(r"\b(?:(KEYS|ARGV|FIRST|SIZE)|ARGV\[(\w+)\])\.(\w+)")


class ScriptError(Exception):
    """A header cannot be read, or does not fit the script or its caller."""


class Place(NamedTuple):
    """What a header names: a key or an argument, with `?` one that may be absent, or with `...` any number of them.

    These may be rows with `fields`.
    """

    name: str
    kind: str = ""
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{'(' + ', '.join(self.fields) + ')' if self.fields else ''}{self.kind}"


class Header(NamedTuple):
    """The comment that a script begins with. That of a part has no keys and no arguments."""

    text: str
    requires: str
    uses: tuple[str, ...]
    keys: tuple[Place, ...]
    arguments: tuple[Place, ...]

    @classmethod
    def read(cls, script: str) -> "Header":
        """Raises ScriptError."""
        lines = script.splitlines()
        end = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
        text = "\n".join(line.removeprefix("--").removeprefix(" ") for line in lines[:end])
        found = {line[1]: line[2] for line in _LINE.finditer(text)}
        uses = found.get("Uses", "")
        return cls(
            text,
            " ".join(found.get("Requires", "").split()),
            tuple(uses.split(", ")) if uses else (),
            _places(found.get(_KEYS, "").partition("\n")[0]),
            _places(found.get(_ARGV, "").partition("\n")[0]),
        )


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
        text = read(self.name)
        try:
            header = Header.read(text)
            hints = _hints(declared)
            _compare(_KEYS, header.keys, hints)
            _compare(_ARGV, header.arguments, hints)
            self.text = with_constants(_with_places(header, "".join((*map(read, (*always, *header.uses)), text))))
        except ScriptError as error:
            raise ScriptError(f"{self.name}.lua: {error}") from None
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest().encode()
        self._keys = [(place.name, place.kind == "...") for place in header.keys]
        self._arguments = [
            (place.name, place.kind == "...", _writer(hints[place.name].type)) for place in header.arguments
        ]

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


class _Hint(NamedTuple):
    """A parameter of the function that declares a caller."""

    table: str
    type: Any
    optional: bool

    def as_place(self, name: str) -> Place:
        """Returns how a header says the same. A mapping is rows of a name and a value."""
        match get_origin(self.type):
            case origin if origin is Mapping:
                return Place(name, "...", ("name", "value"))
            case origin if origin is Sequence:
                return Place(name, "...", getattr(get_args(self.type)[0], "_fields", ()))
        return Place(name, "?" if self.optional else "")

    def fits(self, place: Place) -> bool:
        """Returns whether the parameter is what the header says. The names of the fields of a mapping are free."""
        own = self.as_place(place.name)
        return own == place or (get_origin(self.type) is Mapping and len(own.fields) == len(place.fields))


def _hints(declared: Callable[..., None]) -> dict[str, _Hint]:
    types = get_type_hints(declared, include_extras=True)
    found = {}
    for name, parameter in signature(declared).parameters.items():
        hint = types.get(name)
        is_key = get_origin(hint) is Annotated
        table, value = (_KEYS, get_args(hint)[0]) if is_key else (_ARGV, hint)
        if not is_key and hint not in _WORDS and get_origin(hint) not in (Sequence, Mapping):
            raise ScriptError(f"`{name}` of the caller cannot be an argument")
        found[name] = _Hint(table, value, parameter.default is not Parameter.empty)
    return found


def _compare(table: str, places: tuple[Place, ...], hints: Mapping[str, _Hint]) -> None:
    declared = [name for name, hint in hints.items() if hint.table == table]
    for number, (place, name) in enumerate(zip_longest(places, declared), 1):
        if place is None:
            raise ScriptError(f"the caller has `{name}` as number {number} of {table}, and the header has none")
        if place.name != name:
            raise ScriptError(f"number {number} of {table} is `{place.name}` in the header, `{name}` in the caller")
        if not hints[name].fits(place):
            raise ScriptError(f"`{place}` in {table} is `{hints[name].as_place(name)}` in the caller")


def _places(line: str) -> tuple[Place, ...]:
    """Raises ScriptError if the line of a header cannot be read, or if its names could not be found in a call."""
    found: list[Place] = []
    at = 0
    while at < len(line):
        match = _PLACE.match(line, at)
        if not match:
            raise ScriptError(f"`{line[at:]}` cannot be read")
        name, fields, kind = match.groups()
        found.append(Place(name, kind or "", tuple(fields.split(", ")) if fields else ()))
        at = match.end()
    for before, place in pairwise(found):
        if before.kind and place.kind != before.kind:
            raise ScriptError(f"nobody can tell where `{place}` is after `{before}`")
    if wrong := next((place for place in found if place.fields and place.kind != "..."), None):
        raise ScriptError(f"`{wrong}` has fields, and is not followed by `...`")
    return tuple(found)


def _with_places(header: Header, text: str) -> str:
    """Returns the script with places instead of names. Raises ScriptError if a name is unknown, stands for two things,
    or is not used.
    """
    known, fields, used = _known(header), _fields(header), set()

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


def _known(header: Header) -> dict[str, str]:
    """Returns what takes the place of each name."""
    known: dict[str, str] = {}
    for table, places in ((_KEYS, header.keys), (_ARGV, header.arguments)):
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


def _fields(header: Header) -> dict[str, int]:
    """Returns how far behind the first field of a row each field is."""
    fields: dict[str, int] = {}
    for place in header.arguments:
        for at, field in enumerate(place.fields):
            if fields.setdefault(field, at) != at:
                raise ScriptError(f"`{field}` stands for two things")
    return fields


def _word(value: bytes | str | int) -> bytes:
    return value if isinstance(value, bytes) else _WORDS[type(value)](value)


_WORDS: dict[Any, Callable[[Any], bytes]] = {
    bytes: bytes,  # which makes no copy
    str: str.encode,
    bool: lambda on: b"1" if on else b"",
    int: b"%d".__mod__,
}


def _writer(hint: Any) -> Callable[[Any], Any]:
    """Returns the function that turns a value of this type into an argument, or into several."""
    if get_origin(hint) is Mapping:
        return lambda pairs: map(_word, chain.from_iterable(pairs.items()))
    if get_origin(hint) is not Sequence:
        return _WORDS[hint]
    if get_args(hint) == (bytes,):
        return list
    return lambda rows: map(_word, chain.from_iterable(rows))
