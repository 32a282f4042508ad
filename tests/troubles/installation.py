"""An installation as a company runs it, on this machine: Apache Kafka, Redis, two projectors, the API with two workers.
Everything is a process and may be broken.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.leadview import HasUrl, Leadview
from tests.harness.metrics_port import ask
from tests.harness.services import Kafka
from tests.harness.waiting import wait_until

KEY = mint(crm.ORGANIZATION)
_METRICS = re.compile(
    r"^(leadview_projector_(?:problems|line_stopped|line_standing_by|measured|partitions|rebuild_due)"
    r"|leadview_api_ready_workers)(\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)
_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"[0-9a-f]{64}"), "<hash>"),
    (re.compile(r"[\w.-]+-\d+-[0-9a-f]{6}\b"), "<program>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "<time>"),
    (re.compile(r"\bt[0-9a-f]{12}\."), "crm."),
    (re.compile(r"(?:127\.0\.0\.1|localhost):\d+"), "<address>"),
    (re.compile(r"\d[\d,.]*(?= ?(?:s|ms|seconds|MiB|%|bytes)\b)|(?<=s: )\d+\.\d+"), "<n>"),
    (re.compile(r"(?<=/)\d+\.log"), "<n>.log"),
)


class Installation:
    """`leadview` has the topics, the commands and the programs; `projectors` are those that were started."""

    def __init__(self, leadview: Leadview) -> None:
        self.leadview = leadview
        self.projectors: list[Child] = []
        self.ports: list[int] = []
        self.api = ApiServer(free_port())
        self.api_metrics = free_port()
        self.api_process: Child | None = None

    def start_projector(self, **settings: Any) -> Child:
        port = free_port()
        child = self.leadview.start("run", metrics_port=port, **settings)
        self.projectors.append(child)
        self.ports.append(port)
        return child

    def start_api(self) -> Child:
        self.api_process = self.leadview.start_api(self.api.port, api_workers=2, metrics_port=self.api_metrics)
        return self.api_process

    def start(self, **settings: object) -> None:
        """Start everything, and wait until a lead is served."""
        self.leadview.topics.create(partitions=2)
        self.publish()
        self.start_projector(**settings)
        self.start_projector(**settings)
        self.start_api()
        self.leadview.wait_until_served()
        wait_until(self.api.is_ready, "the API is ready")
        self.wait_for("all is well")

    def publish(self) -> None:
        self.leadview.publish(crm.organization(), crm.api_key(hash=key_hash(KEY)), crm.contact(), crm.lead())

    def verdict(self) -> str:
        return self.leadview.run("status").stdout.partition("\n")[0]

    def wait_for(self, *words: str) -> None:
        """Wait until `status` says these words."""
        said = ""

        def is_said() -> bool:
            nonlocal said
            said = self.leadview.run("status").output
            return all(word in said for word in words)

        try:
            wait_until(is_said, f"status says {words}", 60.0)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it said: {said}") from None

    def read(self) -> Any:
        """Returns what every surface says now, without what differs from run to run."""
        status, doctor = self.leadview.run("status"), self.leadview.run("doctor")
        as_json = orjson.loads(self.leadview.run("status", "--json").stdout)
        kept = ("verdict", "well", "problems", "notes", "projectors", "generation", "writing", "incomplete_shards")
        lead = self.leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD, "--json")
        key = self.leadview.run("show", "key", key_hash(KEY), "--json")
        answer = self.api.get(LEADS + crm.LEAD, key=KEY) if self.api.answers() else None
        found = {
            "status": {"exit": status.status, "lines": status.stdout.partition("\n\n")[0].splitlines()},
            "status --json": {name: as_json[name] for name in kept},
            "lines": [writer["lines"] for writer in as_json["writers"] if writer["alive"]],
            "doctor": {"exit": doctor.status, "lines": doctor.stdout.splitlines()},
            "show lead": {"exit": lead.status, "json": _decoded(lead.stdout)},
            "show key": {"exit": key.status, "json": _decoded(key.stdout)},
            "projectors": [self._port(port) for port in self.ports],
            "api": self._port(self.api_metrics),
            "/readyz": self._path("/readyz"),
            "/healthz": self._path("/healthz"),
            "request": answer and [answer.status, answer.json.get("error")],
        }
        return _constant(found)

    def _path(self, path: str) -> Any:
        try:
            answer = self.api.get(path)
        except OSError:
            return None
        return [answer.status, answer.json.get("error")]

    @staticmethod
    def _port(port: int) -> Any:
        health = ask(port, "/healthz")
        if not health[0]:
            return None
        metrics = sorted(
            f"{name}{labels} {value}" for name, labels, value in _METRICS.findall(ask(port, "/metrics")[1])
        )
        return {
            "/livez": ask(port, "/livez"),
            "/healthz": health,
            "metrics": [it for it in metrics if it[-4:] != " 0.0"],
        }


def _decoded(text: str) -> Any:
    return orjson.loads(text) if text.startswith(("{", "[")) else text


def _constant(found: Any) -> Any:
    """Replaces ids, times and numbers that differ from run to run."""
    match found:
        case str():
            for pattern, word in _VARIABLE:
                found = pattern.sub(word, found)
            return found
        case dict():
            return {name: _constant(value) for name, value in found.items()}
        case list() | tuple():
            return [_constant(value) for value in found]
        case float():
            return "<number>"
        case _:
            return found


@contextmanager
def installation(kafka: ApacheKafka, redis: HasUrl, directory: Path, **settings: object) -> Iterator[Installation]:
    """Yields an installation in which nothing runs yet, on these servers."""

    def create_topic(name: str, partitions: int) -> None:
        kafka.create_topic(name, partitions)

    known = Kafka("apache", kafka.bootstrap_servers, create_topic)
    prefix = f"t{uuid4().hex[:12]}."
    directory.mkdir(parents=True)
    with Leadview(known, prefix, redis, directory, kafka_session_timeout=2, **settings) as leadview:
        yield Installation(leadview)
