"""The schemas of the change events, and that the files in `docs/` are what the Structs give."""

from itertools import zip_longest
from pathlib import Path

import jsonschema_rs
import pytest

from docs.generate.__main__ import ROOT, files
from docs.generate.json_schema import event_schemas, event_types
from schemas.resources import KINDS

GENERATED = files(ROOT)


def test_there_are_two_schemas_for_each_type() -> None:
    types = {f"crm.{kind.noun}.{verb}" for kind in KINDS for verb in ("changed", "deleted")}
    assert event_types().keys() == types
    assert event_schemas().keys() == types | {f"{name}.data" for name in types}


@pytest.mark.parametrize("name", event_schemas())
def test_they_are_valid_json_schema(name: str) -> None:
    jsonschema_rs.meta.validate(event_schemas()[name])


ORGANIZATION = "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"


@pytest.mark.parametrize(
    ("data", "valid"),
    [
        pytest.param({}, True, id="whole"),
        pytest.param({"unknown": [1]}, True, id="unknown fields are allowed"),
        pytest.param({"rate_limits": None}, True, id="optional may be null"),
        pytest.param({"rate_limits": {"key": {"quota": 1, "window_seconds": 1}}}, True, id="limits"),
        pytest.param({"rate_limits": {"key": {"quota": 0, "window_seconds": 1}}}, False, id="quota 0"),
        pytest.param({"version": 0}, False, id="version 0"),
        pytest.param({"version": 2**53}, False, id="version 2^53"),
        pytest.param({"id": "1"}, False, id="no uuid"),
        pytest.param({"api_access": None}, False, id="required is null"),
    ],
)
def test_data_of_an_organization(data: dict[str, object], valid: bool) -> None:
    whole = {"id": ORGANIZATION, "organization_id": ORGANIZATION, "version": 1, "api_access": True} | data
    schemas = event_schemas()
    assert jsonschema_rs.is_valid(schemas["crm.organization.changed.data"], whole) is valid
    event = {"specversion": "1.0", "id": "1", "source": "/crm", "type": "crm.organization.changed", "data": whole}
    assert jsonschema_rs.is_valid(schemas["crm.organization.changed"], event) is valid


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in GENERATED])
def test_the_committed_file_is_what_the_structs_give(path: Path) -> None:
    name = path.relative_to(ROOT)
    assert path.exists(), f"{name} is missing: run `python -m docs.generate`"
    pairs = zip_longest(path.read_text("utf-8").splitlines(), GENERATED[path].splitlines())
    differing = [f"{name}:{number}" for number, (found, wanted) in enumerate(pairs, 1) if found != wanted]
    assert not differing, f"{differing[0]} is out of date: run `python -m docs.generate`"


def test_no_other_file_is_left_over() -> None:
    wanted = {path.name for path in GENERATED if path.parent.name == "schemas"}
    assert {path.name for path in (ROOT / "docs" / "schemas").iterdir()} - wanted == set(), (
        "delete what nothing generates"
    )
