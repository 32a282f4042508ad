"""The ids in an event. They are found by the type of the field (`schemas.fields.Uuid`), not by a list of names.

msgspec checks only the length of an id: a pattern for each would take half the time of decoding a lead.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from schemas.fields import Uuid, are_uuids


class Ids:
    """The ids of a Struct and of the Structs in its lists."""

    def __init__(self, struct: type[Struct]) -> None:
        hints = get_type_hints(struct, include_extras=True)
        self._fields = tuple(name for name, hint in hints.items() if _is_id(hint))
        self._lists = {name: Ids(item) for name, hint in hints.items() if (item := _items(hint))}
        self._lists = {name: ids for name, ids in self._lists.items() if ids}
        self._get = _getter(self._fields)
        self._required = not any(hints[name] != Uuid for name in self._fields)
        self._only = (
            attrgetter(*self._fields) if len(self._fields) == 1 and self._required and not self._lists else None
        )
        """Reads the only id, if there is exactly one, and it is always set."""

    def __bool__(self) -> bool:
        return bool(self._fields or self._lists)

    def joined(self, entity: Any) -> str:
        """Returns all that are set, one after the other. Each has 36 characters."""
        found = "".join(self._get(entity) if self._required else filter(None, self._get(entity)))  # no id is empty
        for name, ids in self._lists.items():
            if items := getattr(entity, name):
                found += "".join(map(ids._only or ids.joined, items))  # noqa: SLF001  # of its own class; the hot path
        return found

    def wrong(self, entity: Any) -> str | None:
        """Returns the path of an id that is not a UUID; None if all of them are."""
        return next((path for path, id_ in self._named(entity) if not are_uuids([id_])), None)

    def lowered(self, entity: Any) -> Any:
        """Returns the entity with all of these ids in lower case."""
        changed: dict[str, Any] = {
            name: id_.lower() for name in self._fields if (id_ := getattr(entity, name)) is not None
        }
        for name, ids in self._lists.items():
            if items := getattr(entity, name):
                changed[name] = [ids.lowered(item) for item in items]
        return replace(entity, **changed)

    def _named(self, entity: Any) -> Iterator[tuple[str, str]]:
        for name in self._fields:
            if (id_ := getattr(entity, name)) is not None:
                yield name, id_
        for name, ids in self._lists.items():
            for number, item in enumerate(getattr(entity, name) or ()):
                for inner, id_ in ids._named(item):  # noqa: SLF001  # the same class
                    yield f"{name}[{number}].{inner}", id_


def _getter(fields: tuple[str, ...]) -> Callable[[Any], Iterable[Any]]:
    """Returns a function that reads these fields. attrgetter is the fastest, but with one name it returns no tuple."""
    if len(fields) > 1:
        return attrgetter(*fields)
    return lambda struct: [getattr(struct, field) for field in fields]


def _is_id(hint: Any) -> bool:
    return hint == Uuid or Uuid in get_args(hint)


def _items(hint: Any) -> type[Struct] | None:
    """Returns the Struct in a list of Structs, which may be optional."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is list:
        return next((item for item in parts if isinstance(item, type) and issubclass(item, Struct)), None)
    if origin is dict:
        return None
    return next((item for part in parts if (item := _items(part))), None)
