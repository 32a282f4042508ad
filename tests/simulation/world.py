"""A world: hosts with projectors, API workers, brokers and Redis, and who publishes and reads.

Everything in it follows from the seed. The history of what happened is the one of `tests/chaos`, which judges it.
"""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

import projector.run
from api.app import Api
from api.edge import Edge
from projector.kafka.partitioner import partition_of
from projector.record import Partition
from projector.reference import Reference
from schemas import names, resources
from schemas.settings import ApiSettings, ProjectorSettings
from tests.chaos.core import ORGANIZATIONS, Change, Core, Stage, Writer
from tests.chaos.history import CaughtUp, History, Outage
from tests.harness import control
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.topics import Topics
from tests.simulation.bridge import Bridge, Server
from tests.simulation.brokers import PORT, Cluster, Connection
from tests.simulation.loop import Loop, Process
from tests.simulation.network import Network

REDIS, REDIS_PORT, API_PORT = "redis", 6379, 8000
PREFIX = "crm."
PARTITIONS = 2
RECOVER_SECONDS, _LOOK_SECONDS = 90.0, 0.4
_ATTEMPTS, _STEP_SECONDS = 200, 0.5
"""How often everything is cancelled when a world ends: some tasks wait for others first."""


class World:
    """Hosts, and what happened. It exists while its loop runs."""

    def __init__(
        self, loop: Loop, server: Server, core: Core, *, brokers: int = 2, projectors: int = 2, workers: int = 2
    ) -> None:
        self.loop, self.server = loop, server
        self.random = Random(loop.random.random())
        self.network = Network(loop)
        self.history = History()
        self.leadview = _looked_at(server.client)
        self.core = core
        self.writer = Writer(cast(Stage, self), core, 0.0)
        self.mark: dict[Partition, int] = {}
        self.ending = False
        self.reached: Counter[str] = Counter()
        self.wrong: list[str] = []
        hosts = [f"kafka-{number + 1}" for number in range(brokers)]
        self.cluster = Cluster(loop, "world", hosts)
        for kind in resources.KINDS:
            self.cluster.create(self.topic(kind), PARTITIONS)
        self.settings = ProjectorSettings(
            redis_url=f"redis://{REDIS}:{REDIS_PORT}/0",
            kafka_bootstrap_servers=",".join(f"{host}:{PORT}" for host in hosts),
            kafka_session_timeout=2.0,
            batch_records=200,
            topic_prefix=PREFIX,
        )
        self.projectors = {f"projector-{number + 1}": loop.outside for number in range(projectors)}
        self.workers = {f"api-{number + 1}": loop.outside for number in range(workers)}
        self.servers: dict[str, ServerState] = {}

    @staticmethod
    def topic(kind: resources.Kind) -> str:
        return f"{PREFIX}{kind.topic}"

    def start(self) -> None:
        self.start_redis()
        for number in self.cluster.hosts:
            self.start_broker(number)
        self.loop.outside.run(self.cluster.tick())
        for host in self.projectors:
            self.start_projector(host)
        for host in self.workers:
            self.start_worker(host)

    def start_redis(self) -> None:
        process = self.loop.start(REDIS)
        self.server.process = process
        self.network.listen(process, REDIS_PORT, partial(Bridge, self.server))

    def restart_redis(self) -> None:
        """Redis has what it has now, another replication id and no scripts."""
        self.server.number += 1
        self.server.client.script_flush()
        self.start_redis()

    def start_broker(self, number: int) -> None:
        process = self.loop.start(self.cluster.hosts[number])
        self.cluster.start(number, process)
        self.network.listen(process, PORT, partial(Connection, self.cluster, number))

    def start_projector(self, host: str) -> None:
        process = self.projectors[host] = self.loop.start(host)
        process.run(self._until_end(process, projector.run.run(self.settings)))

    def start_worker(self, host: str) -> None:
        process = self.workers[host] = self.loop.start(host)
        process.run(self._until_end(process, self._serve(process)))

    async def _serve(self, process: Process) -> None:
        settings = ApiSettings(redis_url=self.settings.redis_url, api_redis_timeout=0.5)
        app, state = Api(settings), ServerState()
        config = Config(app, lifespan="off", log_config=None)
        config.loaded_app = app
        stopped = asyncio.Event()
        async with app.router.lifespan_context(app) as given:
            accept = partial(Edge, config, state, dict(given or {}))
            self.network.listen(process, API_PORT, accept)
            process.signals[signal.SIGTERM] = stopped.set
            await stopped.wait()

    async def _until_end(self, process: Process, work: Any) -> None:
        try:
            await work
        except Exception as error:
            if self.ending:
                return
            self.wrong.append(f"{process.host} has ended at {self.loop.now:.3f}: {error!r}")
            logging.getLogger(__name__).exception("a program has ended")
        finally:
            if not process.dead:
                self.network.end(process)

    def kill(self, process: Process) -> None:
        """End a process at once (SIGKILL)."""
        if not process.dead:
            process.dead, process.due = True, inf
            self.network.end(process)
            self.loop.processes.remove(process)
            self.loop.ended.append(process)

    async def end(self) -> None:
        """End all processes, so that nothing of them is left for the garbage collector."""
        self.ending = True
        self.network.listeners.clear()
        self.loop.processes += self.loop.ended
        for process in self.loop.processes:
            process.dead = False
            process.resume()
        for link in self.network.links.values():
            link.is_cut = False
        for transport in list(self.network.connections):
            transport.abort()
        own = asyncio.current_task()
        for _ in range(_ATTEMPTS):
            tasks = [task for task in asyncio.all_tasks() if task is not own]
            if not tasks:
                break
            for task in sorted(tasks, key=asyncio.Task.get_name):
                task.cancel()
            await asyncio.sleep(_STEP_SECONDS)

    async def publish(self, changes: Iterable[Change]) -> None:
        """Publish changes, in order. Waits while a partition has no leader."""
        for change in changes:
            message, published = change.message, self.history.published
            at = self.place(message)
            state = published.add(change.register, change.value) if change.register else None
            if change.bad:
                self.leadview.topics.bad_keys.add(message.key)
            if change.register and change.value is not None:
                self.writer._messages[change.register, change.value] = message
            while self.cluster.logs[at].leader < 0:  # noqa: ASYNC110 - as a producer does
                await asyncio.sleep(_STEP_SECONDS)
            await asyncio.sleep(self.random.uniform(0.0, 0.002))
            [entry] = self.cluster.append(at, [message])
            if state:
                state.acked_at = self.loop.now
            self.leadview.topics.reference.add(message.record(entry.offset, at.partition, PREFIX))
            self.writer.number += 1

    def place(self, message: Message) -> Partition:
        topic = self.topic(message.kind)
        return Partition(topic, partition_of(message.key, len(self.cluster.partitions(topic))))

    def stable_ends(self) -> dict[Partition, int]:
        """Returns where readers of committed records stop."""
        return {at: log.stable for at, log in self.cluster.logs.items()}

    def behind(self, ends: dict[Partition, int]) -> int:
        """Returns how many records before these ends are not applied."""
        copy = control.read(self.server.client)
        behind = 0
        for at, end in ends.items():
            position = copy.positions.get(at) if copy else None
            behind += max(0, end - (position.offset if position else 0))
        return behind

    async def wait_until(self, holds: Callable[[], object], description: str) -> None:
        """Raises TimeoutError."""
        until = self.loop.now + RECOVER_SECONDS
        while not holds():
            if self.loop.now > until:
                raise TimeoutError(f"{description}: not within {RECOVER_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def catch_up(self) -> None:
        """Wait until everything that Kafka has by now is applied and served, and note it. Raises TimeoutError."""
        up_to, ends = self.loop.now, self.stable_ends()
        client = self.server.client

        def has_applied() -> bool:
            return self.leadview.is_served() and not self.behind(ends) and not client.exists(names.JOBS)

        await self.wait_until(has_applied, "all is applied again")
        self.history.caught_up.append(CaughtUp(up_to, self.loop.now))

    def is_settled(self) -> bool:
        """Returns whether each projector is a member of both groups, and no group rebalances."""
        group = self.settings.group_id
        lines = [self.cluster.groups[name] for name in (group, f"{group}.access")]
        return all(line.state == "Stable" and len(line.members) == len(self.projectors) for line in lines)

    def unavailable(self) -> None:
        """Note that from now on until all is recovered, 503 is right."""
        self.history.outages.append(Outage(frozenset(ORGANIZATIONS), self.loop.now))


def _looked_at(client: Any) -> Leadview:
    """Returns what looks into Redis for a chaos run, without any program."""
    leadview = Leadview.__new__(Leadview)
    leadview.redis = client
    leadview.topics = cast(Topics, SimpleNamespace(reference=Reference(), bad_keys=set()))
    return leadview
