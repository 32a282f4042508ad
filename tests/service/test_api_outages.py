"""What is answered while Redis is not there, refuses, or is not complete: 503 and nothing else, until it is again.

`test_redis_faults.py` breaks the way into Redis, for both programs.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest
import redis

from devstack.child import Child
from devstack.fault_proxy import faulty_proxy
from devstack.ports import free_port
from devstack.programs import while_running
from devstack.redis_server import RedisServer
from schemas import names, resources
from schemas.settings import ApiSettings
from tests.harness import control
from tests.harness.api_server import LEADS, ApiServer, Response, patient, running_api, running_api_process
from tests.harness.certificates import Certificate, create
from tests.harness.generations import generation
from tests.harness.leadview import Leadview
from tests.harness.records import Caller, Records
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import wait_for, wait_until
from tests.service.conftest import new_leadview


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_redis.url) as client:
        yield client


@pytest.fixture
def records(client: redis.Redis) -> Records:
    return Records(client)


@pytest.fixture
def api(own_redis: RedisServer) -> Iterator[ApiServer]:
    with running_api(patient(own_redis.url)) as api:
        yield api


def certificate_in(folder: Path) -> Certificate:
    folder.mkdir()
    return create(folder)


def ask(api: ApiServer, caller: Caller) -> Response:
    return api.get(LEADS + str(uuid4()), key=caller.key)


def assert_unavailable(*answers: Response) -> None:
    for answer in answers:
        told = (answer.status, answer.error, answer.headers["cache-control"])
        assert told == (503, "service_unavailable", "no-store")
        assert answer.json["retry_after"] == int(answer.headers["retry-after"]) >= 1


def wait_until_served(api: ApiServer, caller: Caller) -> None:
    wait_until(lambda: ask(api, caller).status == 404, "service is back")


def test_replica_in_place_of_its_master_gets_503(api: ApiServer, client: redis.Redis, records: Records) -> None:
    """The worker is not ready as long as it refuses every request."""
    caller = records.caller()
    wait_until_served(api, caller)
    client.replicaof("127.0.0.1", 1)
    wait_until(lambda: ask(api, caller).status == 503, "it is noticed")
    connected = client.info("stats")["total_connections_received"]
    wait_until(lambda: client.info("stats")["total_connections_received"] > connected + 2, "it looks for a master")
    assert_unavailable(ask(api, caller), api.get("/readyz"))
    client.replicaof("NO", "ONE")
    wait_until_served(api, caller)
    assert api.get("/readyz").status == 200


def test_user_that_may_not_ask_for_the_role_is_served(
    own_redis: RedisServer, client: redis.Redis, records: Records
) -> None:
    """Users of one's own may have been made before a plain URL led to that question, and proxies may not know it."""
    client.acl_setuser("default", enabled=True, commands=["-role"])
    with running_api(patient(own_redis.url)) as api:
        wait_until_served(api, records.caller())


def test_api_without_redis_answers_503_and_401(tmp_path: Path) -> None:
    with running_api(ApiSettings(redis_url="redis://127.0.0.1:1/0"), ready=False) as api:
        assert_unavailable(ask(api, Caller()), api.get("/readyz"))
        assert api.get("/healthz").status == 200
        assert api.get(LEADS + "x").status == 401  # responses that do not need Redis are unchanged
        assert api.get(LEADS + "x", key="lv_live_x").error == "invalid_api_key"


def reason(caplog: pytest.LogCaptureFixture) -> str:
    """Returns why requests were answered with 503, as their log lines say it."""
    return str([vars(line).get("reason") for line in caplog.records if line.getMessage() == "request answered"])


_BEFORE: dict[str, str] = {"maxclients": "100", "requirepass": ""}


