"""What `make lint` runs with tools of others.

A change that breaks clients of the last release is refused, and so is one that breaks producers: events that were good
have to stay good. And gitleaks with the rule for API keys (`docs/examples/gitleaks.toml`) finds those that leaked, and
nothing else: tests/unit/test_api_keys.py has further texts, for the expression alone.
"""

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from docs.generate import asyncapi, openapi
from docs.generate.key_vectors import vectors
from tests.harness.programs import printed_by

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[3]
OASDIFF = ROOT / "build" / "reference" / "oasdiff"
ACCEPTED = ROOT / "docs/generate/reference" / "accepted-changes.txt"

STRICT = ("--fail-on", "WARN", "--err-ignore", ACCEPTED, "--warn-ignore", ACCEPTED)
"""The exit status is 1 if a change breaks clients or producers and is not accepted."""

Json = dict[str, Any]


def as_requests(document: Json) -> Json:
    """Returns the OpenAPI document of an API to which producers send each message of an AsyncAPI document.

    oasdiff knows what breaks those who send requests. It does not notice that an object was closed for unknown fields,
    so that is said by their names.
    """
    paths = {
        f"/{channel['address']}/{name}": {
            "post": {
                "requestBody": {"required": True, "content": _content(document["components"]["messages"][name])},
                "responses": {"204": {"description": "It is published."}},
            }
        }
        for channel in document["channels"].values()
        for name in channel["messages"]
    }
    schemas = {"schemas": document["components"]["schemas"]}
    requests: Json = _by_names({"openapi": "3.1.0", "info": document["info"], "paths": paths, "components": schemas})
    return requests


def _content(message: Json) -> Json:
    parts = {"key": message["bindings"]["kafka"]["key"], "value": message["payload"]}
    if "headers" in message:
        parts["headers"] = message["headers"]
    schema = {"type": "object", "properties": parts, "required": list(parts)}
    return {message.get("contentType", "application/json"): {"schema": schema}}


def _by_names(part: Any) -> Any:
    match part:
        case {"additionalProperties": False, **others}:
            names: Any = others.get("properties", {})
            return _by_names({**others, "propertyNames": {"enum": list(names)}})
        case dict():
            return {name: _by_names(each) for name, each in part.items()}
        case list():
            return [_by_names(each) for each in part]
        case _:
            return part


class Contract(NamedTuple):
    """What was released, what is there now, and how oasdiff is told."""

    released: Path
    now: Callable[[], Json]
    told: Callable[[Json], Json] = copy.copy


API = Contract(ROOT / "docs" / "released" / "openapi.json", openapi.document)
EVENTS = Contract(ROOT / "docs" / "released" / "asyncapi.json", asyncapi.document, as_requests)
BOTH = [pytest.param(API, id="API"), pytest.param(EVENTS, id="events")]


def breaking(of: Contract, changed: Json, folder: Path, *options: str | Path, status: int = 0) -> str:
    assert OASDIFF.exists(), "run `make lint`, which installs oasdiff"
    old, new = folder / "released.json", folder / "changed.json"
    old.write_bytes(orjson.dumps(of.told(orjson.loads(of.released.read_bytes()))))
    new.write_bytes(orjson.dumps(of.told(changed)))
    return printed_by([OASDIFF, "breaking", old, new, *options], status=status)


@pytest.mark.parametrize("contract", BOTH)
def test_what_worked_with_the_last_release_keeps_working(contract: Contract, tmp_path: Path) -> None:
    """Otherwise undo this change, or accept it with a reason in `accepted-changes.txt`."""
    breaking(contract, contract.now(), tmp_path, *STRICT)


