"""The guard of `mapping.VERSION`: documents that change without it would never be rebuilt."""

import hashlib
import re
from pathlib import Path

import msgspec
import orjson
import pytest
from msgspec.structs import replace

from projector import mapping
from schemas.resources import RESOURCES
from tests.harness import crm
from tests.harness.expected import documents_of

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "tests" / "data" / "mapping-versions.json"
"""The hash of the documents of `fixed_events` for each version of the mapping that there ever was."""
MINIMAL_ID = crm.uuid(0xE1)


def fixed_events() -> list[crm.Message]:
    """Returns for each resource an event with every field (test_resources.py asserts that), and a minimal one."""
    return [
        crm.changed(resource, msgspec.to_builtins(entity))
        for resource in RESOURCES
        for entity in (resource.event_example, replace(crm.minimal(resource), id=MINIMAL_ID))
    ]


def test_documents_change_with_the_version_only() -> None:
    documents = documents_of(message.record(offset) for offset, message in enumerate(fixed_events()))
    assert len(documents) == 2 * len(RESOURCES)
    ordered = sorted(documents.items(), key=lambda item: (item[0][0].topic, item[0][2]))
    found = hashlib.sha256(b"\n".join(document for _, document in ordered)).hexdigest()
    history = orjson.loads(HISTORY.read_bytes())
    version = str(mapping.VERSION)
    assert version in history, f'add the line "{version}": "{found}" to tests/data/{HISTORY.name}'
    assert history[version] == found, (
        f"The documents changed, so live generations need a rebuild. Raise VERSION in projector/mapping.py to "
        f'{mapping.VERSION + 1}, add "{mapping.VERSION + 1}": "{found}" to tests/data/{HISTORY.name} (change no other '
        f"line), and run `python -m docs.generate`. Only if this version was never released, replace its hash instead."
    )
    assert max(map(int, history)) == mapping.VERSION


@pytest.mark.parametrize("version", orjson.loads(HISTORY.read_bytes()))
def test_the_changelog_names_every_version(version: str) -> None:
    """An operator reads there which release needs a rebuild."""
    named = re.findall(r"mapping\s+version\s+(\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.IGNORECASE)
    assert version in named, f"describe the change in CHANGELOG.md, and write that it is mapping version {version}"
