"""What both programs promise while Redis fails, whatever their way into it: one table of faults, run with each of them.

never   the answer to another call, or one from a server that is no longer the primary
during  an error that says that Redis is not available, or the right answer
after   the right answer again, without a restart of the program
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import uvloop
from redis.exceptions import ResponseError

import projector.errors
import runtime.redis.errors
from api.redis.links import links
from api.redis.serving import Serving
from api.redis.store import Store as ApiStore
from api.request import Credentials, credentials
from devstack.child import Child
from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from devstack.ports import free_port
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer, installed_redis
from projector.redis.node import Node, ReplicationEpoch
from projector.redis.store import Store as ProjectorStore
from runtime.redis.access import access
from runtime.redis.connection import pack
from runtime.redis.routing import all_of
from schemas import names, resources
from schemas.settings import ApiSettings, ProjectorSettings
from tests.harness.api_server import connected
from tests.harness.certificates import Certificate
from tests.harness.generations import generation
from tests.harness.programs import asleep
from tests.harness.records import Records
from tests.harness.services import client_of, not_available
from tests.harness.waiting import PATIENCE_SECONDS, eventually

SHORT = 0.3
"""A timeout for tests in which it is to be over, in seconds."""
ORGANIZATIONS = 8
MORE_THAN_BUFFERS_HOLD = 32 * 1024 * 1024


class Entry:
    """A lead of an organization of its own. No other one has its body."""

    def __init__(self, records: Records, number: int) -> None:
        self.number = number
        caller = records.caller()
        self.caller: Credentials = credentials(caller.authorization.encode())
        self.id = records.lead(caller.organization_id, {"number": number})
        self.name = names.document(resources.LEAD, caller.name, generation(1), self.id)
        self.mark = b'{"number":%d}' % number

    @property
    def slot(self) -> int:
        return names.tag_slot(names.tag(self.name))


class ApiClient:
    """A request of the API, which writes the charge of its rate limits as well. The methods of both clients raise
    `unavailable`."""

    unavailable = runtime.redis.errors.Unavailable

    def __init__(self, store: ApiStore, servers: Any) -> None:
        self._store, self._servers = store, servers

    async def read(self, entry: Entry) -> bytes:
        reply = await self._store.serve(entry.caller, resources.LEAD, entry.id, (), entry.caller.organization_tag)
        assert reply.status == 200
        return reply.value

    async def write(self, entry: Entry) -> None:
        await self.read(entry)

    def has_seen_reset(self, proxy: FaultyProxy) -> bool:
        """Returns whether it knows that its connection through the proxy was reset."""
        return proxy.accepted > 1 or not any(link.connected for link in self._servers.links)


class ProjectorClient:
    unavailable = projector.errors.Unavailable

    def __init__(self, store: ProjectorStore) -> None:
        self._store = store

    async def read(self, entry: Entry) -> bytes:
        value, name = await self._store.ask([(b"GET", entry.name), (b"ECHO", entry.name)])
        assert name == entry.name
        return bytes(value)

    async def write(self, entry: Entry) -> None:
        await self._store.ask_one(b"SET", names.usage(names.owner_of_key(entry.name)), b"written")

    def has_seen_reset(self, proxy: FaultyProxy) -> bool:  # noqa: ARG002
        [node] = self._store._servers.known()
        return all(opened.connection.closed for opened in node._all)


Client = ApiClient | ProjectorClient
"""A program's way into Redis."""
Open = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def api_client(url: str, timeout: float = PATIENCE_SECONDS, **settings: Any) -> AsyncIterator[Client]:
    # Each charge outlasts the test: for a key that expired, a slot that is being moved answers TRYAGAIN.
    plenty = "10000/24h"
    chosen = ApiSettings(
        redis_url=url, api_redis_timeout=timeout, key_rate_limit=plenty, organization_rate_limit=plenty, **settings
    )
    called = links(chosen)
    store = ApiStore(chosen, called, Serving(called))
    async with connected(called):
        yield ApiClient(store, called)
        assert store.pending == 0, "a request that has failed has no turn any more"