def test_what_is_accepted_still_differs(tmp_path: Path) -> None:
    """So that a line which is no longer needed hides nothing else."""
    plain = ("--format", "singleline", "--color", "never")
    found = "".join(breaking(contract, contract.now(), tmp_path, *plain) for contract in (API, EVENTS))
    accepted = [line for line in ACCEPTED.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert [line for line in accepted if line not in found] == []


def part(changed: Json, *where: str | int) -> Any:
    """Returns the part at this place below `components`."""
    found: Any = changed["components"]
    for step in where:
        found = found[step]
    return found


def lead(*where: str | int, **content: Any) -> Callable[[Json], None]:
    """Returns a change of a field of a lead; without a place, of its fields."""
    return lambda changed: part(changed, "schemas", "Lead", "properties", *where).update(content)


STAGES = ("schemas", "Lead", "properties", "stage", "enum")
KEY = ("messages", "crm.lead.changed", "bindings", "kafka", "key")
STRING, OPTIONAL = {"type": "string"}, [{"type": "string"}, {"type": "null"}]


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(
            lambda it: part(it, "schemas", "Lead", "required").append("tags"), id="an optional field is required"
        ),
        pytest.param(
            lambda it: part(it, "schemas", "LeadChanged", "required").append("time"),
            id="an optional attribute is required",
        ),
        pytest.param(
            lambda it: part(it, "messages", "crm.lead.changed.binary", "headers", "required").append("ce_time"),
            id="an optional header is required",
        ),
        pytest.param(lead("version", type="string"), id="another type"),
        pytest.param(lead(event_location=STRING), id="null is no longer good"),
        pytest.param(lead("tags", "anyOf", 0, items={"type": "integer"}), id="another type of entries"),
        pytest.param(lambda it: part(it, *STAGES).remove("STALE"), id="a value of an enum is gone"),
        pytest.param(lead("referrer", "anyOf", 0, enum=["web"]), id="only some values"),
        pytest.param(lead("contact_id", pattern="^[0-9a-f-]{36}$"), id="another pattern"),
        pytest.param(lead("referrer", "anyOf", 0, pattern="^https:"), id="a pattern"),
        pytest.param(lead("booking_id", "anyOf", 0, format="uuid"), id="a format"),
        pytest.param(lead("created_at", format="date"), id="another format"),
        pytest.param(lead("version", maximum=1_000), id="a lower maximum"),
        pytest.param(lead("version", minimum=2), id="a higher minimum"),
        pytest.param(lead("referrer", "anyOf", 0, maxLength=100), id="a length"),
        pytest.param(lead("tags", "anyOf", 0, minItems=1), id="entries are required"),
        pytest.param(lambda it: part(it, "schemas", "Lead").update(additionalProperties=False), id="closed"),
        pytest.param(lead("attribution", "anyOf", 0, additionalProperties=False), id="an object in a field is closed"),
        pytest.param(lambda it: part(it, *KEY).update(maxLength=20), id="a shorter key"),
        pytest.param(lambda it: part(it, *KEY).update(pattern="^lead:"), id="another key"),
        pytest.param(lambda changed: changed["channels"]["leads"]["messages"].popitem(), id="a message is gone"),
        pytest.param(lambda it: it["channels"]["leads"].update(address="crm.inquiries"), id="another topic"),
    ],
)
def test_change_that_breaks_producers_is_refused(plant: Callable[[Json], object], tmp_path: Path) -> None:
    changed = copy.deepcopy(EVENTS.now())
    plant(changed)
    breaking(EVENTS, changed, tmp_path, *STRICT, status=1)


def test_change_that_all_events_survive_is_not_refused(tmp_path: Path) -> None:
    changed = copy.deepcopy(EVENTS.now())
    for plant in (
        lead(colour={"anyOf": OPTIONAL, "default": None}),
        lead("stage", description="Anything else"),
        lead("version", maximum=2**60),
        lead("contact_id", anyOf=OPTIONAL, type=["string", "null"]),
        lead("referrer", anyOf=[*OPTIONAL, {"type": "object"}]),
        lambda it: part(it, "schemas", "Lead", "required").remove("contact_id"),
        lambda it: part(it, *STAGES).append("LOST"),
        lambda it: part(it, "schemas").update(Unused={"type": "object"}),
        lambda it: part(it, *KEY).update(maxLength=500),
    ):
        plant(changed)
    breaking(EVENTS, changed, tmp_path, *STRICT)


GITLEAKS = ROOT / "build" / "reference" / "gitleaks"
RULE = ROOT / "docs" / "examples" / "gitleaks.toml"
FORM_OF_A_KEY = {
    "a line feed at the end",
    "wrong checksum",
    "two characters swapped",
    "upper and lower case swapped",
    "the organization part is 2^128, one more than a UUID can be; right checksum",
}
"""Malformed texts that hold a key, or what only its checksum tells from one."""


def test_gitleaks_finds_keys_and_nothing_else(tmp_path: Path) -> None:
    assert GITLEAKS.exists(), "run `make lint`, which installs gitleaks"
    known = vectors()
    texts = [f'export API_KEY="{vector.key}" # {number}\n' for number, vector in enumerate(known.valid)]
    texts += [row.text for row in known.malformed]
    texts += [known.valid[2].key.upper(), f"{known.valid[2].key}0", known.valid[2].sha256]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02}.txt").write_text(text, "utf-8")
    report = tmp_path / "found" / "report.json"
    report.parent.mkdir()
    subprocess.run(
        [GITLEAKS, "dir", "--no-banner", "--exit-code", "0", "--config", RULE, "--report-path", report, tmp_path],
        check=True,
        timeout=60,
    )
    found = {Path(leak["File"]).stem: leak["Secret"] for leak in orjson.loads(report.read_bytes())}
    malformed = enumerate(known.malformed, len(known.valid))
    assert found == {f"{number:02}": vector.key for number, vector in enumerate(known.valid)} | {
        f"{number:02}": row.text.strip() for number, row in malformed if row.why in FORM_OF_A_KEY
    }
