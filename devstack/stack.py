"""Starts and ends Redis, Kafka, the projector and the API together."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from devstack import interrupt
from devstack.apache_kafka import ApacheKafka
from devstack.embedded_kafka import EmbeddedKafka
from devstack.live_view import read
from devstack.ports import free_port
from devstack.programs import API, PROJECTOR, Program, Reply, ask
from devstack.publish import PARTITIONS, Publisher, create_missing_topics
from devstack.redis_server import RedisServer
from devstack.sample import Crm
from devstack.sandbox import unsteady
from devstack.threads import in_thread
from devstack.waiting import wait_until
from runtime.metrics_port import url
from schemas.redis_url import without_password
from schemas.resources import BY_TOPIC
from schemas.secret_files import secret_fields
from schemas.settings import ApiSettings, ProjectorSettings, effective, load, variable

_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on
_SERVERS = {"Kafka": "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS", "Redis": "LEADVIEW_REDIS_URL"}
_CONSOLE = "console"
_STOP_SECONDS = 8.0
_POLL_SECONDS = 0.1


def for_commands(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the settings of the projector that are not secret, and the names of the secret ones."""
    fields = {
        variable(field): field for field in ProjectorSettings.__struct_fields__ if not field.startswith("metrics_")
    }
    given = {name: value for name, value in variables.items() if value and name in fields}
    secret = secret_fields(ProjectorSettings)
    hidden = [
        name
        for name, value in given.items()
        if fields[name] in secret and not (fields[name] == "redis_url" and without_password(value) == value)
    ]
    return {name: value for name, value in given.items() if name not in hidden}, hidden


