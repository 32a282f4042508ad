"""An installation as a company runs it, on this machine: Apache Kafka, Redis, two projectors, the API with two workers,
the console. Everything is a process and may be broken.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Type  # type: ignore[attr-defined]
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from devstack import programs
from devstack.apache_kafka import ApacheKafka, plain_login
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import PROJECTOR, ROOT
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from docs.generate.troubles import Row
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.console import Console, running_console
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

API_USER, PROJECTOR_USER, _PASSWORD = "api", "projector", "secret"
_PLAIN = plain_login({PROJECTOR_USER: _PASSWORD})
_SCRAM = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    # Brokers close connections that do not sign in again: only then is a password that was changed asked for.
    "scram-sha-512.connections.max.reauth.ms": "3000",
}
LOGIN = _PLAIN._replace(properties={**_PLAIN.properties, **_SCRAM})
"""Kafka with this login and ACLs lets the user of the projectors read the topics of the installation, and no others."""
Redis = RedisServer | RedisSentinel | RedisCluster
_SERIES = re.compile(r"^(leadview_\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_REPORTED = re.compile(r'^leadview_projector_problems\{problem="(\w+)"\} (?!0\.0$)', re.MULTILINE)
_SECONDS = 3 * PATIENCE_SECONDS
LOOK_SECONDS = 0.5
"""How often all surfaces are looked at. Programs change what they say every second or two."""
_HANGS_SECONDS = 5.0
"""A request that has had no response for so long counts as one that gets none."""
_RIGHTS = ((Type.TOPIC, "READ"), (Type.TOPIC, "DESCRIBE"), (Type.TOPIC, "DESCRIBE_CONFIGS"), (Type.GROUP, "READ"))
WELL = Row(sign="", command="")

RULES = ROOT / "deploy/monitoring/rules.yaml"
RULES_USE = frozenset(re.findall(r"\bleadview_\w+", RULES.read_text("utf-8")))

Series = dict[str, float]
"""What was scraped: the value of each series, with its labels and that of the program."""


def differences(expected: Mapping[str, tuple[object, object]]) -> list[str]:
    """Returns what is not as it should be, of what was seen and what is said in the table, by surface."""
    return [f"{surface}: {seen}, not {said}" for surface, (seen, said) in expected.items() if seen != said]


class Installation:
    """`leadview` has the topics, the commands and the programs; `projectors` are those that run, by metrics port."""

    def __init__(self, leadview: Leadview, kafka: ApacheKafka, redis: Redis) -> None:
        self.leadview = leadview
        self.kafka = kafka
        self.redis = redis
        self.projectors: dict[int, Child] = {}
        self.api = ApiServer(free_port(), timeout=_HANGS_SECONDS)
        self.api_process: Child
        self.well: Series = {}
        """What was scraped when all was well: no alert fires then."""
        self._asked: Series = {}
        self._api_metrics = free_port()
        self.ask_api = ("--api-metrics", f"http://127.0.0.1:{self._api_metrics}")
        """Options of `status` and of the console."""
        self.console: Console
        self._versions = count(1)

    def start_projectors(self, number: int = 2, command: Sequence[str] = PROJECTOR, **settings: object) -> None:
        """Start so many. Three bad records in a row stop a line of them."""
        for port in [free_port() for _ in range(number)]:
            own: dict[str, Any] = {**self.user(PROJECTOR_USER), "metrics_port": port, "dead_letter_row": 3}
            self.projectors[port] = self.leadview.start("run", command=command, **own | settings)

    def start_api(self, **settings: object) -> None:
        own: dict[str, Any] = {**self.user(API_USER), "api_workers": 2, "metrics_port": self._api_metrics}
        self.api_process = self.leadview.start_api(self.api.port, **own | settings)

    def user(self, name: str) -> dict[str, str]:
        """Settings of a user of Redis who may do everything at first; none where servers come and go."""
        if not isinstance(self.redis, RedisServer):
            return {}
        self.leadview.redis.execute_command("ACL", "SETUSER", name, "on", f">{_PASSWORD}", "~*", "&*", "+@all")
        return {"redis_username": name, "redis_password": _PASSWORD}

    @property
    def signed_in(self) -> dict[str, str]:
        """Settings of a program that has only the rights of the user of the projectors in Kafka."""
        return {
            "kafka_bootstrap_servers": self.kafka.sasl_servers,
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_username": PROJECTOR_USER,
            "kafka_sasl_password": _PASSWORD,
        }

    def set_kafka_password(self, password: str = _PASSWORD) -> None:
        """Set the password with which the user of the projectors signs in by SCRAM-SHA-512."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(PROJECTOR_USER, info, password.encode())
        for done in self.leadview.topics.admin.alter_user_scram_credentials([change]).values():
            done.result(PATIENCE_SECONDS)

    def kill_projectors(self) -> None:
        for child in self.projectors.values():
            child.kill()
        self.projectors.clear()

    def succeed(self, *words: str, command: Sequence[str] = PROJECTOR) -> None:
        done = self.leadview.run(*words, command=command)
        assert done.status == 0, done.output

    def version(self) -> int:
        """Returns a higher version than any before: one that goes back is a trouble of its own."""
        return next(self._versions)

    def publish(self) -> None:
        version = self.version()
        everything = crm.organization(version), crm.api_key(version), crm.contact(version), crm.lead(version)
        self.leadview.publish(*everything)

    def publish_again(self) -> None:
        self.leadview.publish(crm.lead(self.version()))

    def _differs(self, row: Row) -> list[str]:
        """Returns what is not as the row says, of what all surfaces but the command `status` say at the same time."""
        shown = self.console.picture()["status"]
        healths = {port: ask(port, "/healthz")[0] for port, child in self.projectors.items() if child.running}
        answering = [port for port, health in healths.items() if health]  # others stand still
        # Those that are healthy report nothing.
        reported = {tuple(sorted(_REPORTED.findall(ask(port, "/metrics")[1] or ""))) for port in answering}
        as_said = {tuple(sorted(row.by_projectors))} if answering else set()
        healths_said = {503 if row.by_projectors else 200} if answering else set()
        if row.by_one:
            as_said, healths_said = {*as_said, ()}, {*healths_said, 200}
        said = [sorted(row.problems), sorted(row.notes)]
        reply = programs.ask("127.0.0.1", self.api.port, LEADS + crm.LEAD, crm.KEY, timeout=_HANGS_SECONDS)
        error = orjson.loads(reply.body).get("error") if reply.status else None
        return differences(
            {
                "console": ([sorted(shown["kinds"]), sorted(shown["note_kinds"])], said),
                "metrics of projectors": (reported, as_said),
                "/healthz of projectors": ({healths[port] for port in answering}, healths_said),
                "/livez of projectors": ({ask(port, "/livez")[0] for port in answering}, {200} if answering else set()),
                "/readyz": (self.api.is_ready(), row.ready),
                "a request": ((reply.status, error), row.answer),
            }
        )

    def _status_differs(self, row: Row) -> list[str]:
        """Returns where `status` differs from the row. It is a process, so it is asked when all else agrees."""
        status = self.leadview.run("status", "--json", *self.ask_api)
        found = orjson.loads(status.stdout)
        return differences(
            {
                "exit code": (status.status, 1 if row.problems else 0),
                "status --json": (sorted(found["kinds"]), sorted(row.problems)),
                "notes": (sorted(found["note_kinds"]), sorted(row.notes)),
                "the first line": (found["verdict"] == "all is well", not row.problems),
            }
        )

    def wait_for(self, row: Row) -> None:
        """Wait until every surface says what the row says, and nothing else."""
        last = ["nothing was seen"]

        def is_said() -> bool:
            nonlocal last
            last = self._differs(row) or self._status_differs(row)
            return not last

        def failure() -> str:
            return "\n".join(("every surface says it", *last, self.leadview.run("status", *self.ask_api).output))

        wait_until(is_said, failure, _SECONDS, LOOK_SECONDS)

    def scrape(self) -> Series:
        """Returns the series of all programs that the rules use, as Prometheus has them after a scrape. Only the number
        of requests stays what it was at first: how many have failed depends on how long the test had to wait.
        """
        found: Series = {}
        for port in [*self.projectors, self._api_metrics]:
            for name, labels, value in _SERIES.findall(ask(port, "/metrics")[1] or ""):
                if name not in RULES_USE:
                    continue
                instance = ", ".join(filter(None, (labels.replace(",", ", "), f'instance="{port}"')))
                series = f"{name}{{{instance}}}"
                if name == "leadview_api_requests_total" and 'route="lead"' in labels:
                    found[series] = self._asked.setdefault(series, float(value))
                else:
                    found[series] = float(value)
        return found


