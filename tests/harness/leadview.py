"""Leadview as operators run it: its programs as processes, on a real Kafka and a real Redis, with its own topics."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import redis
from redis.exceptions import ClusterError, RedisClusterException

from devstack.child import Child
from devstack.programs import API, PROJECTOR, environment
from projector.ledger.control import State
from projector.record import Partition, Record
from projector.reference import Entity
from schemas import names, resources
from schemas.control import GenerationId, number_of
from tests.harness import control, expected, generations, stored
from tests.harness.api_server import ApiServer, running_api_process
from tests.harness.commands import Finished, call, is_plain
from tests.harness.crm import Message
from tests.harness.projectors import HURRIED
from tests.harness.services import Kafka, client_of
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_for, wait_until

_REDIS_ABSENT = (redis.ConnectionError, redis.TimeoutError, ClusterError, RedisClusterException)
_COMMAND_SECONDS = 4 * PATIENCE_SECONDS


class HasUrl(Protocol):
    """A Redis of any kind: one server, a cluster, or one that Sentinels watch."""

    @property
    def url(self) -> str: ...


class Leadview:
    """One Leadview: a context manager that kills every process that it has started.

    `prefix` keeps its topics and its group apart from those of other tests; while the test runs, nothing else uses
    `server`. `settings` are those of all its processes. No topic exists and no process runs at the beginning.
    """

    def __init__(self, kafka: Kafka, prefix: str, server: HasUrl, directory: Path, **settings: object) -> None:
        self.kafka = kafka
        self.prefix = prefix
        self.topics = Topics(kafka, prefix)
        self.group = f"{prefix}group"
        self.use_redis(server)
        self.settings = settings
        """Those of all processes that are started from now on."""
        self.calls_plain_commands = True
        """False where several threads run commands, or where each has to be a process of its own."""
        self._directory = directory
        self._processes = ExitStack()
        self._started = 0

    def use_redis(self, server: HasUrl) -> None:
        """Use this Redis from now on. Processes that run already keep the one that they were started with."""
        self.server = server
        self.redis: Any = client_of(server.url)

    def environment(self, **settings: object) -> dict[str, str]:
        """Returns all environment variables of a process."""
        return environment(**self._all(settings))

    def _all(self, settings: dict[str, object]) -> dict[str, object]:
        own: dict[str, object] = {
            "redis_url": self.server.url,
            "kafka_bootstrap_servers": self.kafka.bootstrap_servers,
            "topic_prefix": self.prefix,
            "group_id": self.group,
        }
        return own | self.settings | settings

    def start(self, *words: str, command: Sequence[str] = HURRIED, log: str = "", **settings: object) -> Child:
        """Start a projector or a command of it in the background, by default one that looks more often than usual. Its
        output is appended to `<log>.log`, by default to a file of its own."""
        self._started += 1
        path = self._directory / f"{log or f'{self._started}-{words[0]}'}.log"
        child = Child([*command, *words], log=path, environment=self.environment(**settings))
        self._processes.callback(child.kill)
        return child

    def serve(self, *messages: Message, log: str = "", **settings: object) -> Child:
        """Publish these messages and start a projector. Returns it when the first generation is complete."""
        self.publish(*messages)
        projector = self.start("run", command=HURRIED, log=log, **settings)
        self.wait_until_served()
        return projector

    def run(self, *words: str, command: Sequence[str] = HURRIED, stdin: object = None, **settings: object) -> Finished:
        """Run a command of the projector until it ends; in this process, if it is a plain command and no other one can
        run meanwhile. Raises subprocess.TimeoutExpired.
        """
        if self.calls_plain_commands and command in (HURRIED, PROJECTOR) and is_plain(words):
            return call(*words, environment=self.environment(**settings), stdin="" if stdin is None else str(stdin))
        done = subprocess.run(
            [*command, *words],
            env=self.environment(**settings),
            input=None if stdin is None else str(stdin),
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def ask(self, *words: str, **settings: Any) -> Finished:
        """Run `status` or `wait` until it has read Redis and Kafka: each has little more than a second for its first
        answer, and a busy machine may need longer.
        """
        asked = partial(self.run, *words, **settings)
        return wait_for(asked, lambda done: "cannot be read" not in done, f"{words[0]} has read Redis and Kafka")

    def start_api(self, port: int, **settings: object) -> Child:
        """Start `python -m api`. It may not be ready yet."""
        return self.start(command=API, log="api", api_port=port, **settings)

    @contextmanager
    def api(self, workers: int = 1, **settings: object) -> Iterator[ApiServer]:
        """Run the API on a free port until the block ends. The block begins when it is ready. As with `patient`, a slow
        reply of Redis is no outage.
        """
        settings = self._all({"api_workers": workers, "api_redis_timeout": PATIENCE_SECONDS, **settings})
        with running_api_process(self._directory / "api.log", **settings) as (_, api):
            yield api

    def publish(self, *messages: Message, partition: int | None = None) -> list[Record]:
        """Publish these messages. Returns the records when Kafka has them."""
        return self.topics.publish(messages, partition)

    def publish_all(self, messages: Iterable[Message]) -> list[Record]:
        return self.topics.publish(messages)

    def expected(self) -> dict[Entity, bytes]:
        """Returns the documents that follow from everything that was published."""
        return expected.documents(self.topics.reference)

    def documents(self, generation: int | None = None) -> dict[Entity, bytes]:
        """Returns the documents that Redis has; by default those of the live generation."""
        return stored.documents(self.redis, generation or self._live())

    def _live(self) -> int:
        """Returns the live generation, which need not be 1 if Redis was emptied; 1 if there is none."""
        copy = control.read(self.redis)
        return number_of(copy.state.live) if copy else 1

    def state(self) -> State:
        """Returns the control record. There must be one."""
        return control.home(self.redis).state

    def generation(self, number: int) -> GenerationId:
        """Returns the identity of the generation with this number. The control record must have one."""
        return generations.stored(self.redis, number)

    def is_complete(self, generation: int) -> bool:
        """Is everything in this generation, in every shard?"""
        copies = control.read_all(self.redis)
        return bool(copies) and all(copy and generation in generations.numbers(copy.filled) for copy in copies.values())

    def is_served(self) -> bool:
        """Is the live generation complete?"""
        copies = control.read_all(self.redis)
        return bool(copies) and all(copy is not None and copy.serves for copy in copies.values())

    def positions(self) -> dict[tuple[str, int], int]:
        """Returns the next offset of each partition, as Redis has it."""
        copies = control.read_all(self.redis)
        present = [copy.positions if copy else {} for copy in copies.values()]
        common = set[Partition].intersection(*(set(positions) for positions in present)) if present else set()
        return {at: min(positions[at].offset for positions in present) for at in common}

    def caught_up(self, *kinds: resources.Kind) -> bool:
        """Are the positions (of these kinds) exactly at the end of what was published?"""
        topics = {self.topics.name(kind) for kind in kinds or resources.KINDS}
        positions = self.positions()
        return all(positions.get(at) == end for at, end in self.topics.end_offsets.items() if at[0] in topics)

    def has_applied(self, end_offsets: Mapping[tuple[str, int], int]) -> bool:
        """Have all records before these offsets been applied?"""
        positions = self.positions()
        return all(positions.get(at, 0) >= end for at, end in end_offsets.items())

    def behind(self) -> int:
        """Returns how many published records have not been applied yet."""
        positions = self.positions()
        return sum(max(0, end - positions.get(at, 0)) for at, end in dict(self.topics.end_offsets).items())

    def wait_until_current(self) -> None:
        """Wait until everything that is published by now has been applied. More may be published meanwhile."""
        end_offsets = dict(self.topics.end_offsets)
        wait_until(lambda: self.has_applied(end_offsets), "the projectors are current", 2 * PATIENCE_SECONDS)

    def wait_for_verdict(self, *words: str) -> Finished:
        """Run `status` until all of these words are in its first line: it waits for Kafka for little more than a
        second, and a busy machine may need longer. Its exit code says that something is wrong.
        """
        last = self.run("status")

        def is_said() -> bool:
            nonlocal last
            last = self.run("status")
            return all(word in last.stdout.partition("\n")[0] for word in words)

        wait_until(is_said, lambda: f"status says {words}; it said {last.output}")
        assert last.status == 1, last.output
        return last

    def wait_until_served(self) -> None:
        """Wait until everything is applied and the first generation is complete."""
        self.wait_until_current()
        wait_until(self.is_served, "the live generation is served")

    async def settled(self, *, after_crash: bool = False) -> None:
        """Wait until everything is covered, every job is done, and every document is what the reference says. Nothing
        may be published meanwhile."""
        await eventually(self._is_settled, "all records are applied", 3 * PATIENCE_SECONDS)
        assert self.documents() == self.expected()
        stored.assert_consistent(self.redis, self._live(), after_crash=after_crash)

    def _is_settled(self) -> bool:
        try:
            if not self.caught_up() or self.redis.exists(names.JOBS):
                return False
            return self.documents() == self.expected()
        except _REDIS_ABSENT:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._processes.close()
        self.redis.close()
