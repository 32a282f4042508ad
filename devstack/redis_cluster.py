"""A Redis Cluster of real redis-servers. Its slots can be moved, and replicas can be promoted."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from redis.exceptions import ResponseError

from devstack.ports import LOOPBACK
from devstack.redis_server import NOT_READY, SLOTS, RedisServer
from devstack.waiting import wait_until

_KEYS = 100
_MANUAL_FAILOVER_SECONDS = 6.0
"""Redis gives up after five, for example if the other primaries voted in the same shard a moment ago."""


class Move(Protocol):
    """Moves keys of a slot to its new primary, at most `max_keys`."""

    def __call__(self, max_keys: int = ..., /) -> None: ...


class RedisCluster:
    """`primaries` share the slots evenly. `replicas` is empty, or has one for each primary in the same order.

    A context manager that stops them all.
    """

    def __init__(
        self,
        directory: Path,
        primaries: int = 3,
        *,
        replicas: bool = False,
        appendonly: bool = False,
        options: Sequence[str] = (),
        program: Path | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        """`appendonly` and `options` are those of `RedisServer.start`, for each node.

        `hosts` has one for each primary, and then one for each replica; if it is empty, all are on loopback.
        Raises RedisServerMissing, ServerFailed, TimeoutError.
        """
        self._stack = ExitStack()
        with self._stack:
            width = -(-SLOTS // primaries)
            slots = [range(first, min(first + width, SLOTS)) for first in range(0, SLOTS, width)]
            shares = [*slots, *([range(0)] * primaries if replicas else [])]
            nodes = [
                self._stack.enter_context(
                    RedisServer.start(
                        directory / str(number),
                        cluster=True,
                        slots=share,
                        appendonly=appendonly,
                        options=options,
                        program=program,
                        host=host,
                    )
                )
                for number, (share, host) in enumerate(zip(shares, hosts or [LOOPBACK] * len(shares), strict=True))
            ]
            self.primaries, self.replicas = nodes[:primaries], nodes[primaries:]
            self._lost: dict[int, list[int]] = {}
            """The slots that each lost shard had, by its number."""
            _introduce(nodes)
            for primary, replica in zip(self.primaries, self.replicas, strict=False):
                _follow(replica, primary)
            self._stack = self._stack.pop_all()

    @property
    def url(self) -> str:
        """Names only the first primary. A client finds the others."""
        return f"redis+cluster://{self.primaries[0].address}"

    @property
    def url_of_all(self) -> str:
        """Names all nodes, so that a program can start while some do not run."""
        return "redis+cluster://" + ",".join(node.address for node in [*self.primaries, *self.replicas])

    def owner(self, slot: int) -> RedisServer:
        """Returns the node that serves a slot."""
        return next(node for node in self._running() if slot in _slots(node))

    def move_slot(self, slot: int, target: RedisServer) -> None:
        """Move a slot as redis-cli does, key by key, while it is in use."""
        with self.moving(slot, target):
            pass

    @contextmanager
    def keeping_slots(self) -> Iterator[None]:
        """Afterwards, every slot is where it was before."""
        before = [(primary, _slots(primary)) for primary in self.primaries]
        yield
        for primary, slots in before:
            for slot in slots - _slots(primary):
                self.move_slot(slot, primary)

    @contextmanager
    def moving(self, slot: int, target: RedisServer) -> Iterator[Move]:
        """Inside, the slot is being moved. The keys that are left at the end are moved then."""
        source, name = self.owner(slot), _ask(target, "CLUSTER MYID")
        _ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", _ask(source, "CLUSTER MYID"))
        _ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", name)

        def move(max_keys: int = sys.maxsize) -> None:
            while max_keys > 0 and (keys := _ask(source, "CLUSTER GETKEYSINSLOT", slot, min(max_keys, _KEYS))):
                _ask(source, "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)
                max_keys -= len(keys)

        try:
            yield move
        finally:
            move()
            others = [node for node in self._running() if node is not target and _slots(node)]
            for node in [target, *others]:
                _ask(node, "CLUSTER SETSLOT", slot, "NODE", name)

    def fail_over(self, number: int) -> RedisServer:
        """Kill a primary, and promote its replica with the data that it has. Returns that replica."""
        self.primaries[number].kill()
        replica = self.replicas[number]
        replica.resume()
        _wait_for(replica, "CLUSTER FAILOVER", "TAKEOVER")
        wait_until(lambda: _slots(replica), "the replica serves the slots")
        return replica

    def hand_over(self, number: int) -> None:
        """Let a primary and its replica change roles without losing a write, as an operator does before a restart."""
        primary, replica = self.primaries[number], self.replicas[number]

        def serves() -> bool:
            return bool(_slots(replica)) and not _slots(primary)

        def took_over() -> bool:
            with suppress(ResponseError, *NOT_READY):  # it may have taken over after all
                _ask(replica, "CLUSTER FAILOVER")
            with suppress(TimeoutError):
                wait_until(serves, "the replica serves the slots", _MANUAL_FAILOVER_SECONDS)
            return serves()

        wait_until(took_over, "the replica has taken over")
        self.primaries[number], self.replicas[number] = replica, primary
        self.wait_until_in_step(number)

    def join(self, number: int) -> None:
        """Complete a `fail_over`: the killed primary starts again as the replica of the promoted one."""
        self.primaries[number], self.replicas[number] = self.replicas[number], self.primaries[number]
        self.replicas[number].restart()
        wait_until(lambda: not _slots(self.replicas[number]), "the former primary is a replica")
        self.wait_until_in_step(number)

    def wait_until_in_step(self, number: int) -> None:
        """Wait until the replica of this primary has all of its data."""
        wait_until(self.replicas[number].is_in_step, "the replica is in step")

    def losing(self, number: int) -> AbstractContextManager[None]:
        """Inside, the replica receives no writes, so `fail_over` loses what the primary acknowledges."""
        return losing(self.primaries[number], self.replicas[number])

    def lose(self, number: int, heir: RedisServer) -> None:
        """Lose a shard for good: kill its primary and its replica, and give its slots, empty, to another primary, as
        `redis-cli --cluster fix` does."""
        lost = [self.primaries[number], *self.replicas[number : number + 1]]
        slots, names = sorted(_slots(lost[0])), [_ask(node, "CLUSTER MYID") for node in lost]
        for node in lost:
            node.kill()
        for node in self._running():
            for name in names:
                _ask(node, "CLUSTER FORGET", name)
        _ask(heir, "CLUSTER ADDSLOTS", *slots)
        _ask(heir, "CLUSTER BUMPEPOCH")
        self._lost[number] = slots
        for node in self._running():
            node.wait_until_cluster_ok()

    def replace(self, number: int) -> None:
        """Let new, empty servers take the places of a lost primary and its replica, and the slots that they had."""
        primary, slots = self.primaries[number], self._lost.pop(number)
        helper = next(node for node in self.primaries if node is not primary and node.running)
        joining = [primary, *self.replicas[number : number + 1]]
        for node in joining:
            node.start_empty()
            _wait_for(node, "CLUSTER MEET", helper.host, helper.port)
        for node in self._running():
            node.wait_until_cluster_ok(len(self._running()))
        _wait_for(primary, "CLUSTER BUMPEPOCH")  # with the epoch of another node, its claims would not count
        for node in joining[1:]:
            _follow(node, primary)
        self._give(slots, primary)

    def _give(self, slots: Sequence[int], target: RedisServer) -> None:
        """Move many slots: the empty ones at once, then those with keys one after the other."""
        name, others = _ask(target, "CLUSTER MYID"), [node for node in self.primaries if node is not target]
        for source in others:
            owned = sorted(_slots(source) & set(slots))
            # A node refuses to give a slot away in which it has keys.
            replies = _ask_all(source, [("CLUSTER SETSLOT", slot, "NODE", name) for slot in owned])
            given = [slot for slot, reply in zip(owned, replies, strict=True) if not isinstance(reply, ResponseError)]
            for node in [target, *(node for node in others if node is not source)]:
                _ask_all(node, [("CLUSTER SETSLOT", slot, "NODE", name) for slot in given])
            for slot in sorted(set(owned) - set(given)):
                self.move_slot(slot, target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _running(self) -> list[RedisServer]:
        return [node for node in [*self.primaries, *self.replicas] if node.running]


@contextmanager
def losing(primary: RedisServer, replica: RedisServer) -> Iterator[None]:
    """Inside, the replica receives no writes. It has every write that the primary acknowledged before."""
    keep_up(primary)
    replica.pause()
    _ask(primary, "CLIENT KILL", "TYPE", "replica")  # it would read what is in the sockets when it resumes
    try:
        yield
    finally:
        replica.resume()


def keep_up(primary: RedisServer) -> None:
    """Wait until the replica has every write that the primary acknowledged before this call."""
    sent: list[int] = []

    def has_all() -> bool:
        with suppress(*NOT_READY):
            own, of_replica = _offsets(primary)
            sent.append(own)
            return of_replica >= sent[0]
        return False

    wait_until(has_all, "the replica has all earlier writes")


def _offsets(primary: RedisServer) -> tuple[int, int]:
    """Returns the replication offsets of the primary and of its replica, as it last reported; -1 without a replica."""
    with primary.client() as client:
        found: Any = client.info("replication")
    return int(found["master_repl_offset"]), int(found["slave0"]["offset"]) if "slave0" in found else -1


def _introduce(nodes: Sequence[RedisServer]) -> None:
    for epoch, node in enumerate(nodes, start=1):
        # With equal epochs, the nodes would first have to resolve the collision.
        _ask(node, "CLUSTER SET-CONFIG-EPOCH", epoch)
        _ask(node, "CLUSTER MEET", nodes[0].host, nodes[0].port)
    for node in nodes:
        node.wait_until_cluster_ok(len(nodes))


def _follow(replica: RedisServer, primary: RedisServer) -> None:
    _wait_for(replica, "CLUSTER REPLICATE", _ask(primary, "CLUSTER MYID"))
    wait_until(lambda: len(set(_offsets(primary))) == 1, "the replica follows")


def _wait_for(node: RedisServer, *words: Any) -> None:
    """Repeat the command until it succeeds. Raises TimeoutError."""

    def done() -> bool:
        with suppress(ResponseError, *NOT_READY):
            _ask(node, *words)
            return True
        return False

    wait_until(done, f"{words[0]} is accepted")


def _slots(node: RedisServer) -> set[int]:
    """Returns the slots that a node says it serves itself."""
    nodes: dict[str, Any] = _ask(node, "CLUSTER NODES")
    [own] = [each for each in nodes.values() if "myself" in each["flags"]]
    return {slot for part in own["slots"] for slot in range(int(part[0]), int(part[-1]) + 1)}


def _ask_all(node: RedisServer, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns a reply for each command, which may be an error."""
    with node.client() as client, client.pipeline(transaction=False) as pipeline:
        for words in commands:
            pipeline.execute_command(*words)
        return list(pipeline.execute(raise_on_error=False))


def _ask(node: RedisServer, *words: Any) -> Any:
    with node.client() as client:
        return client.execute_command(*words)
