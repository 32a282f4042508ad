"""A live line that is behind yields to readers, for a minute at most; and what a cluster changes about it."""

import pytest

from projector.line.pace import FULL, YIELDING, YIELDING_ON_CLUSTER, Pace, Pacer
from projector.redis.store import Store
from schemas import names
from schemas.settings import ProjectorSettings
from tests.harness.histories import now_ms
from tests.harness.projection import Projection
from tests.harness.records import Records

BATCH = 500
REPORT = 700


@pytest.fixture
def pacer(alone: Projection) -> "TimedPacer":
    return TimedPacer(alone.store, ProjectorSettings(redis_url=alone.settings.redis_url, batch_records=BATCH))


class TimedPacer:
    """A pacer whose clock is part of each question."""

    def __init__(self, store: Store, settings: ProjectorSettings) -> None:
        self._now = 0.0
        self._pacer = Pacer.of_live_line(store, settings, clock=lambda: self._now)

    async def at(self, now: float, records: int) -> Pace:
        self._now = now
        return await self._pacer.pace(records)


def report(microseconds: int = REPORT, ago: int = -3_600_000) -> str:
    """What a worker of the API stores. `ago` is in milliseconds; by default the report is new during the whole test."""
    return f"{microseconds} {now_ms() - ago}"


async def test_line_yields_while_it_is_behind_and_the_api_answers(pacer: TimedPacer, records: Records) -> None:
    for second, (stored, read, pace, why) in enumerate(
        (
            (report(), BATCH - 1, FULL, "it is not behind"),
            (report(), BATCH, YIELDING, "it is behind"),
            (report(0), BATCH, FULL, "the API has no requests"),
            (report(ago=60_000), BATCH, FULL, "the API has ended"),
            ("not a number", BATCH, FULL, "nobody has stored this"),
        )
    ):
        records.client.hset(names.LATENCY, "worker", stored)
        assert await pacer.at(second, read) == pace, why
    records.client.delete(names.LATENCY)
    assert await pacer.at(5, BATCH) == FULL, "there is no API"


async def test_after_a_minute_it_writes_at_full_speed_until_it_has_caught_up(
    pacer: TimedPacer, records: Records
) -> None:
    records.client.hset(names.LATENCY, "worker", report())
    paces = [await pacer.at(now, BATCH) for now in (10, 40, 70, 71, 1000)]
    assert paces == [YIELDING, YIELDING, YIELDING, FULL, FULL]
    assert await pacer.at(1001, 1) == FULL
    assert await pacer.at(1002, BATCH) == YIELDING, "this is another backlog"


async def test_the_masters_of_a_cluster_share_each_slice(alone: Projection, sharded: Projection) -> None:
    """None of them is busy for long: a live line does not yield, and a replay has larger batches."""
    for projection, live, replay in ((alone, YIELDING, YIELDING), (sharded, FULL, YIELDING_ON_CLUSTER)):
        store, settings = projection.store, projection.settings
        await store.ask_one(b"HSET", names.LATENCY, b"worker", report().encode())
        assert await TimedPacer(store, settings).at(0, settings.batch_records) == live
        assert await Pacer.of_replay(store, 0.01).pace(1) == replay
        assert await Pacer.of_replay(store, 0).pace(1) == FULL
