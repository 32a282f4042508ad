"""Confluent's own serializer publishes with the frame of a schema registry. `make wire` installs it."""

import subprocess
from pathlib import Path

import pytest

from schemas import resources
from tests.harness import crm
from tests.harness.expected import documents_of
from tests.harness.leadview import Leadview
from tests.harness.topics import records
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "wire" / "bin" / "python"
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
