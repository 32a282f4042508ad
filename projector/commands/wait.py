"""`wait`: ends as soon as readers see a version of an entity, for the tests of the core product.

Only Redis is asked until then. Kafka is read if the version does not come, to find out why.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from projector.commands import status
from projector.commands.argument_types import seconds, uuid, version
from projector.commands.operator import Operator
from projector.dead_letter import DeadLetter
from projector.errors import ProjectorError
from projector.kafka.client import topic
from projector.ledger import copies
from projector.operate.explain.words import coordinates
from projector.operate.observe import Observation, observe
from projector.operate.words import say
from projector.record import Partition
from projector.redis import calls
from projector.redis.store import Store
from projector.upkeep import dead_letters
from schemas import names
from schemas.control import GenerationId, number_of
from schemas.layouts import ACCESS, ACCESS_ON, HEAD, Head, read_head
from schemas.resources import BY_NOUN, Resource
from schemas.words import utc

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_LOOK_SECONDS = 5.0
"""How long a look into Redis may take. One that takes longer is a server that does not answer."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the kinds, and what names one of each."""
    kinds = command.add_subparsers(dest="kind", required=True, metavar="kind")
    for noun in BY_NOUN:
        # Its `--version` takes the place of the one that prints the version of the program.
        entity = kinds.add_parser(noun, help=f"a version of a {noun}, or a newer one", conflict_handler="resolve")
        entity.add_argument("organization", type=uuid)
        entity.add_argument("id", type=uuid)
        entity.add_argument("--version", type=version, required=True, metavar="N", help="the least version to wait for")
        entity.add_argument(
            "--timeout", type=seconds, default=30.0, metavar="S", help="give up after so many seconds (default: 30)"
        )


class Seen(msgspec.Struct, frozen=True):
    """What Redis has of an entity: the head of its document in each written generation; None if there is none.

    `settled` are the generations that show it wholly: the leads of a contact show its summary as well. `complete`: the
    live generation is complete, so that the API serves it. `access`: the organization has access to the API.
    """

    heads: dict[GenerationId, Head | None]
    settled: set[GenerationId]
    live: GenerationId
    complete: bool
    organization_deleted: bool
    access: bool

    def shows(self, version: int) -> bool:
        """Returns whether readers see at least this version, now and after the promotion of another generation."""
        return self.complete and all(
            head is not None and head.version >= version and generation in self.settled
            for generation, head in self.heads.items()
        )


async def run_wait(arguments: argparse.Namespace, operator: Operator) -> int:
    """`wait`: returns 0 as soon as the version is visible, and 1 after the timeout, with the reason."""
    resource = BY_NOUN[arguments.kind]
    began = time.monotonic()
    seen = await until_shown(
        operator.store, resource, (arguments.organization, arguments.id), arguments.version, arguments.timeout
    )
    name = f"{resource.noun} {arguments.id}"
    if seen and seen.shows(arguments.version):
        shown = min(head.version for head in seen.heads.values() if head)
        newer = f", and {arguments.version} is older" if shown > arguments.version else ""
        operator.console.print(f"{name}: version {shown} is visible after {time.monotonic() - began:.1f} s{newer}")
        if not seen.access:
            operator.console.print(
                "  note: no key of its organization may read it, because API access is off or the organization was "
                f"never published (`show organization {arguments.organization}`)"
            )
        with suppress(ProjectorError):  # nobody has to know it
            if as_of := await copies.as_of(operator.store, await copies.require(operator.store)):
                operator.console.print(f"  data as of {utc(as_of)}: every change that Kafka held then is visible")
        return 0
    operator.console.print(f"{name}: version {arguments.version} is not visible after {arguments.timeout:g} s")
    for line in await _reasons(operator, resource, (arguments.organization, arguments.id), seen, arguments.version):
        operator.console.print(f"  {line}", markup=False)
    return 1


