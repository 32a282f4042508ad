"""For which slots a server of a cluster is believed, while slots move and servers are emptied or lost.

A slot moves without the copy of the control record that speaks for it. The tests hold every state still: either no
projector runs, and they write what one would write, or it is paused.
"""

import asyncio
from typing import Any

import pytest

from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from projector.ledger import copies
from projector.redis.store import Store
from schemas import names
from schemas.api_keys import organization_tag
from schemas.control import FILLED, SLOTS, parse_slots
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.api_server import LEADS, ApiServer, patient, running_api
from tests.harness.records import Caller, Records
from tests.harness.services import client_of
from tests.harness.waiting import eventually, wait_until

HOME = names.tag_slot(names.HOME)
ORGANIZATION = names.tag_slot(organization_tag(crm.ORGANIZATION).encode())
SERVED, NOT_BELIEVED, UNKNOWN = 404, 503, 401
"""What is answered for a lead that does not exist: of a known organization, while it is not known, and of another."""


@pytest.fixture
def cluster(cluster: RedisCluster) -> RedisCluster:
    control.complete_all(patient(cluster.url))
    return cluster


class Shard:
    """A shard with a caller whom it knows. `copy` is the name of its copy of the control record."""

    def __init__(self, cluster: RedisCluster, server: RedisServer) -> None:
        self.server = server
        self._url = cluster.url
        with client_of(cluster.url) as client:
            tags = [tag.encode() for tag in control.read_all(client)]
            self.tag = next(tag for tag in tags if cluster.owner(names.tag_slot(tag)) is server)
            self.copy = names.copy(names.CONTROL, self.tag)
            self.caller = Records(client).caller()
            while cluster.owner(slot_of(self.caller)) is not server:
                self.caller = Records(client).caller()
        self.slot = slot_of(self.caller)

    def status(self, api: ApiServer) -> int:
        return api.get(LEADS + crm.LEAD, key=self.caller.key).status

    def empty(self) -> dict[bytes, bytes]:
        """Lose everything. Returns the copy that it had."""
        with client_of(self._url) as client:
            copy: dict[bytes, bytes] = client.hgetall(self.copy)
        with self.server.client() as client:
            client.flushall()
        return copy

    def set_copy(self, copy: dict[bytes, bytes]) -> None:
        """Write the copy, as a keeper does; with nothing in `filled` it is incomplete."""
        with client_of(self._url) as client:
            client.hset(self.copy, mapping=copy)


def slots_in(text: bytes) -> dict[bytes, set[int]]:
    return {tag: {slot for each in ranges for slot in each} for tag, ranges in parse_slots(text).items()}


def slot_of(caller: Caller) -> int:
    return names.tag_slot(organization_tag(caller.organization_id).encode())


@pytest.fixture
def shards(cluster: RedisCluster) -> list[Shard]:
    """The shard of the home copy, and the two others."""
    found = [Shard(cluster, primary) for primary in cluster.primaries]
    return sorted(found, key=lambda shard: shard.tag != names.HOME)


def test_the_slots_of_a_lost_server_are_given_to_several_others(cluster: RedisCluster, shards: list[Shard]) -> None:
    """The slot of its copy to one, that of an organization to another one, both empty: `redis-cli --cluster fix` gives
    each to a server that it chooses at random."""
    home, lost, other = shards
    with running_api(patient(cluster.url)) as api:
        assert [shard.status(api) for shard in shards] == [SERVED] * 3
        copy = lost.empty()
        cluster.move_slot(names.tag_slot(lost.tag), other.server)
        cluster.move_slot(lost.slot, home.server)
        assert lost.status(api) == NOT_BELIEVED, "its organization would be unknown"
        wait_until(lambda: other.status(api) == NOT_BELIEVED, "the API knows where the slots are")
        for _ in range(5):
            assert lost.status(api) == NOT_BELIEVED, "its organization would be unknown"
            assert other.status(api) == NOT_BELIEVED, "it has slots without their documents"
            assert home.status(api) == SERVED, "it has lost nothing, except for the slot that it was given"
        with running_api(patient(cluster.url)) as another:  # which has not known them before
            assert [shard.status(another) for shard in shards] == [SERVED, NOT_BELIEVED, NOT_BELIEVED]
        lost.set_copy(copy | {FILLED.encode(): b""})  # a keeper has seen it
        assert [shard.status(api) for shard in shards] == [SERVED, NOT_BELIEVED, NOT_BELIEVED]
        lost.set_copy(copy)  # it is filled
        wait_until(lambda: lost.status(api) == UNKNOWN, "it is believed")
        assert [shard.status(api) for shard in (home, other)] == [SERVED] * 2


