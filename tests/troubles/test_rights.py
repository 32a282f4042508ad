"""Each right of `deploy/redis-users.conf.example` is taken away from programs that run, and given back. No surface says
that all is well while requests fail or nothing is written, and with the right everything is well again.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import redis

from devstack.apache_kafka import ApacheKafka
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from projector.redis.rights import PROJECTS
from schemas import resources
from schemas.api_keys import mint
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer, running_api_process
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.projectors import IMPATIENT
from tests.harness.records import Records
from tests.harness.services import REDIS_USERS, Kafka, redis_with_users
from tests.harness.waiting import wait_until
from tests.service.test_redis_users import access

pytestmark = [pytest.mark.troubles, pytest.mark.xdist_group("rights")]

API, PROJECTOR = "leadview-api", "leadview-projector"
_LOOK_SECONDS = 0.2
_RULES = re.compile(r"\([^)]*\)|\S+")


class Right(NamedTuple):
    """The rules of a user without one right; `name` is what is taken away."""

    user: str
    name: str
    rules: tuple[str, ...]


def rules(user: str) -> tuple[str, ...]:
    """The rules of a user in the example; each selector is one."""
    found = re.search(rf"^user {user} (.+)$", REDIS_USERS.read_text("utf-8"), re.MULTILINE)
    assert found
    return tuple(_RULES.findall(found[1]))


def named(user: str) -> Iterator[Right]:
    """Yields the user without each of the commands that the example names."""
    every = rules(user)
    for number, rule in enumerate(every):
        for command in re.findall(r"\+([a-z|]+)", rule):
            left = re.sub(rf" ?\+{re.escape(command)}(?![a-z|])", "", rule)
            name = f"{command} in {rule.partition(' ')[0][1:]}" if rule.startswith("(") else command
            yield Right(user, name, tuple(filter(None, (*every[:number], left, *every[number + 1 :]))))


def in_categories(user: str) -> Iterator[Right]:
    """Yields the user without each of the commands that the projector needs of the categories of the example."""
    every = rules(user)
    known = {right.name for right in named(user)}
    for command in dict.fromkeys(words[0] for words in PROJECTS):
        if not any(name.partition("|")[0] == command for name in known):
            yield Right(user, command, (*every, f"-{command}"))


RIGHTS = [*named(PROJECTOR), *in_categories(PROJECTOR)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_with_users(tmp_path_factory.mktemp("rights") / "redis") as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: RedisServer) -> Iterator[Any]:
    with redis.Redis(port=server.port) as admin:
        yield admin


def grant(admin: Any, user: str, granted: tuple[str, ...], *, reconnect: bool = False) -> None:
    """Let a user have these rights and no others. Its connections stay open, except with `reconnect`: then
    what is needed for a new connection, and for scripts that the server does not know, is asked for again.
    """
    admin.execute_command("ACL", "SETUSER", user, "reset", *granted)
    if reconnect:
        admin.script_flush()
        admin.execute_command("CLIENT", "KILL", "USER", user)


class Serving(NamedTuple):
    """An API that serves one lead to one key. `other_key` is one of an organization that was never heard of."""

    api: ApiServer
    admin: Any
    lead: str
    key: str
    other_key: str

    def agrees(self) -> bool | None:
        """Returns whether every request is answered, if readiness says the same before and after them; else None."""
        before = self.api.is_ready()
        asked = [(self.lead, self.key), (crm.LEAD, self.key), (self.lead, self.other_key)]
        serves = [self.api.get(LEADS + lead, key=key).status for lead, key in asked] == [200, 404, 403]
        return serves if before == serves == self.api.is_ready() else None

    def is_refused(self) -> bool:
        return any(entry["username"] == API for entry in self.admin.acl_log())


@pytest.fixture(scope="module")
def serving(server: RedisServer, admin: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    admin.flushall()
    records = Records(admin)
    caller = records.caller()
    lead = records.lead(caller.organization_id, {})
    stranger = str(uuid4())
    other_key = mint(stranger)
    records.key(other_key, stranger)
    settings = {"redis_url": server.url, "key_rate_limit": "100000/1s", "organization_rate_limit": "100000/1s"}
    with running_api_process(tmp_path_factory.mktemp("api") / "log", **settings, **access(API)) as (_, api):
        serving = Serving(api, admin, lead, caller.key, other_key)
        wait_until(serving.agrees, "it serves")
        yield serving


@pytest.mark.parametrize("right", [pytest.param(it, id=it.name) for it in named(API)])
def test_it_is_ready_exactly_if_it_serves(serving: Serving, right: Right) -> None:
    admin = serving.admin
    grant(admin, API, right.rules)
    assert serving.agrees() is not None, "at once: the connections are those of before"
    grant(admin, API, right.rules, reconnect=True)
    admin.acl_log_reset()
    wait_until(
        lambda: (now := serving.agrees()) or (now is False and serving.is_refused()),
        "readiness and requests agree with new connections as well",
    )
    assert serving.agrees() is not None, "and this lasts"
    grant(admin, API, rules(API))
    wait_until(serving.agrees, "it serves again")


class Projecting(NamedTuple):
    """A projector that has to write something of every kind."""

    leadview: Leadview
    admin: Any
    port: int

    def publish(self, version: int) -> None:
        """Publish a change of every kind of entity, a bad record, and an organization that is deleted and created."""
        other: dict[str, Any] = {"organization_id": crm.OTHER_ORGANIZATION}
        self.leadview.publish(
            crm.organization(version),
            crm.api_key(version),
            crm.contact(version, first_name=f"Ada {version}"),
            crm.lead(version, referrer=f"number {version}"),
            # A bad record is no problem as soon as a good one of its entity comes behind it.
            crm.lead(version, id=crm.uuid(0x7000 + version), stage="WRONG"),
            crm.lead(version, id=crm.uuid(0x7000 + version)),
            crm.lead(version, id=crm.OTHER_LEAD, contact_id=crm.OTHER_CONTACT, **other),
            crm.deleted(resources.ORGANIZATION, 2 * version, **other),
            crm.organization(2 * version + 1, id=crm.OTHER_ORGANIZATION, **other),
        )

    def is_said(self) -> bool:
        """Does every surface say that something is not well?"""
        return (
            ask(self.port, "/healthz")[0] == 503
            and bool(metric(self.port, "leadview_projector_problems"))
            and self.leadview.run("status").status == 1
        )

    def is_well(self) -> bool:
        """Is everything written that was published, are all jobs done, and does every surface say that all is well?"""
        return (
            self.leadview._is_settled()
            and ask(self.port, "/healthz")[0] == 200
            and metric(self.port, "leadview_projector_problems") == 0
            and self.leadview.run("status").status == 0
        )


@pytest.fixture(scope="module")
def projecting(server: RedisServer, admin: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projecting]:
    admin.flushall()
    folder, port = tmp_path_factory.mktemp("projecting"), free_port()
    with ExitStack() as stack:
        broker = stack.enter_context(ApacheKafka.start(folder / "kafka"))
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        leadview = stack.enter_context(Leadview(kafka, f"t{uuid4().hex[:12]}.", server, folder))
        leadview.topics.create(partitions=1)
        projecting = Projecting(leadview, admin, port)
        projecting.publish(1)
        settings: dict[str, Any] = {"metrics_port": port, "dead_letter_share": 1, **access(PROJECTOR)}
        leadview.start("run", command=IMPATIENT, **settings)
        wait_until(projecting.is_well, "all is well")
        yield projecting


@pytest.mark.parametrize("version", [pytest.param(at, id=it.name) for at, it in enumerate(RIGHTS, 2)])
def test_nothing_says_well_while_nothing_is_written(projecting: Projecting, version: int) -> None:
    right, admin = RIGHTS[version - 2], projecting.admin
    grant(admin, PROJECTOR, right.rules, reconnect=True)
    projecting.publish(version)
    try:
        wait_until(
            lambda: projecting.leadview._is_settled() or projecting.is_said(),
            "everything is written, or it is said",
            interval=_LOOK_SECONDS,
        )
    finally:
        grant(admin, PROJECTOR, rules(PROJECTOR))
    wait_until(projecting.is_well, "all is well again", interval=_LOOK_SECONDS)