@pytest.mark.parametrize(
    ("said", "change", "settings"),
    [
        pytest.param("max number of clients", {"maxclients": 1}, {}, id="it has too many connections"),
        pytest.param("WRONGPASS", {}, {"redis_username": "nobody", "redis_password": "x"}, id="a wrong password"),
        pytest.param("WRONGPASS", {}, {"redis_username": "locked"}, id="a user whose password did not arrive"),
        pytest.param("NOAUTH", {"requirepass": "secret"}, {}, id="no password"),
    ],
)
def test_refused_connection_is_logged_with_what_redis_says(
    own_redis: Any,
    client: redis.Redis,
    kafka: Kafka,
    topic_prefix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    said: str,
    change: dict[str, Any],
    settings: dict[str, str],
) -> None:
    """The log line of a 503 says it, and so does `status`."""
    client.acl_setuser("locked", enabled=True, passwords=["+x"], commands=["+@all"], keys=["*"])
    for name, value in change.items():
        client.config_set(name, value)
    with running_api(patient(own_redis.url, **settings), ready=False) as api:
        wait_until(lambda: ask(api, Caller()).status == 503 and said in reason(caplog), "the log line says it")
        assert_unavailable(ask(api, Caller()))
    with new_leadview(kafka, topic_prefix, own_redis, tmp_path) as leadview:
        status = leadview.run("status", "--json", **settings).json
    assert status["kinds"][0] == "redis_unknown"
    assert said in status["problems"][0]
    for name in change:
        client.config_set(name, _BEFORE[name])


Judge = Callable[..., "Judged"]


class Judged(NamedTuple):
    """An API with two workers, the address of its metrics, and the environment of `status`."""

    child: Child
    api: ApiServer
    metrics: ApiServer
    leadview: Leadview

    @property
    def asked(self) -> tuple[str, str]:
        """The option with which `status` asks the API."""
        return "--api-metrics", f"http://127.0.0.1:{self.metrics.port}"

    def problems(self) -> list[str]:
        """Returns what `status` says of the API."""
        found = self.leadview.run("status", "--json", *self.asked).json
        return [said for said, kind in zip(found["problems"], found["kinds"], strict=True) if kind.startswith("api_")]

    def names(self, cause: str, caller: Caller) -> None:
        """Wait until the metrics port, `status` and the log line of a 503 name the cause. At some moments it is another
        one, such as a timeout of a busy machine.
        """
        wait_until(lambda: cause in self.metrics.get("/healthz").body.decode(), "the metrics port names it")
        [said] = wait_for(self.problems, lambda said: any(cause in it for it in said), "`status` names it")
        assert said.startswith("no worker of the API is ready, so that every request gets 503 or no answer: ")

        def is_logged() -> bool:
            assert_unavailable(ask(self.api, caller), self.api.get("/readyz"))
            lines = self.child.log.read_text().splitlines()
            return any(cause in line for line in lines if "request answered" in line)

        wait_until(is_logged, "a log line of a 503 names it")
        plain = self.leadview.run("status", *self.asked)
        assert (plain.status, "unasked" in plain.stdout) == (1, False)

    def is_well(self) -> bool:
        return self.problems() == []


@pytest.fixture
def judged(own_redis: Any, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Judge]:
    """Returns a function that starts an API with these settings, and waits until both workers are ready."""
    with ExitStack() as stack:
        leadview = stack.enter_context(new_leadview(kafka, topic_prefix, own_redis, tmp_path))

        def started(**settings: object) -> Judged:
            metrics = ApiServer(free_port())
            own = {"api_workers": 2, "metrics_port": metrics.port, **settings}
            child, api = stack.enter_context(running_api_process(tmp_path / "log", **own))
            judged = Judged(child, api, metrics, leadview)
            wait_until(judged.is_well, "both workers are ready")
            return judged

        yield started