class Stack:
    """All servers and processes. A context manager that stops them, quickly and in order."""

    def __init__(self, variables: Mapping[str, str], scratch: Path, crm: Crm, console_port: int) -> None:
        """`variables` come from `devstack.environment`. A server without an address there is embedded."""
        self._console_port = console_port
        self._variables = dict(variables)
        self._scratch = scratch
        self._crm = crm
        self._exits = ExitStack()
        self._checks: list[Callable[[], None]] = []
        self._published = 0
        self.processes: dict[str, Program] = {}
        self._embedded: set[str] = set()
        """The settings that name the embedded servers."""

    @property
    def api(self) -> ApiSettings:
        """The settings of the API."""
        return load(ApiSettings, self._variables)

    @property
    def _projector(self) -> ProjectorSettings:
        return load(ProjectorSettings, self._variables)

    @property
    def host(self) -> str:
        """The address at which this machine reaches the API."""
        return "127.0.0.1" if self.api.api_host in _EVERY_ADDRESS else self.api.api_host

    @property
    def base_url(self) -> str:
        return url(self.host, self.api.api_port)

    @property
    def addresses(self) -> dict[str, str]:
        """Where the servers are, without passwords, and the metrics and the logs."""
        shown = effective(self._projector)
        exporting = {name: each for name, each in self.processes.items() if name != _CONSOLE}
        metrics = {f"metrics, {name}": f"http://127.0.0.1:{each.metrics_port}" for name, each in exporting.items()}
        console = {_CONSOLE: f"http://127.0.0.1:{self._console_port}"}
        servers = {name: str(shown[setting]) for name, setting in _SERVERS.items()}
        return {**console, **servers, **metrics, "logs": str(self._scratch)}

    @property
    def for_commands(self) -> tuple[dict[str, str], list[str]]:
        """The settings with which the commands of operators look at this stack, and the names of those that are secret
        and have to be set as well.
        """
        return for_commands(self._variables)

    def start(self, rate: float, *, apache_kafka: bool, unsteady_organization: str | None = None) -> None:
        """Start everything, send the sample data, and then `rate` changes per second. Raises StackFailed, TimeoutError.

        Requests of `unsteady_organization` meet 503 now and then.
        """
        self._start_redis()
        self._run("api", API)  # it needs no Kafka, so both start at the same time
        self._start_kafka(apache_kafka)
        self._run("projector", PROJECTOR, "run")
        self._publish(rate)
        if unsteady_organization:
            self._exits.enter_context(unsteady(self._projector, unsteady_organization))
        self._run_console()

    def wait_until_readable(self, seconds: float) -> str:
        """Wait until the API returns a lead and a contact, at most this long for each. Returns the ETag of the contact.
        Raises StackFailed, TimeoutError.
        """
        tenant = self._crm.tenants[0]
        # So that the API gets no requests that fail.
        self._wait_until(self._has_applied_all, "the projector has applied the sample data", seconds)
        api = partial(ask, self.host, self.api.api_port)
        with_key = partial(api, key=tenant.api_key)
        # Until the first generation is declared live, an API that started with an empty Redis may serve a part of it.
        self._wait_for(api, "/readyz", seconds)
        self._wait_for(with_key, f"/api/v1/ext/leads/{tenant.lead_id}", seconds)
        self._wait_for(partial(ask, "127.0.0.1", self._console_port), "/", seconds)
        return self._wait_for(with_key, f"/api/v1/ext/contacts/{tenant.contact_id}", seconds).headers["etag"]

    def check(self) -> None:
        """Raises StackFailed if a process ended that should run, and Interrupted if a signal was received."""
        interrupt.check()
        for check in self._checks:
            check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for process in self.processes.values():  # signal all of them first, then wait for each
            process.ask_to_stop()
        self._exits.close()

    def _start_redis(self) -> None:
        if not self._variables["LEADVIEW_REDIS_URL"]:
            redis = self._exits.enter_context(RedisServer.start(self._scratch / "redis"))
            self._checks.append(redis.check_running)
            self._use("LEADVIEW_REDIS_URL", redis.url)

    def _start_kafka(self, apache: bool) -> None:
        if self._variables["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"]:
            create_missing_topics(self._projector)
            return
        directory = self._scratch / "kafka"
        kafka = ApacheKafka.start(directory) if apache else EmbeddedKafka.start(directory)
        self._exits.enter_context(kafka)
        self._checks.append(kafka.check_running)
        self._use("LEADVIEW_KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
        for topic in BY_TOPIC:
            kafka.create_topic(self._projector.topic_prefix + topic, PARTITIONS)

    def _use(self, setting: str, address: str) -> None:
        self._variables[setting] = address
        self._embedded.add(setting)

    def _run_console(self) -> None:
        """The console shows documents, and acts, only where nothing but sample data can be."""
        sample = ("--show-documents",) if len(self._embedded) == len(_SERVERS) else ()
        metrics = f"http://127.0.0.1:{self.processes['api'].metrics_port}"
        words = ("console", "--port", str(self._console_port), "--api-metrics", metrics, *sample)
        self._run(_CONSOLE, PROJECTOR, *words)

    def _run(self, name: str, command: Sequence[str], *words: str) -> None:
        variables = {**self._variables, "LEADVIEW_METRICS_PORT": str(free_port())}
        process = Program([*command, *words], log=self._scratch / f"{name}.log", environment=variables)
        self._exits.callback(process.stop_all, _STOP_SECONDS)
        self._checks.append(process.check_running)
        self.processes[name] = process

    def _publish(self, rate: float) -> None:
        publisher = Publisher(self._projector)
        publisher.publish(self._crm.initial())
        self._published = publisher.delivered
        self._exits.enter_context(in_thread(partial(publisher.keep_publishing, self._crm, rate)))
        self._checks.append(publisher.check)

    def _wait_for(self, ask_for: Callable[[str], Reply], path: str, seconds: float) -> Reply:
        """Returns the first response with status 200. Raises StackFailed, TimeoutError."""
        reply = Reply(0, {}, "not asked yet")

        def is_read() -> bool:
            nonlocal reply
            reply = ask_for(path)
            return reply.status == 200

        self._wait_until(is_read, lambda: f"{path} can be read ({reply.status} {reply.body})", seconds)
        return reply

    def _wait_until(self, predicate: Callable[[], bool], description: str | Callable[[], str], seconds: float) -> None:
        def checked() -> bool:
            self.check()
            return predicate()

        wait_until(checked, description, seconds, _POLL_SECONDS)

    def _has_applied_all(self) -> bool:
        reply = ask("127.0.0.1", self.processes["projector"].metrics_port, "/metrics")
        return reply.status == 200 and read(reply.body, "", 0.0).seen >= self._published
