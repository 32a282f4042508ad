"""Knows the health of its own projector: its lines, the last observation, and whether its event loop turns.

The metrics server asks from its own threads. So it notices if the event loop stands still, or observes nothing.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from projector.errors import Refused
from projector.health.judge import Lasting, WatchedLine, causes, is_elsewhere, merged, notes, of_records
from projector.health.observe import Observation, Observer
from projector.kafka.client import principal
from projector.ledger.breaks import BREAKS
from projector.liveness import LineHealth, WorkHealth
from projector.problem import (
    ClockDiffers,
    DocumentsAsBefore,
    KafkaDenies,
    KafkaUnknown,
    OfLine,
    OlderPublished,
    Problem,
    RebuildDue,
    RedisNearlyFull,
    RedisUnknown,
    lasting,
    seconds_of,
)
from projector.redis.store import Store
from projector.stop import Stop
from projector.words import say
from runtime.instruments import family
from runtime.metrics_port import CannotListen, HealthAnswer, MetricsServer, responds
from schemas import metrics
from schemas.heartbeat import Condition, HaltedLine, StandingByLine
from schemas.settings import ProjectorSettings

_NAN = float("nan")
_EVERY_SECONDS = 2.0
_OFTEN, _MOST_SELDOM = 4, 4
"""Up to four projectors observe every two seconds. With more of them, each waits longer, at most four times as long."""
_PATIENCE_SECONDS = 5.0
_OBSERVATION_LASTS_SECONDS = 20.0
_PULSE_SECONDS = 1.0
_STILL_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Watch(Collector):
    """Judges the health of its projector. Also a collector of Prometheus: `collect` is called for each scrape, in
    another thread.
    """

    def __init__(self, settings: ProjectorSettings, lines: Sequence[WatchedLine]) -> None:
        """`lines` may grow until the projector works."""
        self._settings = settings
        self._principal = principal(settings)
        self._lines = lines
        self._turned_at = time.monotonic()
        self._lasting = Lasting(self._turned_at, settings.kafka_session_timeout)
        self._observed: tuple[float, Observation] | None = None
        self._found: list[Problem] = []
        self._logged: dict[tuple[str, str], Problem] = {}
        self._complete: tuple[int, int] = (0, 0)
        self.jobs = WorkHealth("jobs")
        self.waits_for: str | None = None
        """Words for what the start waits for; None if it does not wait."""

    def problems(self) -> list[Problem]:
        """Returns what is wrong now, without what only follows from it."""
        healths: list[LineHealth | WorkHealth] = [*(line.health for line in self._lines), self.jobs]
        found = [it for health in healths if (it := health.problem())]
        if self.waits_for and not any(isinstance(it, RedisUnknown) for it in self._found):
            found.append(RedisUnknown(self.waits_for))
        for number, it in enumerate(found):
            if isinstance(it, KafkaDenies):
                found[number] = replace(it, right=replace(it.right, principal=self._principal))
        return causes(merged(found + self._found))

    def live(self) -> HealthAnswer:
        """Returns the answer to `/livez`: whether the event loop turns, whatever Redis and Kafka do."""
        still = time.monotonic() - self._turned_at
        if still < _STILL_SECONDS:
            return HealthAnswer(True, {"status": "ok"})
        return HealthAnswer(
            False, {"status": "unhealthy", "problems": [f"the event loop has stood still for {still:.0f} s"]}
        )

    def health(self) -> HealthAnswer:
        """Returns the answer to `/healthz`: whether the projector does its work. Until the first observation, it is
        starting.
        """
        texts = [str(say(problem)) for problem in self.problems()]
        if not self.live().healthy:
            texts.insert(0, "the event loop stands still")
        well = "ok" if self._observed and self._lines else "starting"
        return HealthAnswer(not texts, {"status": "unhealthy" if texts else well, "problems": texts})

    def condition(self) -> Condition:
        """Returns what the heartbeat says."""
        measured_at, complete_until = self._complete
        differing = next((it.clocks for it in self._found if isinstance(it, ClockDiffers)), None)
        # `status` asks the servers itself, and finds what anybody sees there. But it may ask other servers.
        servers = RedisUnknown | KafkaUnknown | KafkaDenies
        own = [it for it in self.problems() if isinstance(it, OfLine | servers) or is_elsewhere(it)]
        return Condition(
            lines={line.health.name: line.health.state for line in self._lines},
            troubles={line.health.name: trouble for line in self._lines if (trouble := line.health.trouble)},
            partitions={line.health.name: len(line.assigned()) for line in self._lines},
            problems=[str(say(lasting(problem, 0.0))) for problem in own],
            kinds=[problem.label for problem in own],
            of_lines=[problem.line if isinstance(problem, OfLine) else "" for problem in own],
            seconds=[round(seconds_of(problem), 1) for problem in own],
            hindered=[line.health.name for line in self._lines if line.health.unavailable],
            members=[line.member_id for line in self._lines if line.member_id],
            measured_at=measured_at,
            complete_until=complete_until,
            clocks=differing,
            misplaced=[topic for line in self._lines for topic in line.misplaced()],
            rights=[it.right for it in own if isinstance(it, KafkaDenies)],
            prefix=self._settings.topic_prefix,
            group=self._settings.group_id,
            expected=self._settings.expected_projectors,
        )

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are not counted but measured. What is not known is NaN or absent."""
        at, newest = self._observed or (0.0, None)
        found = newest if newest and time.monotonic() - at <= _OBSERVATION_LASTS_SECONDS else Observation(at=0)
        lags = found.lags or {}
        yield family(metrics.LAG, {(topic, str(number)): lag for (topic, number), lag in sorted(lags.items())})
        until = found.complete_until
        # While nothing waits, all that Kafka had was visible when it was observed.
        age = max(0.0, time.time() - until / 1000) if until is not None and any(lags.values()) else 0.0
        yield family(metrics.UNAPPLIED_AGE, _NAN if until is None else age)
        yield from _parts(found)
        count: dict[tuple[str, ...], float] = {(label,): 0 for label in metrics.PROBLEM_LABELS}
        for problem in self.problems():
            count[(problem.label,)] += len(problem.subjects)
        yield family(metrics.PROBLEMS, count)
        lines = list(self._lines)
        assigned = {topic: 0 for line in lines for topic in line.topics}
        for line in lines:
            for partition in line.assigned():
                assigned[partition.topic] += 1
        yield family(metrics.PARTITIONS, {(topic,): number for topic, number in sorted(assigned.items())})
        troubles = {(line.health.name,): line.health.trouble for line in lines}
        yield family(metrics.LINE_STOPPED, {name: isinstance(it, HaltedLine) for name, it in troubles.items()})
        yield family(metrics.LINE_STANDING_BY, {name: isinstance(it, StandingByLine) for name, it in troubles.items()})

    async def run(self, stop: Stop) -> None:
        """Observe every two seconds until `stop` is set; less often if there are many projectors."""
        store = Store(self._settings)
        observer = Observer(store, self._settings, _PATIENCE_SECONDS)
        try:
            while not stop.is_set():
                found = await observer.observe()
                self._take(found, time.monotonic())
                await stop.sleep(_pause(found))
        finally:
            await observer.close()
            await store.close()

    async def beat(self, stop: Stop) -> None:
        """Note that the event loop turns, until `stop` is set."""
        while not stop.is_set():
            self._turned_at = time.monotonic()
            await stop.sleep(_PULSE_SECONDS)

    def _take(self, found: Observation, now: float) -> None:
        self._found = self._lasting.problems(found, self._lines, now)
        self._observed = now, found
        if (until := found.complete_until) is not None:
            self._complete = (int(found.at), until)
        self._report(found)

    def _report(self, found: Observation) -> None:
        """Log each problem once, when it begins and when it has ended. A rebuild that is due, and memory that is nearly
        full, are logged as well.
        """
        due = [it for it in notes(found) if isinstance(it, RebuildDue | RedisNearlyFull)]
        now = {(it.label, subject): it for it in [*self.problems(), *due] for subject in it.subjects}
        for it in {now[name] for name in now.keys() - self._logged.keys()}:
            logger.warning(str(say(it)), extra={"problem": it.label})
        for it in {self._logged[name] for name in self._logged.keys() - now.keys()}:
            logger.info("no longer a problem: %s", say(it), extra={"problem": it.label})
        self._logged = now