@asynccontextmanager
async def projector_client(url: str, timeout: float = PATIENCE_SECONDS, **settings: Any) -> AsyncIterator[Client]:
    store = ProjectorStore(ProjectorSettings(redis_url=url, **settings), timeout=timeout)
    yield ProjectorClient(store)
    await store.close()


@pytest.fixture(params=[pytest.param(api_client, id="api"), pytest.param(projector_client, id="projector")])
def opened(request: pytest.FixtureRequest) -> Open:
    found: Open = request.param
    return found


@pytest.fixture
def entries(durable_redis: RedisServer) -> list[Entry]:
    return write_entries(durable_redis.url)


@pytest.fixture
def proxy(durable_redis: RedisServer) -> Iterator[FaultyProxy]:
    with faulty_proxy(durable_redis.port) as proxy:
        yield proxy


def write_entries(url: str) -> list[Entry]:
    with client_of(url) as client:
        records = Records(client)
        return [Entry(records, number) for number in range(ORGANIZATIONS)]


async def is_read(client: Client, entry: Entry) -> bool:
    """Returns False if Redis is not available. Why is printed, for the report of a test that waits in vain."""
    try:
        found = await client.read(entry)
    except client.unavailable as error:
        print(f"{type(error).__name__}: {error}")  # noqa: T201
        return False
    if not found.endswith(entry.mark):
        raise RuntimeError("the reply to another call")  # no AssertionError, after which `eventually` asks again
    return True


async def all_are_read(client: Client, entries: list[Entry]) -> bool:
    return all(await asyncio.gather(*(is_read(client, entry) for entry in entries)))


async def fails(client: Client, call: Awaitable[object]) -> None:
    with pytest.raises(client.unavailable):
        await call


async def test_a_server_that_restarts(durable_redis: RedisServer, entries: list[Entry], opened: Open) -> None:
    async with opened(durable_redis.url) as client:
        assert await all_are_read(client, entries)
        durable_redis.kill()
        await fails(client, client.read(entries[0]))
        durable_redis.restart()
        await eventually(lambda: all_are_read(client, entries), "it is read again")


async def test_a_connection_that_is_reset(proxy: FaultyProxy, entries: list[Entry], opened: Open) -> None:
    """A call that comes later is sent over a new connection. A request of the API that is on its way is sent again; of
    what a projector has sent, it does not know how much was executed.
    """
    async with opened(proxy.url) as client:
        assert await is_read(client, entries[0])
        proxy.faults = Faults(held=entries[0].name)
        asking = asyncio.create_task(is_read(client, entries[0]))
        await eventually(lambda: proxy.holding, "the request is on its way")
        proxy.reset_all()
        await eventually(lambda: client.has_seen_reset(proxy), "the program has seen the reset")
        proxy.faults = Faults()
        assert await asking is isinstance(client, ApiClient)
        assert await is_read(client, entries[1])


async def test_entries_after_half_a_reply_are_read_again(
    proxy: FaultyProxy, entries: list[Entry], opened: Open
) -> None:
    for end_after in range(1, 400, 23):
        proxy.faults = Faults(end_after=end_after, end="close" if end_after % 2 else "reset")
        async with opened(proxy.url) as client:
            await asyncio.gather(*(is_read(client, entry) for entry in entries))
            proxy.faults = Faults()
            await eventually(lambda: all_are_read(client, entries), "it is read again")


async def test_a_caller_that_gives_up(proxy: FaultyProxy, entries: list[Entry], opened: Open) -> None:
    """Its reply, which comes later, is not given to the next caller."""
    first, second, *_ = entries
    async with opened(proxy.url) as client:
        assert await all_are_read(client, entries)
        proxy.faults = Faults(held=first.name)
        asking = asyncio.create_task(client.read(first))
        await eventually(lambda: proxy.holding, "the request is on its way")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        asking = asyncio.create_task(client.read(second))
        proxy.faults = Faults()
        assert (await asking).endswith(second.mark)


