"""`Data-As-Of`: every change that Kafka held at this moment is in the response."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_server import RedisServer
from projector.errors import Unavailable
from projector.kafka.reader import open_reader
from projector.ledger.control import NO_ID
from projector.ledger.writers import writing
from projector.redis import scripts
from projector.redis.scripts import CompleteRow, EndRow
from projector.stop import Stop
from projector.upkeep.as_of import DataAsOf
from schemas import api_keys, names, resources
from schemas.heartbeat import APART_MS
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.api_server import LEADS, ApiServer, Response
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.services import Kafka, RedisService
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_for, wait_until
from tests.service.conftest import new_leadview

SAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "read_as_of.py"
NEVER = datetime.min.replace(tzinfo=UTC)


def lead(number: int) -> Message:
    return crm.lead(number, referrer=f"version {number}")


@pytest.fixture
def leadview(leadview_on_cluster: Leadview) -> Leadview:
    return with_a_lead(leadview_on_cluster)


def with_a_lead(leadview: Leadview) -> Leadview:
    limits = {"quota": 1_000_000, "window_seconds": 1}
    unlimited = crm.organization(rate_limits={"key": limits, "organization": limits})
    leadview.publish(unlimited, crm.api_key(), lead(1))
    return leadview


def get(api: ApiServer, **headers: str) -> Response:
    return api.get(LEADS + crm.LEAD, key=crm.KEY, headers=headers)


def as_of(response: Response) -> datetime:
    """Returns the time of the header, which is in UTC with milliseconds; NEVER if there is none."""
    text = response.headers.get("data-as-of")
    if text is None:
        return NEVER
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text), text
    return datetime.fromisoformat(text)


def version(response: Response) -> int:
    return int(response.json["referrer"].removeprefix("version ")) if response.status == 200 else 0


def publish_and_read(leadview: Leadview, api: ApiServer, change: Message) -> Response:
    leadview.publish(change)
    changed_at = datetime.now(UTC)
    return wait_for(lambda: get(api), lambda last: as_of(last) >= changed_at, "a response says that it has the change")


def test_tool_reads_its_own_write(leadview: Leadview) -> None:
    leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "it is served")
        assert version(publish_and_read(leadview, api, lead(2))) == 2
        last = publish_and_read(leadview, api, lead(3))
        assert version(last) == 3
        unchanged = get(api, **{"If-None-Match": last.headers["etag"]})
        assert (unchanged.status, as_of(unchanged) >= as_of(last)) == (304, True)
        others = [api.get(LEADS + crm.LEAD, key=api_keys.mint(crm.ORGANIZATION)), api.get(LEADS + "1", key=crm.KEY)]
        assert [(other.status, as_of(other)) for other in others] == [(401, NEVER), (400, NEVER)]
        leadview.publish(lead(4))
        assert b'"version 4"' in run_sample(api, datetime.now(UTC))
        last = publish_and_read(leadview, api, crm.deleted(resources.LEAD, 5))
        assert last.status == 404
        assert run_sample(api, as_of(last)) == b"there is no such lead\n"
        with sample(api.port, as_of(last), key=api_keys.mint(crm.OTHER_ORGANIZATION)) as process:
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert (errors[:6], process.returncode != 0, b"Traceback" in errors) == (b"401: {", True, False)


@pytest.mark.long
def test_change_is_in_the_response_with_the_embedded_kafka_as_well(
    embedded_kafka: Kafka, redis_server: RedisService, topic_prefix: str, tmp_path: Path
) -> None:
    with new_leadview(embedded_kafka, topic_prefix, redis_server, tmp_path) as leadview, leadview.api() as api:
        with_a_lead(leadview).start("run")
        wait_until(lambda: get(api).status == 200, "it is served")
        assert version(publish_and_read(leadview, api, lead(2))) == 2


def sample(port: int, changed_at: datetime, key: str = crm.KEY) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SAMPLE), crm.LEAD, changed_at.isoformat()]
    environment = {"API": f"http://127.0.0.1:{port}/", "API_KEY": key}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_sample(api: ApiServer, changed_at: datetime) -> bytes:
    """Returns what it prints. Its first connection is lost."""
    with faulty_proxy(api.port) as proxy:
        proxy.faults = Faults(refusing=True)
        with sample(proxy.port, changed_at) as process:
            assert process.stderr
            assert b"asking again" in process.stderr.readline()
            proxy.faults = Faults()
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    return output


def test_data_as_of_goes_when_no_projector_looks(leadview: Leadview) -> None:
    """Without projectors it says nothing about what was published since, and then nothing at all."""
    projector = leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: as_of(get(api)) > NEVER, "it is known")
        stored = [names.copy(names.AS_OF, tag.encode()) for tag in control.read_all(leadview.redis)]
        wait_until(lambda: all(0 < leadview.redis.pttl(name) <= 20_000 for name in stored), "all shards know it")
        projector.stop()
        leadview.publish(lead(2))
        changed_at = datetime.now(UTC)
        assert as_of(get(api)) < changed_at
        for second, name in enumerate(reversed(stored), 1):
            leadview.redis.set(name, second * 1000)
        said = "data as of 1970-01-01T00:00:01.000Z"  # the earliest of all shards
        assert leadview.run("status", "--json").json["data_as_of"] == said.rpartition(" ")[2]
        assert said in leadview.run("status")
        for name in stored:
            leadview.redis.pexpire(name, 1)
        assert "data as of unknown" in leadview.run("status")
        wait_until(lambda: as_of(get(api)) == NEVER, "what was stored has expired")
        leadview.start("run")
        wait_until(lambda: as_of(get(api)) >= changed_at, "it is known again")
        assert version(get(api)) == 2


async def test_moment_is_earlier_than_its_end_offsets(kafka: Kafka, topic_prefix: str, own_redis: RedisServer) -> None:
    """What is published while the sampler asks Redis for the time is not held before that time. No line applies
    anything here: the test sets the position, and the time moves on although newer changes have arrived meanwhile.
    """
    topics = Topics(kafka, topic_prefix)
    topics.create(1)
    with faulty_proxy(own_redis.port) as proxy, own_redis.client() as client:
        settings = ProjectorSettings(
            redis_url=proxy.url, kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix
        )
        async with writing(settings, "run") as here, open_reader(settings, [resources.LEAD]) as reader:
            await control.complete(here.store)
            [topic] = await reader.present()

            def apply(end: int) -> None:
                client.hset(names.CONTROL, names.position(topic.name, 0), f"{end} 1 1 0 {topic.id or NO_ID}")

            async def stored() -> int:
                """Returns the time that is stored, after at least one more whole sample."""
                for _ in range(3):
                    client.persist(names.AS_OF)
                    await eventually(lambda: client.pttl(names.AS_OF) > 0, "the sampler stores what it knows")
                return int(client.get(names.AS_OF))

            topics.publish([lead(1)])
            apply(1)
            stop = Stop()
            sampling = asyncio.create_task(DataAsOf(settings, here).run(stop))
            await eventually(lambda: client.get(names.AS_OF), "the first sample is stored")
            proxy.faults = Faults(held=names.AS_OF)
            await eventually(lambda: proxy.holding, "the sampler asks for the time")
            topics.publish([lead(2)])
            published_at = int(datetime.now(UTC).timestamp() * 1000)
            proxy.faults = Faults()
            assert await stored() < published_at
            topics.publish([lead(3)])
            assert await stored() < published_at
            apply(2)
            await eventually(lambda: int(client.get(names.AS_OF)) >= published_at, "it has moved on")
            stop.set()
            await sampling


async def test_data_as_of_begins_when_kafka_is_there(kafka: Kafka, topic_prefix: str, own_redis: RedisServer) -> None:
    """A reader that could not be started is replaced by another one."""
    Topics(kafka, topic_prefix).create(1)
    with faulty_proxy(int(kafka.bootstrap_servers.rpartition(":")[2])) as proxy:
        brokers = f"127.0.0.1:{proxy.port}"
        settings = ProjectorSettings(
            redis_url=own_redis.url, kafka_bootstrap_servers=brokers, topic_prefix=topic_prefix
        )
        async with writing(settings, "run") as here:
            await control.complete(here.store)
            sampler = DataAsOf(settings, here)
            proxy.faults = Faults(refusing=True)
            with pytest.raises(Unavailable):
                await sampler._turn()
            proxy.faults = Faults()
            await sampler._turn()
            assert sampler._latest
            await sampler._close()


async def _stored(
    projection: Projection, tag: bytes, moment: int, *ends: EndRow, topics: Sequence[CompleteRow] = (), own: int = 0
) -> Any:
    """Returns the reply without the time. The last ends, `own` of them, are those of the topics' own samples."""
    command = scripts.store_as_of(
        copy=names.copy(names.CONTROL, tag),
        as_of=names.copy(names.AS_OF, tag),
        complete=names.copy(names.COMPLETE, tag),
        moment=moment,
        lasts=86_400_000 if moment else 0,
        apart=APART_MS,
        hidden=False,
        number=len(topics),
        count=len(ends) - own,
        topics=topics,
        ends=ends,
    )
    [(_, *reply)] = await projection.store.run([command])
    return reply