async def until_shown(
    store: Store, resource: Resource, ids: tuple[str, str], version: int, seconds: float
) -> Seen | None:
    """Look until an entity shows at least a version, for so many seconds; at least once. Returns what was seen last, or
    None if Redis could not be read or was empty: then it is asked again.

    `ids` are those of the organization and the entity.
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        seen = None
        with suppress(TimeoutError, ProjectorError):
            async with asyncio.timeout(_LOOK_SECONDS):
                seen = await _read(store, resource, ids)
        left = deadline - time.monotonic()
        if (seen and seen.shows(version)) or left <= 0:
            return seen
        await asyncio.sleep(min(pause, left))
        pause = min(1.5 * pause, _LONGEST_PAUSE)


async def _read(store: Store, resource: Resource, ids: tuple[str, str]) -> Seen:
    """Raises Refused if Redis is empty, and Unavailable."""
    record = await copies.require(store)
    owner, written = names.organization(ids[0]), record.state.written
    documents = [(b"GETRANGE", names.document(resource, owner, it, ids[1]), 0, HEAD - 1) for it in written]
    organization, *values = await store.ask([(b"GETRANGE", owner, 0, ACCESS.stop - 1), *documents])
    key = ":".join(ids).encode()
    settled = await store.run([calls.heads(resource, [key], (generation,)) for generation in written])
    return Seen(
        {it: read_head(value) if len(value) == HEAD else None for it, value in zip(written, values, strict=True)},
        {it for it, head in zip(written, settled, strict=True) if head.strip(b"\0")},
        record.state.live,
        record.serves,
        len(organization) >= HEAD and not read_head(organization).live,
        organization[ACCESS] == ACCESS_ON,
    )


async def _reasons(
    operator: Operator, resource: Resource, ids: tuple[str, str], seen: Seen | None, version: int
) -> list[str]:
    """Returns what is known about a version that has not come, and what to do."""
    found = await observe(operator.store, operator.settings)
    name, key, waiting = topic(operator.settings, resource), ":".join(ids), found.waiting
    lines = [*(_stored(seen, name, version) if seen else ()), *_positions(found, name, seen)]
    letters: list[DeadLetter] = []
    if found.redis:
        with suppress(TimeoutError, ProjectorError):
            async with asyncio.timeout(_LOOK_SECONDS):
                every = await dead_letters.all_dead_letters(operator.store)
                letters = [letter for letter in every if (letter.topic, letter.key) == (name, key)]
    lines += [f"dead letter {letter.field}: {letter.reason}" for letter in letters]
    problems, _ = status.judged(found)
    lines += [str(say(problem)) for problem in problems]
    if seen and seen.organization_deleted:
        lines.append("The organization is deleted, so none of its records is applied.")
    elif waiting is not None and not problems and not letters and not any(at.topic == name for at in waiting):
        lines.append(
            f"Every record of {name} is applied, and none with the message key {key} brought this version: look at "
            "what was published, and at LEADVIEW_TOPIC_PREFIX."
        )
    return lines


def _stored(seen: Seen, name: str, version: int) -> Iterator[str]:
    for generation, head in seen.heads.items():
        newer = number_of(generation) > number_of(seen.live)
        live = " (live)" if generation == seen.live else " (being filled)" if newer else ""
        rest = "" if head is None or generation in seen.settled else "; its leads do not show it yet"
        rest = "; this is enough" if head and head.version >= version and not rest else rest
        yield f"generation {number_of(generation)}{live}: {coordinates(head, name)}{rest}"


def _positions(found: Observation, name: str, seen: Seen | None) -> Iterator[str]:
    """Yields position and lag of the partition that the entity is in, as far as that is known; otherwise of all."""
    if found.kafka is None or found.redis is None:
        return
    heads = seen.heads.values() if seen else ()
    own = {Partition(name, head.partition) for head in heads if head}
    of_topic = {at: offsets for at, offsets in found.kafka.ranges.items() if at.topic == name}
    lags = found.lags or {}
    for at in sorted(own & of_topic.keys() or of_topic):
        position = found.redis.position(at)
        yield (
            f"{at.topic}:{at.partition}: position {position.offset if position else 'none'}, "
            f"end offset {of_topic[at][1]}, lag {lags.get(at, 0)}"
        )