async def test_a_server_that_stands_still(durable_redis: RedisServer, entries: list[Entry], opened: Open) -> None:
    """Each call fails after the timeout; what the server answers later reaches nobody."""
    async with opened(durable_redis.url, SHORT) as client:
        await eventually(lambda: all_are_read(client, entries), "it is read at first")
        with asleep(durable_redis):
            for _ in range(2):
                await asyncio.gather(*(fails(client, client.read(entry)) for entry in entries))
        await eventually(lambda: all_are_read(client, entries), "it is read again")


async def test_a_server_that_is_busy_with_a_script(
    durable_redis: RedisServer, entries: list[Entry], opened: Open
) -> None:
    """It answers BUSY until another user ends the script. The API counts these errors by their kind."""
    async with opened(durable_redis.url) as client:
        assert await all_are_read(client, entries)
        with durable_redis.client() as admin, durable_redis.client() as thief:
            admin.config_set("lua-time-limit", 50)
            endless = asyncio.create_task(asyncio.to_thread(thief.eval, "while true do end", 0))
            await eventually(lambda: refused(client, entries[0]), "Redis is busy")
            with pytest.raises(client.unavailable, match="BUSY") as raised:
                await client.read(entries[0])
            assert getattr(raised.value, "kind", "busy") == "busy"
            admin.script_kill()
            with pytest.raises(ResponseError, match="killed"):
                await endless
        await eventually(lambda: all_are_read(client, entries), "it is read again")


async def test_full_server_is_read_and_refuses_writes(
    durable_redis: RedisServer, entries: list[Entry], opened: Open
) -> None:
    """It is still read. A write of a projector fails and says so; the API limits its requests by itself."""
    async with opened(durable_redis.url) as client:
        with durable_redis.client() as admin, Records(admin).full():
            assert await all_are_read(client, entries)
            if client.unavailable is projector.errors.Unavailable:
                with pytest.raises(client.unavailable, match="maxmemory"):
                    await client.write(entries[0])
        await client.write(entries[0])


