"""What the files of Redis hold after an erasure, and when that ends: docs/production.md tells operators so."""

from pathlib import Path

from devstack.redis_server import RedisServer
from schemas import resources
from tests.harness import crm
from tests.harness.projection import open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

NAME = "Anastasia-Petrova"


async def test_the_append_only_file_holds_what_was_erased_until_it_is_rewritten(tmp_path: Path) -> None:
    with RedisServer.start(tmp_path / "redis", appendonly=True, options=["--appendfsync", "always"]) as server:
        async with open_projection(RedisService("binary", server.url)) as projection:
            await projection.apply(crm.contact(1, first_name=NAME).record(0), crm.lead(1).record(0))
            await projection.apply(crm.deleted(resources.CONTACT, 2).record(1))
            assert holds(tmp_path, NAME)
            with server.client() as client:
                client.bgrewriteaof()
                wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewrite has ended")
            assert not holds(tmp_path, NAME)


def holds(directory: Path, text: str) -> bool:
    """Returns whether a file of Redis contains this text."""
    return any(text.encode() in file.read_bytes() for file in directory.rglob("*") if file.is_file())
