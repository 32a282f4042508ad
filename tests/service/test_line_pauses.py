"""How long a line waits between its attempts: while Redis cannot be reached, and after an operator's command."""

import asyncio
from uuid import uuid4

import pytest

from devstack.ports import free_port
from projector.kafka import fetching
from projector.kafka.source import Source
from projector.ledger import copies
from projector.ledger.ledger import Ledger
from projector.ledger.session import Session, Sessions
from projector.line.line import FIRST_PAUSE, LONGEST_PAUSE, Line
from projector.redis.store import Store
from projector.stop import Stop
from schemas import names, resources
from schemas.resources import ACCESS_KINDS
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.services import Kafka, RedisService
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, eventually

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


class ChangedAfterEachSession(Ledger):
    """Between the first sessions and what is written in them, a command changes the control record and closes the
    connections of all that write, as `promote` and `drop` do."""

    changes = 0

    async def open(self) -> Session:
        session = await super().open()
        if self.changes < ATTEMPTS:
            self.changes += 1
            await self._store.ask_one(b"HSET", names.CONTROL, b"stamp", session.stamp.next().text)
            await self._store.close_all_writers()
        return session


async def test_a_line_does_not_wait_if_a_command_has_changed_the_control_record(
    kafka: Kafka, redis_server: RedisService
) -> None:
    """A revocation that is published meanwhile holds at once, however many commands there are."""
    topics = Topics(kafka, f"changed-{uuid4().hex}.")
    topics.create(1)
    topics.publish([crm.organization()])
    settings = ProjectorSettings(
        kafka_bootstrap_servers=kafka.bootstrap_servers, redis_url=redis_server.url, topic_prefix=topics.prefix
    )
    store, stop = Store(settings), NotedPauses()
    await copies.current(store)
    ledger = ChangedAfterEachSession(store, Sessions(store), documents=False)
    line = Line("access", settings, ACCESS_KINDS, f"{topics.prefix}group", store, ledger)
    running = asyncio.create_task(line.run(stop))
    try:
        with redis_server.client() as client:
            stored = names.organization(crm.ORGANIZATION)
            await eventually(lambda: running.done() or client.exists(stored), "the organization is stored")
    finally:
        stop.set()
        await running
        await store.close()
    assert ledger.changes == ATTEMPTS
    assert stop.pauses == []


async def test_requests_for_records_hold_up_no_other_request(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers the requests of a connection one after the other."""
    monkeypatch.setattr(fetching, "LINGER_MS", int(2 * PATIENCE_SECONDS * 1000))
    Topics(kafka, topic_prefix).create(1)
    settings = ProjectorSettings(kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)

    async def on_revoked() -> None:
        pass

    source = Source(settings, [resources.LEAD], f"{topic_prefix}group", on_revoked)
    await source.start()
    try:
        await eventually(source.assigned, "the partition is assigned")
        at = dict.fromkeys(source.assigned(), 0)
        await source.seek(at)
        assert await source.poll(1, 0.5) == {}  # a request for records is under way now, or is about to be
        assert await source.topic_ids()
        assert await source.seek(at) == at
    finally:
        await source.stop()
