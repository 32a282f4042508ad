"""A change of the OpenAPI document that breaks clients of the last release is refused. `make lint-openapi` runs it."""

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from docs.generate.openapi import document

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[3]
OASDIFF = ROOT / "build" / "reference" / "oasdiff"
RELEASED = ROOT / "docs" / "released" / "openapi.json"
ACCEPTED = ROOT / "docs/generate/reference" / "accepted-changes.txt"
LEADS = "/api/v1/ext/leads/{id}"

STRICT = ("--fail-on", "WARN", "--err-ignore", ACCEPTED)
"""The exit status is 1 if a change breaks clients and is not accepted."""

Json = dict[str, Any]


def breaking(changed: Json, folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Returns what oasdiff says about a document."""
    assert OASDIFF.exists(), "run `make lint-openapi`, which installs oasdiff"
    path = folder / "openapi.json"
    path.write_bytes(orjson.dumps(changed))
    command = [OASDIFF, "breaking", RELEASED, path, *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def test_clients_of_the_last_release_keep_working(tmp_path: Path) -> None:
    done = breaking(document(), tmp_path, *STRICT)
    assert done.returncode == 0, f"{done.stdout}\nUndo this change, or accept it with a reason in {ACCEPTED.name}."


def test_what_is_accepted_still_differs(tmp_path: Path) -> None:
    """So that a line which is no longer needed hides nothing else."""
    found = breaking(document(), tmp_path, "--format", "singleline", "--color", "never").stdout
    accepted = [line for line in ACCEPTED.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert [line for line in accepted if line not in found] == []


def remove_a_field(changed: Json) -> None:
    lead = changed["components"]["schemas"]["Lead"]
    del lead["properties"]["stage"]
    lead["required"].remove("stage")


def change_a_type(changed: Json) -> None:
    changed["components"]["schemas"]["Lead"]["properties"]["notes_count"] = {"type": "string"}


def remove_a_path(changed: Json) -> None:
    del changed["paths"][LEADS]


def require_a_header(changed: Json) -> None:
    changed["components"]["parameters"]["RequestId"]["required"] = True


@pytest.mark.parametrize("plant", [remove_a_field, change_a_type, remove_a_path, require_a_header])
def test_a_breaking_change_is_refused(plant: Callable[[Json], None], tmp_path: Path) -> None:
    changed = copy.deepcopy(document())
    plant(changed)
    done = breaking(changed, tmp_path, *STRICT)
    assert done.returncode == 1, done.stdout
