"""What a projector knows of its own health: its lines, the last sample, and whether its event loop turns.

The metrics server asks from its own threads. So it notices if the event loop stands still, or takes no sample.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

from prometheus_client import Metric
from prometheus_client.registry import Collector

from projector.health.sample import KafkaSample, RedisSample, Sample
from projector.health.sampler import Sampler
from projector.health.verdict import Verdict, WatchedLine
from projector.ledger.breaks import BREAKS
from projector.ledger.writers import Condition
from projector.problem import KINDS, OF_SERVERS, Problem
from projector.stop import Stop
from schemas import metrics
from schemas.settings import ProjectorSettings
from telemetry.instruments import family
from telemetry.metrics_server import Health

_NAN = float("nan")
_SAMPLE_LASTS_SECONDS = 20.0
_PULSE_SECONDS = 1.0
_STILL_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Watch(Collector):
    """Also a collector of Prometheus: `collect` is called for each scrape, in another thread."""

    def __init__(self, settings: ProjectorSettings, lines: Sequence[WatchedLine]) -> None:
        """`lines` may grow until the projector works."""
        self._settings = settings
        self._lines = lines
        self._turned_at = time.monotonic()
        self._verdict = Verdict(self._turned_at, settings.kafka_session_timeout)
        self._sample: Sample | None = None
        self._sampled: list[Problem] = []
        self._reported: dict[tuple[str, str], Problem] = {}
        self._complete: tuple[int, int] = (0, 0)
        self.waits_for: str | None = None
        """What the start waits for, in words."""

    def problems(self) -> list[Problem]:
        """Returns everything that is wrong now."""
        found = [problem for line in self._lines if (problem := line.health.problem())]
        if self.waits_for:
            found.append(Problem("redis_unknown", "start", f"the projector waits for Redis: {self.waits_for}"))
        return found + self._sampled

    def live(self) -> Health:
        """The answer to `/livez`: whether the event loop turns, whatever Redis and Kafka do."""
        still = time.monotonic() - self._turned_at
        if still < _STILL_SECONDS:
            return Health(True, {"status": "ok"})
        return Health(False, {"status": "unhealthy", "problems": [f"the event loop has stood still for {still:.0f} s"]})

    def health(self) -> Health:
        """The answer to `/healthz`: whether the projector does its work. It is starting until it has been measured."""
        texts = [problem.text for problem in self.problems()]
        if not self.live().healthy:
            texts.insert(0, "the event loop stands still")
        well = "ok" if self._sample and self._lines else "starting"
        return Health(not texts, {"status": "unhealthy" if texts else well, "problems": texts})

    def condition(self) -> Condition:
        """Returns what the heartbeat says."""
        measured_at, complete_until = self._complete
        problems = [problem for problem in self.problems() if problem.kind not in OF_SERVERS]
        return Condition(
            lines={line.health.name: line.health.state for line in self._lines},
            troubles={line.health.name: trouble for line in self._lines if (trouble := line.health.trouble)},
            partitions={line.health.name: len(line.assigned()) for line in self._lines},
            problems=[problem.text for problem in problems],
            kinds=[problem.kind for problem in problems],
            measured_at=measured_at,
            complete_until=complete_until,
        )

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are not counted but measured. What is not known is NaN or absent."""
        sample = self._sample
        if sample and time.monotonic() - sample.monotonic_at > _SAMPLE_LASTS_SECONDS:
            sample = None
        lags = (sample.lags if sample else None) or {}
        yield family(metrics.LAG, {(topic, str(number)): lag for (topic, number), lag in sorted(lags.items())})
        until = sample.complete_until if sample else None
        # While nothing waits, all that Kafka had was visible when the sample was taken.
        waits = until is not None and any(lags.values())
        age = max(0.0, time.time() - until / 1000) if until is not None and waits else 0.0
        yield family(metrics.UNAPPLIED_AGE, _NAN if until is None else age)
        yield from _parts(sample)
        count: dict[tuple[str, ...], float] = {(kind,): 0 for kind in KINDS}
        for problem in self.problems():
            count[(problem.kind,)] += 1
        yield family(metrics.PROBLEMS, count)
        lines = list(self._lines)
        assigned = {topic: 0 for line in lines for topic in line.topics}
        for line in lines:
            for partition in line.assigned():
                assigned[partition.topic] += 1
        yield family(metrics.PARTITIONS, {(topic,): number for topic, number in sorted(assigned.items())})
        yield family(metrics.LINE_STOPPED, {(line.health.name,): line.health.halted for line in lines})
        yield family(metrics.LINE_STANDING_BY, {(line.health.name,): line.health.stands_by for line in lines})

    async def run(self, stop: Stop) -> None:
        """Take samples until `stop` is set."""
        await Sampler(self._settings, self._taken).run(stop)

    async def beat(self, stop: Stop) -> None:
        """Note that the event loop turns, until `stop` is set."""
        while not stop.is_set():
            self._turned_at = time.monotonic()
            await stop.sleep(_PULSE_SECONDS)

    def _taken(self, sample: Sample) -> None:
        self._sampled = self._verdict.problems(sample, self._lines)
        self._sample = sample
        until = sample.complete_until
        if until is not None:
            self._complete = (sample.taken_at, until)
        self._report()

    def _report(self) -> None:
        """Log each problem once: when it begins, and when it has ended."""
        now = {problem.name: problem for problem in self.problems()}
        for name in now.keys() - self._reported.keys():
            logger.warning(now[name].text, extra={"problem": name[0]})
        for name in self._reported.keys() - now.keys():
            logger.info("no longer a problem: %s", self._reported[name].text, extra={"problem": name[0]})
        self._reported = now


def _parts(sample: Sample | None) -> Iterator[Metric]:
    redis = sample.redis if sample and isinstance(sample.redis, RedisSample) else None
    kafka = bool(sample and isinstance(sample.kafka, KafkaSample))
    yield family(metrics.MEASURED, {("kafka",): kafka, ("redis",): redis is not None})
    yield family(metrics.DEAD_LETTERS, redis.dead_letters if redis else _NAN)
    yield family(metrics.REDIS_MEMORY, redis.memory_ratio if redis else _NAN)
    record = redis.record if redis else None
    yield family(metrics.REBUILD_DUE, record.rebuild_due() if record else _NAN)
    if sample and (found := sample.breaks) is not None and isinstance(sample.kafka, KafkaSample):
        unverified: dict[tuple[str, ...], float] = {
            (topic.name, kind): 0 for topic in sample.kafka.topics for kind in BREAKS
        }
        yield family(metrics.UNVERIFIED_TOPIC, unverified | {(it.topic, it.kind): 1 for it in found})
    else:
        yield family(metrics.UNVERIFIED_TOPIC, {})


@asynccontextmanager
async def watching(watch: Watch) -> AsyncIterator[None]:
    """Sample and beat until the block ends."""
    ended = Stop()
    tasks = [asyncio.create_task(watch.run(ended)), asyncio.create_task(watch.beat(ended))]
    try:
        yield
    finally:
        ended.set()  # asyncio.wait_for, with which redis-py sends, may swallow a cancellation (Python 3.11)
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