async def test_data_as_of_is_stored_only_in_a_complete_shard(projection: Projection) -> None:
    """Only in a shard that is complete, and that has reached the ends of the same topics."""
    [tag, *_] = (await control.complete(projection.store)).copies

    async def store(moment: int, *ends: EndRow) -> int:
        return int((await _stored(projection, tag, moment, *ends))[0])

    await projection.store.ask_one(
        b"HSET", names.copy(names.CONTROL, tag), "crm.leads:0", b"7 1 1 0 %b" % NO_ID.encode()
    )
    reached = EndRow("crm.leads:0", 7, NO_ID)
    for moment, ends, expected, why in (
        (100, [EndRow("crm.leads:0", 8, NO_ID)], 0, "a record is missing"),
        (100, [reached, EndRow("crm.leads:1", 1, NO_ID)], 0, "nothing of a partition is applied"),
        (100, [EndRow("crm.leads:0", 7, "another")], 0, "the topic was created again"),
        (100, [reached], 100, "it has reached all ends"),
        (90, [reached], 100, "it does not go back"),
        (200, [EndRow("crm.leads:0", 8, NO_ID)], 100, "it stands still"),
        (later(APART_MS), [reached], 100, "the clock of this server is behind"),
    ):
        assert await store(moment, *ends) == expected, why
    as_of = names.copy(names.AS_OF, tag)
    a_little = later(APART_MS - 500)
    await projection.store.ask_one(b"SET", as_of, a_little)
    assert await store(200, reached) == a_little, "the clock was set back a little: it does not go back"
    assert await projection.store.run([scripts.read_as_of(as_of=as_of)]) == [None], "and nothing is said meanwhile"
    await projection.store.ask_one(b"SET", as_of, later(3_600_000))
    assert await store(200, reached) == 200, "the clock was set back an hour: what is later is none"
    assert await projection.store.run([scripts.read_as_of(as_of=as_of)]) == [200]
    await projection.store.ask_one(b"HSET", names.copy(names.CONTROL, tag), "filled", b"")
    assert (await _stored(projection, tag, 300, reached))[0] == 0
    assert await projection.store.ask_one(b"GET", names.copy(names.AS_OF, tag)) is None