@contextmanager
def installation(kafka: ApacheKafka, redis: Redis, folder: Path) -> Iterator[Installation]:
    """Yields an installation on these servers in which all is well. The user of the projectors has the rights of
    `deploy/kafka-acls.sh.example`.
    """
    folder.mkdir(parents=True)
    known = Kafka("apache", kafka.bootstrap_servers, kafka.create_topic)
    settings: dict[str, object] = {"kafka_session_timeout": 2, "expected_projectors": 2}
    if isinstance(redis, RedisCluster):
        settings["redis_url"] = redis.url_of_all
    with Leadview(known, f"t{uuid4().hex[:12]}.", redis, folder, **settings) as leadview:
        bindings = [
            AclBinding(
                kind,
                leadview.prefix,
                ResourcePatternType.PREFIXED,
                f"User:{PROJECTOR_USER}",
                "*",
                AclOperation[right],
                AclPermissionType.ALLOW,
            )
            for kind, right in _RIGHTS
        ]
        for added in leadview.topics.admin.create_acls(bindings).values():
            added.result(PATIENCE_SECONDS)
        here = Installation(leadview, kafka, redis)
        leadview.topics.create(partitions=2)
        here.publish()
        here.start_projectors()
        here.start_api()
        with running_console(leadview, *here.ask_api) as (_, here.console):
            here.wait_for(WELL)
            yield here
