"""A producer's repository checks its events before each commit, with pre-commit. `make wire` installs it."""

import os
import re
import subprocess
from functools import partial
from pathlib import Path

import orjson
import pytest

from docs.generate.json_schema import examples
from tests.harness.programs import printed_by

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parents[3]
PRE_COMMIT = ROOT / "build" / "wire" / "bin" / "pre-commit"


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