def later(milliseconds: int) -> int:
    """Returns the time that it is so much later, in ms since 1970."""
    return int(datetime.now(UTC).timestamp() * 1000) + milliseconds


async def test_there_is_no_sample_while_clocks_differ(kafka: Kafka, topic_prefix: str, own_redis: RedisServer) -> None:
    """Whichever of the two is wrong. Then the moment is the earlier time of both, and never in the future."""
    Topics(kafka, topic_prefix).create(1)
    settings = ProjectorSettings(
        redis_url=own_redis.url, kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix
    )
    ahead = 0.0
    with own_redis.client() as client:
        async with writing(settings, "run") as here:
            await control.complete(here.store)
            sampler = DataAsOf(settings, here, lambda: datetime.now(UTC).timestamp() + ahead)
            try:
                for ahead in (0.0, -1.0, 1.0, -3600.0, 3600.0, 0.0):
                    began = later(0)
                    await sampler._turn()  # it stores the sample before as well
                    sampled, before = sampler._latest, int(client.get(names.AS_OF) or 0)
                    await sampler._turn()
                    stored = int(client.get(names.AS_OF) or 0)
                    assert (sampled is None) is (abs(ahead) > 2), ahead
                    assert stored == max(before, sampled.moment if sampled else 0)
                    assert stored <= later(0)
                    if sampled:
                        assert sampled.moment >= began + 1000 * min(ahead, 0)
            finally:
                await sampler._close()


