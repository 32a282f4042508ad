"""`python -m devstack.publish`: sends sample data that keeps changing to the Kafka that the settings name.

The command is for a stack that is already running (compose.yaml). Each run creates new organizations, keys and
records, and deletes nothing of earlier runs.
"""

import argparse
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import AdminClient

from devstack import interrupt
from devstack.child import StackFailed
from devstack.greeting import greeting
from devstack.interrupt import ended_by_signals
from devstack.sample import Crm, Message, SampleCrm
from devstack.sandbox import CHANGES_PER_SECOND, PERSONAS, UNSTEADY_ORGANIZATION, Sandbox, unsteady
from devstack.threads import in_thread
from devstack.topics import create_topic
from schemas.resources import BY_TOPIC
from schemas.settings import ProjectorSettings, SettingsError, load

SANDBOX = "the same keys, ids and documents on every machine (docs/sandbox.md); not for production"
_CHECK_SECONDS = 1.0
_CHANGES_PER_SECOND = 3.0
PARTITIONS = 6
_REACH_SECONDS = 10.0
_FLUSH_SECONDS = 30.0
_QUEUE_FULL_SECONDS = 0.05


def connection(settings: ProjectorSettings) -> dict[str, str | int | float | bool]:
    """Returns the options with which librdkafka connects, from the projector's settings."""
    options: dict[str, str | None] = {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "security.protocol": settings.kafka_security_protocol,
        "log_level": "0",
    }
    if "SSL" in settings.kafka_security_protocol:
        options |= {
            "ssl.ca.location": settings.kafka_ssl_ca_file,
            "ssl.certificate.location": settings.kafka_ssl_cert_file,
            "ssl.key.location": settings.kafka_ssl_key_file,
        }
    if "SASL" in settings.kafka_security_protocol:
        options |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.oauthbearer.method": "oidc" if settings.kafka_oauth_token_url else None,
            "sasl.oauthbearer.token.endpoint.url": settings.kafka_oauth_token_url,
            "sasl.oauthbearer.client.id": settings.kafka_oauth_client_id,
            "sasl.oauthbearer.client.secret": settings.kafka_oauth_client_secret,
            "sasl.oauthbearer.scope": settings.kafka_oauth_scope,
            "https.ca.location": settings.kafka_oauth_ca_file,
            "sasl.username": settings.kafka_sasl_username,
            "sasl.password": settings.kafka_sasl_password,
        }
    return {name: value for name, value in options.items() if value is not None}


def create_missing_topics(settings: ProjectorSettings) -> None:
    """Create the topics that do not exist, with compaction. Raises StackFailed."""
    client = AdminClient(connection(settings))
    try:
        existing = client.list_topics(timeout=_REACH_SECONDS).topics
        for name in {settings.topic_prefix + topic for topic in BY_TOPIC} - existing.keys():
            create_topic(client, name, PARTITIONS)
    except KafkaException as exception:
        reason = exception.args[0].str()
        raise StackFailed(f"Kafka at {settings.kafka_bootstrap_servers} failed: {reason}") from exception


class Publisher:
    """A producer for the topics with the prefix. It chooses partitions as docs/events.md says."""

    def __init__(self, settings: ProjectorSettings) -> None:
        self._prefix = settings.topic_prefix
        options = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        self._producer = Producer(connection(settings) | options)
        self._failure: str | None = None
        self.delivered = 0

    def publish(self, messages: Iterable[Message]) -> None:
        """Send all messages and wait until Kafka has acknowledged them. Raises StackFailed."""
        for message in messages:
            self._send(message)
        if self._producer.flush(_FLUSH_SECONDS):
            raise StackFailed(f"Kafka did not acknowledge the sample data within {_FLUSH_SECONDS:g} s")
        self.check()

    def keep_publishing(self, crm: Crm, rate: float, stop: Event) -> None:
        """Send `rate` changes per second until `stop` is set. `check` raises the failures."""
        if rate == 0:
            return
        changes = crm.changes()
        due = time.monotonic() + 1 / rate
        while not stop.wait(max(0.0, due - time.monotonic())):
            self._send(next(changes))  # created only now, because it contains the present time
            due += 1 / rate
        self._producer.flush(1.0)

    def check(self) -> None:
        """Raises StackFailed if Kafka rejected a record."""
        if self._failure:
            raise StackFailed(f"Kafka rejected a sample record: {self._failure}")

    def _send(self, message: Message) -> None:
        while True:
            try:
                self._producer.produce(
                    self._prefix + message.topic, message.value, message.key, on_delivery=self._on_delivery
                )
            except BufferError:  # the queue is full
                self._producer.poll(_QUEUE_FULL_SECONDS)
            else:
                break
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, _message: Delivered) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failure = error.str()


def main() -> int:
    """Publish until a signal. Returns the exit status: 0 then, 1 if Kafka fails, 2 for invalid settings."""
    options = _parser().parse_args()
    try:
        settings = load(ProjectorSettings, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with ended_by_signals():
            _publish(options, settings)
    except StackFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _publish(options: argparse.Namespace, settings: ProjectorSettings) -> None:
    create_missing_topics(settings)
    crm: Crm = Sandbox() if options.sandbox else SampleCrm(secrets.randbits(64))
    publisher = Publisher(settings)
    publisher.publish(crm.initial())
    print(f"Sample data was sent and will appear at {options.base_url}.\n", flush=True)
    limits, personas = "100 requests in 10 s, unless the settings differ", PERSONAS if options.sandbox else ()
    print(greeting(options.base_url, crm.tenants, limits=limits, personas=personas), flush=True)
    rate = CHANGES_PER_SECOND if options.sandbox else _CHANGES_PER_SECOND
    with ExitStack() as exits:
        exits.enter_context(in_thread(partial(publisher.keep_publishing, crm, rate)))
        if options.sandbox:
            exits.enter_context(unsteady(settings, UNSTEADY_ORGANIZATION))
        _watch(publisher, options.alive_file)


def _watch(publisher: Publisher, alive_file: Path | None) -> None:
    """Touch `alive_file` whenever Kafka has acknowledged more records, for a health check. Raises StackFailed."""
    delivered, pause = 0, threading.Event()
    while True:
        interrupt.check()
        publisher.check()
        if alive_file and publisher.delivered > delivered:
            alive_file.touch()
            delivered = publisher.delivered
        pause.wait(_CHECK_SECONDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devstack.publish", description=__doc__)
    parser.add_argument("--sandbox", action="store_true", help=SANDBOX)
    parser.add_argument(
        "--base-url", default="http://127.0.0.1:8000", help="base URL of the API, for the commands that are printed"
    )
    parser.add_argument("--alive-file", type=Path, help="file that is touched whenever Kafka has acknowledged records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