def test_a_password_that_is_changed_while_the_api_runs(
    own_redis: RedisServer, client: Any, records: Records, judged: Judge
) -> None:
    caller = records.caller()
    client.acl_setuser("api", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
    api = judged(redis_url=own_redis.url, redis_username="api", redis_password="secret")
    client.execute_command("ACL", "SETUSER", "api", "resetpass", ">another")
    client.client_kill_filter(user="api")
    api.names("WRONGPASS", caller)
    assert "unasked  whether the API serves" in api.leadview.run("status").stdout
    own = {"redis_username": "api", "redis_password": "secret"}
    advice = "correct LEADVIEW_REDIS_USERNAME and LEADVIEW_REDIS_PASSWORD"
    api.leadview.run("doctor", "--api", **own).ends(1, "problem  Redis rights of the API: WRONGPASS", advice)
    client.execute_command("ACL", "SETUSER", "api", ">secret")
    wait_until(api.is_well, "it serves again")
    api.child.stop()
    [said] = api.problems()
    assert said.startswith("the metrics of the API cannot be read: ")
    assert "Connection refused" in said


def test_redis_that_was_emptied_while_the_api_runs(own_redis: RedisServer, client: Any, judged: Judge) -> None:
    """The metrics port says apart from the words that projectors have to fill it, and nothing else has to be done."""
    api = judged(redis_url=own_redis.url)
    client.flushall()
    health = wait_for(
        lambda: msgspec.json.decode(api.metrics.get("/healthz").body), lambda said: "causes" in said, "it is named"
    )
    assert health["filling"] is True
    assert "redis_empty" in api.leadview.run("status", "--json", *api.asked).json["kinds"]


def test_a_certificate_of_another_ca_while_the_api_runs(
    own_redis: RedisServer, records: Records, judged: Judge, tmp_path: Path
) -> None:
    """It trusts the new one as soon as the file has it, without a restart."""
    caller, ca = records.caller(), tmp_path / "ca.pem"
    first, second = certificate_in(tmp_path / "1"), certificate_in(tmp_path / "2")
    ca.write_bytes(first.certificate.read_bytes())
    tls = SSLContext(PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*first)
    with faulty_proxy(own_redis.port, tls) as proxy:
        api = judged(redis_url=f"rediss://127.0.0.1:{proxy.port}/0", redis_tls_ca_file=ca)
        tls.load_cert_chain(*second)
        proxy.reset_all()
        api.names("certificate verify failed", caller)
        ca.write_bytes(second.certificate.read_bytes())
        wait_until(api.is_well, "it serves again")


_LOADED_COMMANDS, _LOADED_MICROSECONDS = 1_200_000, "60"
"""Redis answers after each thousand commands of its log, which is often enough for a slow machine. All of them last for
72 seconds: longer than the test waits."""


def test_loading_redis_is_logged_and_said_by_status(
    kafka: Kafka, topic_prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log line of a 503 says it, and so does `status`. Redis replays its log slowly."""
    with (
        RedisServer.start(tmp_path / "loading", appendonly=True) as server,
        server.client() as writer,
        socket.create_connection((server.host, server.port)) as connection,
    ):
        connection.sendall(b"INCR counter\r\n" * _LOADED_COMMANDS)
        wait_until(lambda: writer.get("counter") == str(_LOADED_COMMANDS), "the log is long")
    slow = Child([*server._command, "--key-load-delay", _LOADED_MICROSECONDS], log=tmp_path / "slow.log")
    with ExitStack() as ending:
        ending.callback(slow.kill)
        with running_api(patient(server.url), ready=False) as api:
            wait_until(
                while_running(slow, lambda: ask(api, Caller()).status == 503 and "LOADING" in reason(caplog)),
                "the log line says it",
            )
            assert_unavailable(ask(api, Caller()), api.get("/readyz"))
        with new_leadview(kafka, topic_prefix, RedisService(server.url), tmp_path) as leadview:

            def is_said() -> bool:
                status = leadview.run("status", "--json").json
                assert status["kinds"][0] == "redis_unknown"
                said.append(status["problems"][0])
                return "LOADING" in said[-1]  # while it loads, it answers only now and then

            said: list[str] = []
            wait_until(while_running(slow, is_said), lambda: f"status says it, and not {said[-1]}")


def test_redis_that_cannot_save_is_read_and_said_by_status(
    own_redis: RedisServer, client: redis.Redis, records: Records, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """It refuses writes only, so documents are served as before. `status` says why it refuses them."""
    caller = records.caller()
    service = RedisService(own_redis.url)
    with running_api(patient(own_redis.url)) as api, new_leadview(kafka, topic_prefix, service, tmp_path) as leadview:
        wait_until_served(api, caller)
        (own_redis.directory / "dump.rdb").mkdir()
        client.config_set("save", "3600 1")  # a save that fails blocks writes only if saving is enabled
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "saving fails")
        assert ask(api, caller).status == 404
        status = leadview.run("status", "--json").json
        client.config_set("save", "")
    kind = status["kinds"].index("redis_refuses_writes")
    assert "MISCONF" in status["problems"][kind]


def test_user_without_a_password_is_not_another_user(own_redis: RedisServer, client: redis.Redis) -> None:
    client.acl_setuser("lvapi", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
    with running_api(patient(own_redis.url.replace("redis://", "redis://lvapi@"))) as api:
        assert api.is_ready()
        connections = [each for each in client.client_list() if each["name"].startswith("leadview")]
        assert {each["user"] for each in connections} == {"lvapi"}


def test_request_after_a_script_flush_is_charged_once(api: ApiServer, records: Records, client: redis.Redis) -> None:
    caller = records.caller(key_limit=(100, 360_000))  # nothing comes back while the test runs
    assert ask(api, caller).headers["x-ratelimit-remaining"] == "99"
    client.script_flush()
    assert ask(api, caller).headers["x-ratelimit-remaining"] == "98"  # charged once


def test_value_of_another_type_gets_503(api: ApiServer, caller: Caller, client: redis.Redis) -> None:
    client.delete(caller.name)
    client.lpush(caller.name, "x")
    assert_unavailable(ask(api, caller))


def test_api_without_a_needed_right_is_not_ready(api: ApiServer, caller: Caller, client: redis.Redis) -> None:
    """`tests/troubles/test_rights.py` compares both for every right."""
    client.acl_setuser("default", enabled=True, commands=["-time"])
    assert_unavailable(ask(api, caller), api.get("/readyz"))


def test_the_live_generation_is_served(api: ApiServer, records: Records, caller: Caller, client: redis.Redis) -> None:
    lead_id = records.lead(caller.organization_id, {"generation": 1}, generation=1)
    first, second = (names.document(resources.LEAD, caller.name, generation(number), lead_id) for number in (1, 2))
    client.set(second, records.read(first).replace(b'"generation":1', b'"generation":2'))

    def served() -> object:
        return api.get(LEADS + lead_id, key=caller.key).json.get("generation")

    assert served() == 1
    control.write(client, live=2, written=(1, 2), previous=1)
    assert served() == 2, "the next answer is of generation 2"
    control.write(client, live=1, written=(1, 2), previous=2)
    assert served() == 1


@pytest.mark.parametrize(
    ("key_back", "access_back"),
    [
        pytest.param(False, False, id="nothing is back"),
        pytest.param(True, False, id="the key is back"),
        pytest.param(True, True, id="access is back"),
    ],
)
def test_the_first_response_after_redis_was_emptied_is_503(
    api: ApiServer, caller: Caller, client: redis.Redis, records: Records, key_back: bool, access_back: bool
) -> None:
    """It is not 401, 403 or 404: the server says in the same reply that it is not complete."""
    for _ in range(3):
        assert ask(api, caller).status == 404
        client.flushall()
        if key_back:
            control.write(client, filled=())  # a projector has begun to fill it
            records.key(caller.key, caller.organization_id)
        if access_back:
            records.organization(caller.organization_id)
        answer = ask(api, caller)
        assert_unavailable(answer, api.get("/readyz"))
        assert "not complete at the moment" in answer.json["message"]
        assert "rebuil" not in answer.json["message"], "nobody may be doing it"
        records.key(caller.key, caller.organization_id)
        control.write(client)
        records.organization(caller.organization_id)
        wait_until_served(api, caller)


def test_api_before_the_first_projection_answers_503(
    own_redis: RedisServer, client: redis.Redis, records: Records
) -> None:
    """A rebooted machine without persistence must not tell every tool that its key is wrong."""
    with running_api(patient(own_redis.url), ready=False) as api:
        assert_unavailable(ask(api, Caller()))
        caller = records.caller()
        control.write(client, filled=())
        assert_unavailable(ask(api, caller))  # a record may not have been projected yet
        control.write(client)
        wait_until_served(api, caller)
