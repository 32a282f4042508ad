"""Confluent's own serializer publishes with the frame of a schema registry. `make wire` installs it."""

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from projector.reference import documents_of
from schemas import resources
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "wire" / "bin" / "python"
EXAMPLE = ROOT / "docs" / "examples" / "publish_with_registry.py"
REGISTRY = "mock://in-memory"
"""The client's own registry in memory. Only the producer asks it: Leadview does not know where it is."""


def values(leadview: Leadview, topic: str) -> list[tuple[bytes, list[str]]]:
    """Returns the first byte of the value and the names of the headers, of each record of a topic."""
    found: list[tuple[bytes, list[str]]] = []
    consumer = Consumer({
        "bootstrap.servers": leadview.kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"
    })  # fmt: skip
    try:
        consumer.subscribe([topic])
        while len(found) < 2:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
            found.append(((message.value() or b"")[:1], [name for name, _ in message.headers() or ()]))
    finally:
        consumer.close()
    return found


def test_events_in_the_frame_of_a_registry_are_applied(leadview: Leadview) -> None:
    assert PYTHON.is_file(), "run `make wire`, which installs Confluent's serializer"
    topic = leadview.topics.name(resources.LEAD)
    other = {"id": crm.OTHER_LEAD, "tags": ["the id of the schema is in a header"]}
    messages = (crm.lead(2, referrer="the id of the schema is in the value"), crm.lead(3, **other))
    for message, *flag in ((messages[0],), (messages[1], "--id-in-header")):
        subprocess.run(
            [PYTHON, EXAMPLE, leadview.kafka.bootstrap_servers, REGISTRY, topic]
            + [ROOT / "docs" / "schemas" / "crm.lead.changed.json", *flag],
            input=(message.value or b"") + b"\n",
            check=True,
            timeout=PATIENCE_SECONDS,
        )
    assert sorted(values(leadview, topic)) == [(b"\0", []), (b"{", ["__value_schema_id"])]
    leadview.publish(crm.organization())
    leadview.start("run")
    expected = documents_of([message.record(offset) for offset, message in enumerate(messages)])
    wait_until(lambda: leadview.documents() == expected, "both leads are there")