@pytest.mark.parametrize("started", ["before", "afterwards"])
async def test_slot_moves_from_a_shard_that_is_being_filled(
    cluster: RedisCluster, shards: list[Shard], cluster_store: Store, started: str
) -> None:
    """Its copy stays where it is. The API knew all of them complete before, or has just started and knows nothing."""
    _, emptied, other = shards

    def moved() -> dict[bytes, bytes]:
        copy = emptied.empty()
        emptied.set_copy(copy | {FILLED.encode(): b""})
        cluster.move_slot(emptied.slot, other.server)
        return copy

    copy = moved() if started == "afterwards" else {}
    with running_api(patient(cluster.url)) as api:
        if not copy:
            assert [shard.status(api) for shard in shards] == [SERVED] * 3
            copy = moved()
        expected = [SERVED, NOT_BELIEVED, SERVED]
        assert [shard.status(api) for shard in shards * 3] == expected * 3
        await record_follows(cluster_store, emptied.slot)
        assert [shard.status(api) for shard in shards * 3] == expected * 3
        emptied.set_copy({FILLED.encode(): copy[FILLED.encode()]})
        wait_until(lambda: emptied.status(api) == UNKNOWN, "it is believed")
        await record_follows(cluster_store, emptied.slot, other.tag)
        assert emptied.status(api) == UNKNOWN


async def test_data_as_of_is_that_of_the_shard_that_answers(
    cluster: RedisCluster, shards: list[Shard], cluster_store: Store
) -> None:
    """It is what the copy of this shard says, so it is absent for a slot of which that copy knows nothing yet.

    While all is complete, a slot that moves costs no 503, neither before a projector has seen it, nor afterwards.
    """
    _, source, target = shards
    with client_of(cluster.url) as client:
        for second, shard in enumerate(shards, 1):
            client.set(names.copy(names.AS_OF, shard.tag), second * 1000)

    def told(shard: Shard) -> tuple[int, str | None]:
        answer = api.get(LEADS + crm.LEAD, key=shard.caller.key)
        return answer.status, answer.headers.get("data-as-of")

    with running_api(patient(cluster.url)) as api:
        expected = [(SERVED, f"1970-01-01T00:00:0{second}.000Z") for second in (1, 2, 3)]
        wait_until(lambda: [told(shard) for shard in shards] == expected, "each shard has said what it knows")
        with client_of(cluster.url) as client:
            client.delete(names.copy(names.AS_OF, shards[0].tag))
        wait_until(lambda: told(shards[0]) == (SERVED, None), "one shard does not know it any more")
        assert [told(source), told(target)] == expected[1:]
        cluster.move_slot(source.slot, target.server)
        assert [told(source) for _ in range(3)] == [(SERVED, None)] * 3, "no projector has seen it"
        await record_follows(cluster_store, source.slot, target.tag)
        wait_until(lambda: told(source) == expected[2], "the copy of the other shard answers for it")


async def test_the_record_says_which_copies_answer_for_which_slots(
    cluster: RedisCluster, shards: list[Shard], cluster_store: Store
) -> None:
    home, source, target = shards
    for shard in shards:
        assert home_slots(cluster)[shard.tag] >= {shard.slot, names.tag_slot(shard.tag)}
    assert sorted(slot for slots in home_slots(cluster).values() for slot in slots) == list(range(names.SLOTS))
    stamp = (await copies.require(cluster_store)).stamp
    await copies.current(cluster_store)
    assert (await copies.require(cluster_store)).stamp == stamp, "nothing is changed without a reason"
    cluster.move_slot(source.slot, target.server)
    await record_follows(cluster_store, source.slot, target.tag)
    assert (await copies.require(cluster_store)).stamp != stamp
    cluster.move_slot(names.tag_slot(source.tag), target.server)
    await record_follows(cluster_store, target.slot, target.tag, source.tag)
    assert source.slot in home_slots(cluster)[target.tag] & home_slots(cluster)[source.tag], "it has two copies now"
    assert home.slot in home_slots(cluster)[names.HOME]
    covered = {slot for slots in home_slots(cluster).values() for slot in slots}
    assert covered == set(range(names.SLOTS)), "the server whose copy moved away has another one"


