"""`usage`: how often each key of an organization was used, and when last, as the API's workers have counted it."""

import argparse

import msgspec
from rich.console import Console
from rich.table import Column

from operate.commands.argument_types import uuid
from operate.commands.operator import Operator, table
from projector.redis.store import Store
from schemas import names
from schemas.layouts import API_KEY_HASH
from schemas.words import utc

_PREFIX = 12


class KeyUsage(msgspec.Struct, frozen=True):
    """The use of a key. Times are in milliseconds since 1970; None if it was never used since counts are kept.

    `api_keys` are the ids of the API keys with this hash; none if they were deleted since.
    """

    hash: str
    api_keys: list[str]
    requests: int = 0
    refusals: int = 0
    """Requests that were answered with 401, 403 or 429."""
    last_used: int | None = None
    counted_since: int | None = None


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the organization."""
    command.add_argument("organization", type=uuid)
    command.add_argument("--json", action="store_true")


async def run_usage(arguments: argparse.Namespace, operator: Operator) -> int:
    """`usage`: print the use of each key of an organization."""
    found = await read(operator.store, arguments.organization)
    if operator.json:
        operator.print_json(found)
    else:
        _print(found, operator.console)
    return 0


async def read(store: Store, organization_id: str) -> list[KeyUsage]:
    """Returns the use of each key, the one that was used last first. It looks at every name in Redis. Raises
    Unavailable.
    """
    ids: dict[str, list[str]] = {}
    owner = names.organization(organization_id)
    async for keys in store.scan(owner + b"a*"):
        hashes = await store.ask([(b"GETRANGE", key, API_KEY_HASH, -1) for key in keys])
        for key, key_hash in zip(keys, hashes, strict=True):
            if (match := names.OF_ACCESS.fullmatch(key)) and key_hash:
                ids.setdefault(key_hash.decode(), []).append(names.long_id(match[2]))
    counts = await store.read_hash(names.usage(owner))
    found = [
        KeyUsage(key_hash, sorted(set(ids.get(key_hash, []))), *map(int, counts.get(key_hash, b"").split()))
        for key_hash in ids.keys() | counts.keys()
    ]
    return sorted(found, key=lambda usage: (-(usage.last_used or 0), usage.hash))


def _print(found: list[KeyUsage], console: Console) -> None:
    if not found:
        console.print("This organization has no API keys in Redis.")
        return
    texts = [Column(name, no_wrap=True) for name in ("API key", "hash")]
    figures = [Column(name, justify="right", no_wrap=True) for name in ("requests", "refused", "last used")]
    shown = table(*texts, *figures)
    for usage in found:
        last = utc(usage.last_used) if usage.last_used else "no counts"
        ids = " ".join(usage.api_keys) or "deleted"
        shown.add_row(ids, usage.hash[:_PREFIX], f"{usage.requests:,}", f"{usage.refusals:,}", last)
    console.print(shown)
    console.print("The API writes these counts once a minute, and keeps them for 90 days after the last use.")