def _pause(found: Observation) -> float:
    """Returns for how many seconds nothing is observed. Many projectors see the same, so each looks less often."""
    living = len(found.redis.living) if found.redis else 0
    return _EVERY_SECONDS * min(max(1.0, living / _OFTEN), _MOST_SELDOM)


def _parts(found: Observation) -> Iterator[Metric]:
    redis, record = found.redis, found.redis.record if found.redis else None
    yield family(metrics.MEASURED, {("kafka",): bool(found.kafka), ("redis",): bool(redis)})
    yield family(metrics.DEAD_LETTERS, redis.dead_letters if redis else _NAN)
    wrong = {type(it): it for it in of_records(redis)} if redis else {}
    for metric, kind in ((metrics.DOCUMENTS_AS_BEFORE, DocumentsAsBefore), (metrics.OLDER_PUBLISHED, OlderPublished)):
        match wrong.get(kind):
            case DocumentsAsBefore(entities):
                count = float(len(entities))
            case OlderPublished(entities, _, more):
                count = float(len(entities) + more)
            case _:
                count = 0 if redis else _NAN
        yield family(metric, count)
    yield family(metrics.REDIS_MEMORY, redis.used if redis else _NAN)
    yield family(metrics.REBUILD_DUE, record.rebuild_due() if record else _NAN)
    unverified: dict[tuple[str, ...], float] = {}
    if found.kafka and (lost := found.breaks) is not None:
        unverified = {(topic.name, kind): 0 for topic in found.kafka.topics for kind in BREAKS}
        unverified |= {at: 1 for it in lost for at in unverified if at[1] == it.kind and it.topic in ("", at[0])}
    yield family(metrics.UNVERIFIED_TOPIC, unverified)
    open_seconds: dict[tuple[str, ...], float] = {}
    if found.kafka and found.oldest is not None:
        open_seconds = {(topic.name,): 0.0 for topic in found.kafka.topics}
        for at, transaction in found.open_transactions.items():
            seconds = time.time() - transaction.since / 1000
            open_seconds[(at.topic,)] = max(open_seconds[(at.topic,)], seconds)
    yield family(metrics.OPEN_TRANSACTION, open_seconds)


@contextmanager
def metrics_port(
    settings: ProjectorSettings,
    registry: CollectorRegistry,
    health: Callable[[], HealthAnswer],
    live: Callable[[], HealthAnswer] = responds,
) -> Iterator[None]:
    """Serve metrics and health until the block ends, if the settings have a port for them. Raises Refused if it is not
    free.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        server = MetricsServer(settings.metrics_host, settings.metrics_port, registry, health, live=live)
    except CannotListen as error:
        raise Refused(str(error)) from error
    try:
        yield
    finally:
        server.close()


@asynccontextmanager
async def watching(watch: Watch) -> AsyncIterator[None]:
    """Sample and beat until the block ends."""
    ended = Stop()
    tasks = [asyncio.create_task(watch.run(ended)), asyncio.create_task(watch.beat(ended))]
    try:
        yield
    finally:
        ended.set()  # this ends the loops of both; to cancel them only interrupts what they wait for
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
