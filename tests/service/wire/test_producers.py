"""Producers of others, idempotent as docs/production.md asks: kafkajs, and Apache Kafka's own client in Java.

They publish to the embedded broker of `make run` and to Apache Kafka. `make wire` installs them.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.apache_kafka import ApacheKafka
from devstack.embedded_kafka import EmbeddedKafka
from devstack.jars import KAFKA, JarsMissing
from tests.harness.services import Kafka, not_available
from tests.harness.topics import records
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent / "producers"
INSTALLED = ROOT / "build" / "wire"
TOPIC = "crm.leads"
SENT = [(b"a", b'{"n":1}'), (b"b", b'{"n":2}'), (b"a", b'{"n":3}')]


@pytest.fixture(params=["embedded", "apache"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kafka]:
    """A broker of each kind, with the topic."""
    kind = ApacheKafka if request.param == "apache" else EmbeddedKafka
    try:
        with kind.start(tmp_path) as kafka:
            kafka.create_topic(TOPIC, 1)
            yield Kafka(request.param, kafka.bootstrap_servers, kafka.create_topic)
    except JarsMissing as error:
        not_available(str(error))


def publish(command: list[str], broker: Kafka) -> subprocess.CompletedProcess[str]:
    lines = "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in SENT)
    words = [*command, broker.bootstrap_servers, TOPIC]
    return subprocess.run(
        words, input=lines, capture_output=True, text=True, cwd=INSTALLED, timeout=PATIENCE_SECONDS, check=False
    )


def published(broker: Kafka) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records(broker, TOPIC, len(SENT))]


def test_kafkajs(broker: Kafka) -> None:
    """It asks the controller for its producer id."""
    program = str(shutil.copy(ROOT / "docs" / "examples" / "publish.mjs", INSTALLED))
    done = publish(["node", program], broker)
    assert done.returncode == 0, done.stderr
    assert published(broker) == SENT


def test_java(broker: Kafka) -> None:
    """The embedded broker answers its first request wrongly, so `make run` and docs/sandbox.md name the way out."""
    done = publish(["java", "--class-path", f"{KAFKA.fetch()}/*", str(SOURCES / "Publish.java")], broker)
    if broker.kind == "embedded":
        assert "TimeoutException" in done.stderr, "it works: remove what is said about it"
    else:
        assert done.returncode == 0, done.stderr
        assert published(broker) == SENT