def test_no_response_is_from_the_future(leadview: Leadview) -> None:
    """What is stored is from before the clock of Redis was set back, and no projector runs; `status` knows no more."""
    projector = leadview.start("run")
    with leadview.api() as api:
        wait_until(lambda: as_of(get(api)) > NEVER, "it is known")
        projector.stop()
        stored = [names.copy(names.AS_OF, tag.encode()) for tag in control.read_all(leadview.redis)]
        for ahead, is_told in ((3_600_000, False), (-3_600_000, True), (3_600_000, False)):
            for name in stored:
                leadview.redis.set(name, later(ahead))
            assert (as_of(get(api)) > NEVER) is is_told
            assert (leadview.run("status", "--json").json["data_as_of"] is not None) is is_told


async def test_moment_of_a_topic_moves_only_while_it_is_complete(projection: Projection) -> None:
    """Each moves forward by itself, unless it was not complete for longer than its deletions are kept: then it stays
    until its break was noted.
    """
    [tag, *_] = (await control.complete(projection.store)).copies
    now, minute = int(datetime.now(UTC).timestamp() * 1000), 60_000
    copy, complete = names.copy(names.CONTROL, tag), names.copy(names.COMPLETE, tag)
    await projection.store.ask_one(b"HSET", copy, "a:0", b"7 1 1 0 -", "b:1", b"5 1 1 0 -")
    a, b = EndRow("a:0", 7, NO_ID), EndRow("b:1", 6, NO_ID)

    async def store(moment: int, *ends: EndRow, own: int = 0, **rows: tuple[int, ...]) -> tuple[list[int], list[Any]]:
        topics = [CompleteRow(name, minute, *row) for name, row in rows.items()]
        _, moments, missed = await _stored(projection, tag, moment, *ends, topics=topics, own=own)
        return [min(0, moment - now) for moment in moments], missed

    await projection.store.ask_one(b"HSET", complete, "begun", now - 3000)
    begun = await store(0, a=(0, 0), b=(now - 5000, 0), c=(now - 1, 0))
    assert begun == ([-3000, -5000, -3000], []), "they begin with the copy, or earlier, with what others have"
    assert await store(0, d=(0, 0), e=(now - 5000, 0)) == ([0, -5000], []), "a topic that is new later begins now"
    await projection.store.ask_one(b"HSET", complete, "a", now - 9000, "b", now - 9000)
    assert await store(now - 8000, a, b, a=(0, 0), b=(0, 0)) == ([-8000, -9000], []), "b is not at its end"
    own = {"a": (0, 0, now - 7000), "b": (0, 0)}
    assert await store(now - 8000, a, b, a, own=1, **own) == ([-7000, -9000], []), "a has a sample of its own"
    await projection.store.ask_one(b"HSET", complete, "b", now - 2 * minute)
    reached = EndRow("b:1", 5, NO_ID)
    late = await store(now - 1000, reached, b=(0, 0))
    assert late == ([-2 * minute], [b"b", now - 2 * minute]), "it stays, although the end is reached"
    assert await store(now - 1000, reached, b=(0, now - 1)) == late, "another moment was noted"
    assert await store(0, b=(0, now - 2 * minute)) == ([0], []), "its break was noted"
    await projection.store.ask_one(b"HSET", complete, "b", now + 10 * minute)
    assert await store(now - 1000, reached, b=(0, 0)) == ([0], [b"b", now + 10 * minute]), "another clock"
