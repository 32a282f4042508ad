"""How long a line waits between its attempts while Redis cannot be reached."""

import pytest

from devstack.ports import free_port
from projector.ledger.ledger import Ledger
from projector.ledger.writers import Sessions
from projector.line.line import FIRST_PAUSE, LONGEST_PAUSE, Line
from projector.redis.store import Store
from projector.stop import Stop
from schemas.resources import ACCESS_KINDS
from schemas.settings import ProjectorSettings
from tests.harness.services import Kafka
from tests.harness.topics import Topics

pytestmark = pytest.mark.apache

ATTEMPTS = 8


class NotedPauses(Stop):
    """Notes each pause instead of waiting, and is set after `ATTEMPTS` of them."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == ATTEMPTS:
            self.set()


async def test_a_line_tries_again_within_a_second_however_long_the_outage_was(kafka: Kafka, topic_prefix: str) -> None:
    """A key that was revoked during the outage works until then."""
    Topics(kafka, topic_prefix).create(1)
    settings = ProjectorSettings(
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        redis_url=f"redis://127.0.0.1:{free_port()}/0",
        topic_prefix=topic_prefix,
    )
    store, stop = Store(settings), NotedPauses()
    line = Line(
        "access",
        settings,
        ACCESS_KINDS,
        f"{topic_prefix}group",
        store,
        Ledger(store, Sessions(store), documents=False),
    )
    try:
        await line.run(stop)
    finally:
        await store.close()
    assert stop.pauses[0] == FIRST_PAUSE
    assert stop.pauses == sorted(stop.pauses)
    assert stop.pauses[-1] == max(stop.pauses) == LONGEST_PAUSE == 1.0