async def test_slots_that_move_while_a_shard_is_filled_belong_to_nobody(
    cluster: RedisCluster, shards: list[Shard], cluster_store: Store
) -> None:
    """Until all are complete. Moving back does not give them back, because they may have come by way of others."""
    home, source, unfilled = shards
    with client_of(cluster.url) as client:
        filled = client.hget(unfilled.copy, FILLED)
        client.hset(unfilled.copy, FILLED, b"")
    before = home_slots(cluster)
    cluster.move_slot(source.slot, home.server)
    await record_follows(cluster_store, source.slot)
    assert home_slots(cluster) == before | {source.tag: before[source.tag] - {source.slot}}, "only what has moved"
    cluster.move_slot(source.slot, source.server)
    with running_api(patient(cluster.url)) as api:
        assert [shard.status(api) for shard in shards] == [SERVED, NOT_BELIEVED, NOT_BELIEVED]
        await copies.current(cluster_store)
        assert source.slot not in home_slots(cluster)[source.tag]
        unfilled.set_copy({FILLED.encode(): filled})
        await record_follows(cluster_store, source.slot, source.tag)
        assert [shard.status(api) for shard in shards] == [SERVED] * 3


class Gated(Store):
    """A store that stands still before it calls this script, until `go` is set."""

    def __init__(self, settings: ProjectorSettings, script: str) -> None:
        super().__init__(settings, writer_id="gated")
        self._script = script
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def run(self, commands: Any, **named: Any) -> list[Any]:
        if commands and commands[0].script.name == self._script:
            self.reached.set()
            await self.go.wait()
        return await super().run(commands, **named)


@pytest.mark.parametrize("script", ["create_copy", "replace_copy"])
@pytest.mark.parametrize("noticed", [pytest.param(True, id="noticed"), pytest.param(False, id="not yet noticed")])
async def test_emptied_shard_is_never_called_complete(
    cluster: RedisCluster, shards: list[Shard], cluster_store: Store, script: str, noticed: bool
) -> None:
    """A projector decides to give a shard a copy, and stands still. Another one gives it one. Then the shard is
    emptied, and what the first one has decided is carried out."""
    _, without, other = shards
    with client_of(cluster.url) as client:
        for shard in shards:
            client.hset(shard.copy, "crm.leads:0", "100 1 1 -1 -")
    slow = Gated(ProjectorSettings(redis_url=cluster.url), script)
    before = (await copies.current(cluster_store)).copies
    cluster.move_slot(names.tag_slot(without.tag), other.server)
    for each in (cluster_store, slow):
        await eventually(lambda each=each: is_without_copy(each), "it knows that a shard has no copy")  # type: ignore[misc]
    sleeping = asyncio.create_task(copies.current(slow))
    await slow.reached.wait()
    [new] = (await copies.current(cluster_store)).copies.keys() - before.keys()
    without.empty()
    if noticed:
        await copies.current(cluster_store)
    slow.go.set()
    await asyncio.gather(sleeping, return_exceptions=True)
    copy = (await copies.current(cluster_store)).copies[new]
    assert copy is not None
    assert (copy.filled, copy.positions) == ((), {})
    await slow.close()


async def is_without_copy(store: Store) -> bool:
    assert store._servers._cluster
    store._servers._cluster.outdated.set()
    record = await copies.read(store)
    return bool(record and record.shards_without)


async def record_follows(store: Store, slot: int, *tags: bytes) -> None:
    """Wait until the record says that these copies answer for this slot. Each turn is a look of a projector."""

    async def follows() -> bool:
        found = slots_in((await copies.current(store)).state.slots.encode())
        return {tag for tag, slots in found.items() if slot in slots} == set(tags)

    await eventually(follows, f"{tags or 'no copies'} answer for the slot")


def home_slots(cluster: RedisCluster) -> dict[bytes, set[int]]:
    """Returns the slots of each copy, as the home copy has them."""
    with client_of(cluster.url) as client:
        return slots_in(client.hget(names.CONTROL, SLOTS))
