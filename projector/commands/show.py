"""One entity as it is stored: the first thing that one wants to see at 3 in the morning."""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from rich.console import Console

from projector.dead_letter import DeadLetter
from projector.ledger import generations
from projector.redis.store import Store
from projector.upkeep.redrive import all_letters
from schemas import names
from schemas.layouts import CONTACT_BODY, LEAD_BODY, LEAD_CONTACT_ID, TAGS, Head, read_head

EntityName = Literal["lead", "contact"]


class Shown(msgspec.Struct, frozen=True):
    """What a generation holds of an entity. `contact` is the head of a lead's contact."""

    generation: int
    live: bool
    name: str
    event: Head | None
    contact: Head | None
    etag: str | None
    document: Any


class Entity(msgspec.Struct, frozen=True):
    generations: list[Shown]
    dead_letters: list[DeadLetter]


async def look(store: Store, kind: EntityName, organization_id: str, entity_id: str) -> Entity:
    """Read an entity from every generation that is written. Raises Unavailable."""
    registry = await generations.read(store)
    owner = names.organization(organization_id)
    shown = []
    for generation in registry.writing:
        found = await _shown(store, kind, owner, generation, entity_id)
        shown.append(msgspec.structs.replace(found, live=generation == registry.live))
    key = f"{organization_id}:{entity_id}"
    letters = [letter for letter in await all_letters(store) if letter.key == key]
    return Entity(shown, letters)


async def _shown(store: Store, kind: EntityName, owner: bytes, generation: int, entity_id: str) -> Shown:
    name = (names.lead if kind == "lead" else names.contact)(owner, generation, entity_id)
    value = await _get(store, name)
    head = read_head(value) if value else None
    if value is None or head is None or not head.live:
        return Shown(generation, False, name.decode(), head, None, None, None)
    body = value[LEAD_BODY if kind == "lead" else CONTACT_BODY :]
    contact = await _contact_head(store, owner, generation, body) if kind == "lead" else None
    etag = f'W/"{value[TAGS].hex()}"'
    return Shown(generation, False, name.decode(), head, contact, etag, msgspec.json.decode(body))


async def _contact_head(store: Store, owner: bytes, generation: int, body: bytes) -> Head | None:
    value = await _get(store, names.contact(owner, generation, body[LEAD_CONTACT_ID].decode()))
    return read_head(value) if value else None


async def _get(store: Store, name: bytes) -> bytes | None:
    value: bytes | None = await store.ask_one(b"GET", name)
    return value


def show(entity: Entity, kind: EntityName, topic_prefix: str, console: Console) -> None:
    """Print an entity for people."""
    for shown in entity.generations:
        console.print(
            f"[bold]generation {shown.generation}[/]{' (live)' if shown.live else ''}  {shown.name}",
            soft_wrap=True,
        )
        console.print(f"  event    {_coordinates(shown.event, f'{topic_prefix}{kind}s')}")
        if kind == "lead":
            console.print(f"  contact  {_coordinates(shown.contact, f'{topic_prefix}contacts')}")
        if shown.etag:
            console.print(f"  etag     {shown.etag}", markup=False)
            console.print_json(data=shown.document)
    for letter in entity.dead_letters:
        console.print(f"[red]dead letter[/] {letter.field}: {letter.reason}")


def _coordinates(head: Head | None, topic: str) -> str:
    if head is None:
        return "never heard of"
    state = "" if head.live else "[yellow]deleted[/] "
    return f"{state}version {head.version} at {topic}:{head.partition}:{head.offset}, {utc(head.time)}"


def utc(milliseconds: int) -> str:
    """Milliseconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