async def test_changed_password_is_read_at_the_next_login(
    durable_redis: RedisServer,
    proxy: FaultyProxy,
    entries: list[Entry],
    tmp_path: Path,
    opened: Open,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is read from its file at each login. If the file is there in time, no call fails."""
    password = tmp_path / "password"
    password.write_text("first")
    with durable_redis.client() as admin:
        admin.execute_command("ACL", "SETUSER", "crm", "on", "~*", "+@all", ">first")
        async with opened(proxy.url, redis_username="crm", redis_password_file=password) as client:
            assert await all_are_read(client, entries)
            password.write_text("second")
            admin.execute_command("ACL", "SETUSER", "crm", "resetpass", ">second")
            proxy.reset_all()
            await eventually(lambda: client.has_seen_reset(proxy), "the program has seen the reset")
            assert await all_are_read(client, entries)
            admin.execute_command("ACL", "SETUSER", "crm", "resetpass", ">third")
            proxy.reset_all()
            await eventually(lambda: refused(client, entries[0]), "the former password is refused")
            password.write_text("third")
            await eventually(lambda: all_are_read(client, entries), "it is read again")
    assert "second" not in caplog.text


async def refused(client: Client, entry: Entry) -> bool:
    return not await is_read(client, entry)


def has_tls(program: str) -> bool:
    """Returns whether a server was built with TLS. It ends at once either way, because it has no certificate."""
    told = [program, "--port", "0", "--tls-port", str(free_port())]
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    return not any(words in done.stdout + done.stderr for words in ("TLS support", "Bad directive"))


@contextmanager
def over_tls(directory: Path, kind: str, pair: Certificate) -> Iterator[tuple[str, list[Any]]]:
    """A cluster, or a Sentinel with the master that it names, where programs find nothing without TLS. Yields the URL,
    and clients of the server and of the Sentinel, for which their passwords (`first`) do not matter.
    """
    program, (certificate, key) = installed_redis(), pair
    if program is None or not has_tls(program):
        not_available("TLS needs a redis-server on PATH that was built with it")
    port, of_sentinel, plain = free_port(), free_port(), free_port()
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    tls = [*map(str, files), "--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-port"]
    user = ["--user", "crm", "on", ">first", "allkeys", "+@all"]
    is_cluster = kind == "cluster"
    options = [*tls, str(port), *user, *(["--tls-cluster", "yes"] if is_cluster else [])]
    with ExitStack() as stack:
        start = RedisServer.start(directory / "server", program=program, cluster=is_cluster, options=options)
        admins = [stack.enter_context(stack.enter_context(start).client())]
        if is_cluster:
            yield f"rediss+cluster://127.0.0.1:{port}", admins
            return
        (directory / "sentinel.conf").touch()
        watch = ["--sentinel", "monitor", "crm", "127.0.0.1", str(port), "1", "--requirepass", "first", "--sentinel"]
        command = [program, str(directory / "sentinel.conf"), "--port", str(plain), *tls, str(of_sentinel), *watch]
        stack.callback(Child(command, log=directory / "log").kill)
        admins.append(stack.enter_context(redis.Redis(port=plain, password="first")))
        yield f"rediss+sentinel://127.0.0.1:1,127.0.0.1:{of_sentinel}/crm", admins


@pytest.mark.parametrize("kind", ["cluster", "Sentinel"])
async def test_passwords_that_are_replaced_over_tls(
    tmp_path: Path, certificate: Certificate, opened: Open, kind: str
) -> None:
    """Nobody logs in to servers whose certificate was signed by a stranger."""
    passwords = [tmp_path / "password", tmp_path / "of-sentinels"]
    for file in passwords:
        file.write_text("first")
    settings = {
        "redis_username": "crm",
        "redis_password_file": passwords[0],
        "redis_sentinel_password_file": passwords[1],
    }
    with over_tls(tmp_path, kind, certificate) as (url, admins):
        entries = [Entry(Records(admins[0]), number) for number in range(ORGANIZATIONS)]
        async with opened(url, redis_tls_ca_file=str(certificate.certificate), **settings) as client:
            await eventually(lambda: all_are_read(client, entries), "it is read at first")
            async with opened(url, **settings) as stranger:
                assert await refused(stranger, entries[0])
            for admin, user in zip(admins, ("crm", "default"), strict=False):
                admin.execute_command("ACL", "SETUSER", user, "resetpass", ">second")
                admin.client_kill_filter(_type="normal", skipme=True)
            await eventually(lambda: refused(client, entries[0]), "the former password is refused")
            for file in passwords:
                file.write_text("second")
            await eventually(lambda: all_are_read(client, entries), "it is read again")


async def test_a_demoted_master_is_never_used(sentinel: RedisSentinel, opened: Open) -> None:
    """The Sentinels still name it. A connection from before ends with the refusal of a write, which says what it is."""
    entries = write_entries(sentinel.url)
    async with opened(sentinel.url) as client:
        assert await all_are_read(client, entries)
        with sentinel.master.client() as master:
            before = {each["id"] for each in master.client_list() if each["name"].startswith("leadview")}
            master.replicaof("127.0.0.1", "1")
            await fails(client, client.write(entries[0]))
            await eventually(lambda: before - {each["id"] for each in master.client_list()}, "the connection is left")
            master.client_kill_filter(_type="normal", skipme=True)
            for _ in range(3):
                await eventually(lambda: refused(client, entries[0]), "it is refused")
            master.replicaof("NO", "ONE")
        await eventually(lambda: all_are_read(client, entries), "it is a master again")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path / "cluster", replicas=True) as cluster:
        yield cluster


async def test_a_failover_in_a_cluster(cluster: RedisCluster, opened: Open) -> None:
    entries = write_entries(cluster.url)
    number = cluster.primaries.index(cluster.owner(entries[0].slot))
    others = [entry for entry in entries if cluster.owner(entry.slot) is not cluster.primaries[number]]
    async with opened(cluster.url_of_all) as client:
        assert await all_are_read(client, entries)
        with cluster.losing(number):
            cluster.fail_over(number)
        await eventually(lambda: all_are_read(client, entries), "it is read from the promoted node")
        assert await all_are_read(client, others)


async def test_a_server_that_was_named_a_moment_ago(durable_redis: RedisServer, entries: list[Entry]) -> None:
    """The slot map names a promoted node before it is connected: the API's requests wait for the first attempt."""
    settings = ApiSettings(redis_url=durable_redis.url, api_redis_timeout=PATIENCE_SECONDS)
    called = links(settings)
    client = ApiClient(ApiStore(settings, called, Serving(called)), called)
    reading = asyncio.create_task(client.read(entries[0]))
    done, _ = await asyncio.wait([reading], timeout=SHORT)
    assert not done
    async with connected(called):
        assert entries[0].mark in await reading


async def test_a_redirection_in_the_middle_of_a_batch(cluster: RedisCluster, opened: Open) -> None:
    """While a slot is being moved, some keys are here and some there (ASK); afterwards all are there (MOVED)."""
    entries = write_entries(cluster.url)
    slot, source = entries[0].slot, cluster.owner(entries[0].slot)
    target = next(primary for primary in cluster.primaries if primary is not source)
    async with opened(cluster.url) as client:
        assert await all_are_read(client, entries)
        with cluster.moving(slot, target) as move:
            move(1)
            assert await all_are_read(client, entries[1:])
            move()
            await eventually(lambda: all_are_read(client, entries), "it is read over the redirection")
        await eventually(lambda: all_are_read(client, entries), "it is read where it is now")
        assert cluster.owner(slot) is target


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_was_not_sent_in_time_is_never_sent(proxy: FaultyProxy, durable_redis: RedisServer, loop: Any) -> None:
    """Its generation may have been dropped meanwhile: the projector that gave the batch up has acknowledged that."""
    store = ProjectorStore(ProjectorSettings(redis_url=proxy.url), timeout=SHORT)

    async def answers() -> bool:
        with suppress(projector.errors.Unavailable):
            return bool(await store.ask_one(b"ECHO", b"here") == b"here")
        return False

    async def give_up() -> None:
        await eventually(answers, "it answers")
        proxy.faults = Faults(stalled=True)
        with pytest.raises(projector.errors.Unavailable, match="did not reply within"):
            await store.ask_one(b"SET", b"late", bytes(MORE_THAN_BUFFERS_HOLD))
        proxy.faults = Faults()
        await eventually(answers, "it answers again")
        with durable_redis.client() as admin:
            own = "leadview-operator"
            await eventually(
                lambda: sum(each["name"] == own for each in admin.client_list()) == 1, "the first connection has ended"
            )
            assert not admin.exists("late")
        await store.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(give_up())


async def test_a_connection_that_is_closed_while_the_batch_is_confirmed(durable_redis: RedisServer) -> None:
    """On a cluster, its server may be found not to be a primary any more."""
    found, words = access(ProjectorSettings(redis_url=durable_redis.url)), pack((b"ECHO", b"here"))
    node = Node(found.server(found.hosts[0]), ReplicationEpoch(), "leadview-operator", PATIENCE_SECONDS)

    class Closing:
        def __init__(self) -> None:
            self.opened = 0
            self.confirmed: dict[int, int] = {}

        async def confirm(self) -> None:
            node.close()

    with pytest.raises(projector.errors.Unavailable, match="is closed"):
        await node.send([words], fence=Closing())
    assert await node.send([words]) == [b"here"]
    node.close()


async def test_a_connection_is_confirmed_once_more_when_those_of_all_writers_were_closed(
    durable_redis: RedisServer,
) -> None:
    """The connection that asks Redis to close the others stays open. A session of the former control record that had
    confirmed it before would write through it into the new record (found by `make simulate`).
    """
    found, words = access(ProjectorSettings(redis_url=durable_redis.url)), pack((b"ECHO", b"here"))
    epoch = ReplicationEpoch()
    node = Node(found.server(found.hosts[0]), epoch, "leadview-operator", PATIENCE_SECONDS)

    class Counting:
        def __init__(self) -> None:
            self.opened = self.times = 0
            self.confirmed: dict[int, int] = {}
            self.meanwhile: Callable[[], object] = int

        async def confirm(self) -> None:
            self.times += 1
            self.meanwhile()
            self.meanwhile = int

    fence, times = Counting(), list[int]()
    for happens in (int, int, epoch.require_confirmation, int):
        happens()
        await node.send([words], fence=fence)
        times.append(fence.times)
    assert times == [1, 1, 2, 2]
    epoch.require_confirmation()
    fence.meanwhile = epoch.require_confirmation
    await node.send([words], fence=fence)
    assert fence.times == 4, "what was closed while it was confirmed counts as well"
    node.close()


async def test_an_error_of_one_server_is_raised_when_all_have_answered() -> None:
    """What the others do would otherwise be under way while the batch is tried again."""
    ended = []

    async def fail() -> None:
        raise projector.errors.Unavailable("it is away")

    async def answer() -> None:
        await asyncio.sleep(0)
        ended.append("it answers")

    with pytest.raises(projector.errors.Unavailable, match="it is away"):
        await all_of([fail(), answer()])
    assert ended


@contextmanager
def moved_address(tmp_path: Path) -> Iterator[tuple[FaultyProxy, redis.Redis, redis.Redis]]:
    """Yields an address that leads to a primary, the primary, and another one, to which the address may be moved while
    the former primary lives: connections that exist stay where they are.
    """
    with (
        RedisServer.start(tmp_path / "former") as former,
        RedisServer.start(tmp_path / "new") as new,
        faulty_proxy(former.port) as proxy,
        former.client() as of_former,
        new.client() as of_new,
    ):
        for name, client in (("former", of_former), ("new", of_new)):
            client.set("name", name)
        yield proxy, of_former, of_new
        proxy.faults = Faults()


def move(proxy: FaultyProxy, client: redis.Redis) -> None:
    proxy.server_port = client.get_connection_kwargs()["port"]


async def test_a_worker_of_the_api_renews_its_connection(tmp_path: Path) -> None:
    """What waits for a reply over the former connection gets it."""
    with moved_address(tmp_path) as (proxy, _, new):
        api_servers = links(ApiSettings(redis_url=proxy.url, api_redis_timeout=PATIENCE_SECONDS))
        async with connected(api_servers):
            link = api_servers.link(b"")
            await link.read_large(b"", b"name", None)
            move(proxy, new)
            proxy.faults = Faults(held=b"ECHO")
            waiting = link.connection.call((b"ECHO", b"before"))
            await eventually(lambda: proxy.holding, "it is on its way")
            former = link.connection
            renewing = asyncio.create_task(api_servers.renew())
            await eventually(lambda: link.connection is not former, "there is another connection")
            assert await link.connection.call((b"GET", b"name")) == b"new"
            proxy.faults = Faults()
            assert await waiting == b"before"
            await renewing
            assert former.closed
            parts, *_ = await link.read_large(b"", b"name", None)
            assert parts == [b"new"]
            proxy.faults = Faults(refusing=True)
            with pytest.raises(runtime.redis.errors.Unavailable):
                await api_servers.renew()
            assert await link.connection.call((b"GET", b"name")) == b"new", "the present one stays"


async def test_a_projector_renews_its_connections(tmp_path: Path) -> None:
    """The other server has another replication id: what was written before may be missing there."""
    with moved_address(tmp_path) as (proxy, _, new):
        settings = ProjectorSettings(redis_url=proxy.url)
        found = access(settings)
        epoch = ReplicationEpoch()
        node = Node(found.server(found.hosts[0]), epoch, "test", PATIENCE_SECONDS, renew=0)
        name = [pack((b"GET", b"name"))]
        assert await node.send(name) == [b"former"]
        proxy.faults = Faults(refusing=True)
        assert await node.send(name) == [b"former"], "no other one can be opened"
        proxy.faults = Faults()
        before = epoch.number
        assert (await node.send(name), epoch.number) == ([b"former"], before)
        move(proxy, new)
        with pytest.raises(projector.errors.Unavailable, match="restarted or failed over"):
            await node.send(name, before)
        assert await node.send(name) == [b"new"]
        node.close()
