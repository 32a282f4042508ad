"""Programs of producers, which `make wire` installs. Clients of others, idempotent as docs/production.md asks: kafkajs,
and Apache Kafka's own client in Java, which publish to the embedded broker of `make run` and to Apache Kafka. And
Confluent's own serializer, with the frame of a schema registry. And pre-commit, which checks a repository's events.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from devstack.apache_kafka import ApacheKafka
from devstack.embedded_kafka import EmbeddedKafka
from devstack.jars import KAFKA
from docs.generate.json_schema import examples
from projector.kafka.partitioner import partition_of
from schemas import resources
from tests.harness import crm
from tests.harness.expected import documents_of
from tests.harness.leadview import Leadview
from tests.harness.programs import printed_by
from tests.harness.services import Kafka
from tests.harness.topics import records
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent / "producers"
INSTALLED = ROOT / "build" / "wire"
TOPIC = "crm.leads"
SENT = [(b"a", b'{"n":1}'), (b"b", b'{"n":2}'), (b"a", b'{"n":3}')]


@pytest.fixture(params=["embedded", "apache"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kafka]:
    kind = ApacheKafka if request.param == "apache" else EmbeddedKafka
    with kind.start(tmp_path) as kafka:
        kafka.create_topic(TOPIC, 1)
        yield Kafka(request.param, kafka.bootstrap_servers, kafka.create_topic)


def publish(command: list[str], broker: Kafka) -> subprocess.CompletedProcess[str]:
    lines = "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in SENT)
    words = [*command, broker.bootstrap_servers, TOPIC]
    return subprocess.run(
        words, input=lines, capture_output=True, text=True, cwd=INSTALLED, timeout=PATIENCE_SECONDS, check=False
    )


def published(broker: Kafka) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records(broker, TOPIC, len(SENT))]


def test_records_of_kafkajs_arrive_as_sent(broker: Kafka) -> None:
    """It asks the controller for its producer id."""
    program = str(shutil.copy(ROOT / "docs" / "examples" / "publish.mjs", INSTALLED))
    done = publish(["node", program], broker)
    assert done.returncode == 0, done.stderr
    assert published(broker) == SENT


def test_records_of_java_arrive_as_sent_at_a_real_broker(broker: Kafka) -> None:
    """The embedded broker answers its first request wrongly, so `make run` and docs/events.md name the way out."""
    done = publish(["java", "--class-path", f"{KAFKA.fetch()}/*", str(SOURCES / "Publish.java")], broker)
    if broker.kind == "embedded":
        assert "TimeoutException" in done.stderr, "it works: remove what is said about it"
    else:
        assert done.returncode == 0, done.stderr
        assert published(broker) == SENT


EXAMPLES = ROOT / "docs" / "examples"
SDKS: dict[str, list[str | Path]] = {
    "Python": [INSTALLED / "bin" / "python", EXAMPLES / "publish_cloudevents.py"],
    "Node.js": ["node", INSTALLED / "publish_cloudevents.mjs"],
    "Java": ["java", "-cp", f"{INSTALLED / 'jars'}/*", EXAMPLES / "PublishCloudEvents.java"],
    "Go": [INSTALLED / "publish_cloudevents"],
}


@pytest.mark.parametrize("mode", ["structured", "binary"])
@pytest.mark.parametrize("language", SDKS)
def test_events_of_the_sdks_of_cloudevents_are_applied(language: str, mode: str, leadview: Leadview) -> None:
    """With each client's own way to choose the partition, which has to be the same."""
    shutil.copy(EXAMPLES / "publish_cloudevents.mjs", INSTALLED)  # it looks for modules beside itself
    topic = leadview.topics.name(resources.LEAD)
    messages = [
        crm.lead(2, referrer="München"),
        crm.lead(3, id=crm.OTHER_LEAD, referrer="gone"),
        crm.tombstone(resources.LEAD, crm.OTHER_LEAD),
    ]
    lines = b"".join(message.key + b"\t" + (message.value or b"") + b"\n" for message in messages)
    printed_by([*SDKS[language], leadview.kafka.bootstrap_servers, topic, mode], stdin=lines.decode())
    sent = records(leadview.kafka, topic, len(messages))
    assert [record.partition for record in sent] == [partition_of(record.key or b"", 3) for record in sent]
    assert ["ce_id" in dict(record.headers) for record in sent if record.value] == [mode == "binary"] * 2
    leadview.publish(crm.organization())
    leadview.start("run")
    expected = documents_of([message.record(offset) for offset, message in enumerate(messages)])
    wait_until(lambda: leadview.documents() == expected, "the lead is there, and the other one is deleted")


PYTHON = INSTALLED / "bin" / "python"
EXAMPLE = ROOT / "docs" / "examples" / "publish_with_registry.py"
SCHEMA = ROOT / "docs" / "schemas" / "crm.lead.changed.json"
REGISTRY = "mock://in-memory"
"""The client's own registry in memory. Only the producer asks it: Leadview does not know where it is."""


def test_events_in_the_frame_of_a_registry_are_applied(leadview: Leadview) -> None:
    assert PYTHON.is_file(), "run `make wire`, which installs Confluent's serializer"
    topic = leadview.topics.name(resources.LEAD)
    messages = (crm.lead(2, referrer="framed"), crm.lead(3, id=crm.OTHER_LEAD, referrer="with a header"))
    for message, *flag in ((messages[0],), (messages[1], "--id-in-header")):
        subprocess.run(
            [PYTHON, EXAMPLE, leadview.kafka.bootstrap_servers, REGISTRY, topic, SCHEMA, *flag],
            input=(message.value or b"") + b"\n",
            check=True,
            timeout=PATIENCE_SECONDS,
        )
    sent = records(leadview.kafka, topic, 2)
    found = sorted(((record.value or b"")[:1], [name for name, _ in record.headers]) for record in sent)
    assert found == [(b"\0", []), (b"{", ["__value_schema_id"])]
    leadview.publish(crm.organization())
    leadview.start("run")
    expected = documents_of([message.record(offset) for offset, message in enumerate(messages)])
    wait_until(lambda: leadview.documents() == expected, "both leads are there")


PRE_COMMIT = INSTALLED / "bin" / "pre-commit"


def line(**data: object) -> str:
    event = examples()["crm.organization.changed"]
    key = event["data"]["organization_id"]
    return orjson.dumps({"key": key, "value": event | {"data": event["data"] | data}}).decode() + "\n"


def test_events_are_checked_before_they_are_committed(tmp_path: Path) -> None:
    assert PRE_COMMIT.is_file(), "run `make wire`, which installs pre-commit"
    files = {
        "events/good.jsonl": line(),
        "events/bad.jsonl": line() + line(api_access="yes"),
        "events/mistyped.jsonl": line(api_acces=True),
        "README.md": "No record is in here.\n",
    }
    repository = tmp_path / "producer"
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", repository], check=True)  # noqa: S607
    subprocess.run(["git", "add", "."], cwd=repository, check=True)  # noqa: S607

    home = os.environ | {"PRE_COMMIT_HOME": str(tmp_path / "home")}
    check = partial(printed_by, directory=repository, environment=home)
    command = [str(PRE_COMMIT), "try-repo", str(ROOT), "leadview-validate", "--files"]
    refused = re.findall(r"^(events/\S+:\d+): `(\S+)`", check([*command, *files], status=1), re.MULTILINE)
    assert refused == [("events/bad.jsonl:2", "$.data.api_access"), ("events/mistyped.jsonl:1", "$.data.api_acces")]
    assert "Passed" in check([*command, "events/good.jsonl", "README.md"])
