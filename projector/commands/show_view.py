"""Prints an entity on a console."""

from datetime import UTC, datetime

from rich.console import Console

from projector.commands.show import Entity
from projector.dead_letter import DeadLetter
from schemas.layouts import Head
from schemas.resources import CONTACT, LEAD, Resource


def show(entity: Entity, resource: Resource, topic_prefix: str, console: Console) -> None:
    """Print what each generation holds of an entity, and its dead letters."""
    for stored in entity.generations:
        console.print(
            f"[bold]generation {stored.generation}[/]{' (live)' if stored.live else ''}  {stored.name}",
            soft_wrap=True,
        )
        console.print(f"  event    {coordinates(stored.event, f'{topic_prefix}{resource.topic}')}")
        if resource is LEAD:
            console.print(f"  contact  {coordinates(stored.contact, f'{topic_prefix}{CONTACT.topic}')}")
        if stored.etag:
            console.print(f"  etag     {stored.etag}", markup=False)
            console.print_json(data=stored.document)
    if entity.refusal:
        console.print(f"[red]not served[/]: every key of its organization gets {entity.refusal.status}", soft_wrap=True)
        console.print(f"  {entity.refusal.why}", markup=False, soft_wrap=True)
    show_dead_letters(entity.dead_letters, console)


def show_dead_letters(dead_letters: list[DeadLetter], console: Console) -> None:
    """Print each with its reason."""
    for dead_letter in dead_letters:
        console.print(f"[red]dead letter[/] {dead_letter.field}: ", end="")
        console.print(dead_letter.reason, markup=False, soft_wrap=True)


def coordinates(head: Head | None, topic: str) -> str:
    """Describe the event that wrote a value."""
    if head is None:
        return (
            f"no event of it was applied: it waits in {topic}, it is a dead letter, or it was published to another "
            "topic, to another Kafka or with another message key"
        )
    state = "" if head.live else "[yellow]deleted[/] "
    return f"{state}version {head.version} at {topic}:{head.partition}:{head.offset}, {utc(head.time)}"


def utc(milliseconds: int) -> str:
    """Format milliseconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
