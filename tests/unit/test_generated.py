"""What `python -m docs.generate` writes: the committed files are up to date, and each example is what its page says.
The OpenAPI document is complete against the table of errors, and its examples fit its own schemas (`make lint` finds
what is not valid, or declared and not used). Pages show no figure that `make bench` did not print.
"""

import re
from collections.abc import Iterator
from itertools import product, zip_longest
from typing import Any

import jsonschema_rs
import orjson
import pytest

from api.errors import ApiError, NoSuchPath, Rebuilding, TooManyGuesses
from bench import outcome, pages
from docs.generate import asyncapi, events_page, tables
from docs.generate.__main__ import ROOT, files
from docs.generate.json_schema import components, descriptions, event_types, examples
from docs.generate.openapi import document
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.record import Record
from schemas.error_body import PROBLEMS
from schemas.resources import KINDS, LEAD, ORGANIZATION, RESOURCES
from schemas.settings import PROCESSES, variable

EVENTS = (ROOT / "docs" / "events.md").read_text("utf-8")


def test_every_generated_file_is_up_to_date() -> None:
    generated = files(ROOT)
    for path, text in generated.items():
        name = path.relative_to(ROOT)
        assert path.exists(), f"{name} is missing: run `.venv/bin/python -m docs.generate`"
        pairs = zip_longest(path.read_text("utf-8").splitlines(), text.splitlines())
        differing = [f"{name}:{number}" for number, (found, wanted) in enumerate(pairs, 1) if found != wanted]
        assert not differing, f"{differing[0]} is out of date: run `.venv/bin/python -m docs.generate`"
    assert set((ROOT / "docs" / "schemas").iterdir()) <= generated.keys(), "delete what nothing generates"


def test_every_setting_is_listed_once_and_has_a_meaning() -> None:
    rows = [row for of_process in tables.settings().values() for row in of_process]
    known = {f"`{variable(field)}`" for process in PROCESSES for field in process.__struct_fields__}
    assert sorted(row.name for row in rows) == sorted(known)
    assert [row.name for row in rows if not row.meaning or any("|" in cell for cell in row)] == []


def test_every_field_of_an_event_has_a_description() -> None:
    structs = [*event_types().values()]
    for schema in components(structs, "{name}")[1].values():
        without = [name for name, field in schema["properties"].items() if "description" not in field]
        assert set(without) <= {"type", "data"}, f"{schema['title']}: write a text below {without} in schemas/events.py"
    assert all(descriptions(struct) for struct in structs)


def record(event: Any, headers: tuple[tuple[str, bytes], ...] = ()) -> Record:
    """Returns a record of this event; in binary mode if there are headers."""
    kind = next(kind for kind in KINDS if event["type"].startswith(f"crm.{kind.noun}."))
    ids = [event["data"]["organization_id"], *([] if kind is ORGANIZATION else [event["data"]["id"]])]
    value = orjson.dumps(event["data"] if headers else event)
    return Record(f"crm.{kind.topic}", 0, 0, 0, ":".join(ids).encode(), value, headers, kind)


def test_the_good_examples_are_good_in_both_modes() -> None:
    blocks = re.findall(r"```json\n(.*?)```", EVENTS.partition("## All events")[2], re.DOTALL)
    shown = [orjson.loads(block) for block in blocks]
    good = examples()
    assert shown == [good[event["type"]] for event in shown]
    deletions = {type_ for type_ in event_types() if type_.endswith(".deleted")}  # which have the same fields
    assert {event["type"] for event in shown} == event_types().keys() - deletions | {events_page.DELETION}
    for event in good.values():
        headers = tuple((f"ce_{name}", value.encode()) for name, value in event.items() if name != "data")
        assert interpret(record(event, headers)) == interpret(record(event))
        assert (events_page.shown(event["type"]) in EVENTS) == (event in shown)


def test_the_bad_examples_have_the_printed_reasons() -> None:
    for bad in (bad for type_ in event_types() for bad in events_page.bad_examples(type_)):
        with pytest.raises(BadRecord) as raised:
            interpret(record(bad.event))
        assert raised.value.reason == bad.reason


def test_the_lead_to_paste_is_good() -> None:
    page = re.sub(r"\$\{?ORGANIZATION\}?", LEAD.event_example.organization_id, EVENTS)
    [line] = re.findall(r"^(\S+?)\|(\{.*\})$", page, re.MULTILINE)
    event = orjson.loads(line[1])
    assert record(event).key == line[0].encode()
    interpret(record(event))


def test_the_examples_of_asyncapi_fit_its_schemas() -> None:
    document = asyncapi.document()
    for message in document["components"]["messages"].values():
        for part in {"payload", "headers"} & message.keys():
            schema = {"components": document["components"], **message[part]}
            for example in message.get("examples", ()):
                jsonschema_rs.validate(schema, example[part])


LEADS = "/api/v1/ext/leads/{id}"
PATHS = [f"/api/v1/ext/{resource.topic}/{{id}}" for resource in RESOURCES]
RATE_LIMIT = {"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found: Any = document()
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    assert isinstance(found, dict)
    return found


def answer(path: str, method: str, status: int) -> dict[str, Any]:
    return resolved(document()["paths"][path][method]["responses"][str(status)])


def content_of(path: str, status: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the JSON of an answer as it is described, and its schema."""
    content = answer(path, "get", status)["content"]["application/json"]
    return content, {**content["schema"], "components": document()["components"]}


def test_every_status_of_the_contract_is_described() -> None:
    expected = {200, 304} | {problem.status for problem in PROBLEMS}
    for path, method in product(PATHS, ("get", "head")):
        assert {int(status) for status in document()["paths"][path][method]["responses"]} == expected


def test_every_problem_has_an_example() -> None:
    for problem in PROBLEMS:
        content, schema = content_of(LEADS, problem.status)
        example = content["examples"][problem.code]["value"]
        jsonschema_rs.validate(schema, example)
        assert (example["error"], example["status"]) == (problem.code, problem.status)


def test_the_example_of_a_record_is_valid() -> None:
    for path in PATHS:
        content, schema = content_of(path, 200)
        jsonschema_rs.validate(schema, content["example"], validate_formats=True)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        pytest.param(200, {"ETag", "Data-As-Of", "Preference-Applied"} | RATE_LIMIT, id="record"),
        pytest.param(304, {"ETag", "Data-As-Of", "Preference-Applied"} | RATE_LIMIT, id="not modified"),
        pytest.param(400, RATE_LIMIT, id="invalid id"),
        pytest.param(401, {"WWW-Authenticate"}, id="not authenticated"),
        pytest.param(403, set(), id="no access"),
        pytest.param(404, {"Data-As-Of", "Preference-Applied"} | RATE_LIMIT, id="not found"),
        pytest.param(405, {"Allow"}, id="another method"),
        pytest.param(429, {"Retry-After"} | RATE_LIMIT, id="rate limit"),
        pytest.param(503, {"Retry-After"}, id="unavailable"),
    ],
)
def test_description_of_each_answer_has_its_headers(status: int, headers: set[str]) -> None:
    expected = headers | {"X-Request-Id", "Cache-Control"}
    for method in ("get", "head"):
        assert answer(LEADS, method, status)["headers"].keys() == expected


def test_every_field_is_described() -> None:
    for name, schema in document()["components"]["schemas"].items():
        assert "description" in schema, f"give the Struct {name} a docstring"
        fields = [field for field, found in schema["properties"].items() if "description" not in found]
        assert fields == [], f"add Meta(description=…) to these fields of {name}"


def all_errors(base: type[ApiError]) -> list[type[ApiError]]:
    return [base, *(error for child in base.__subclasses__() for error in all_errors(child))]


def test_what_is_described_is_what_the_api_raises() -> None:
    """But for three messages: the description shows the usual one of their code."""
    unusual = (NoSuchPath, Rebuilding, TooManyGuesses)
    raised = {(e.code, e.status, e.message) for e in all_errors(ApiError) if e not in unusual}
    assert raised == {(problem.code, problem.status, problem.message) for problem in PROBLEMS}


@pytest.mark.parametrize("name", ["README.md", "bench/README.md", "docs/capacity.md"])
def test_page_shows_the_figures_of_the_results(name: str) -> None:
    wanted = pages.pages(outcome.read(ROOT / "bench" / "results.json"))[ROOT / name]
    assert (ROOT / name).read_text("utf-8") == wanted, "run `python -m bench.pages`"


def test_the_readme_says_no_other_figure() -> None:
    """A number with a unit of measurement outside of what is made from the results would be one that nobody prints."""
    text = re.sub(
        r"<!-- from (?:bench|make test-images).*?<!-- end -->",
        "",
        (ROOT / "README.md").read_text("utf-8"),
        flags=re.DOTALL,
    )
    assert re.findall(r"\d[\d,.]* ?(?:ms|µs|MB|GB|requests/s|records/s|times)\b", text) == []


def _schemas(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for inner in node:
            yield from _schemas(inner)
    elif isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from _schemas(inner)


def test_schemas_of_responses_let_generated_clients_read_every_response() -> None:
    """Of a schema that is not open, clients in Go and Java refuse a field that comes later."""
    for schema in _schemas(document()["components"]["schemas"]):
        match schema:
            case {"type": "object"}:
                assert schema["additionalProperties"], "a map of values has their schema here"
            case {"type": "integer"}:
                assert schema["format"] == "int64"
            case {"type": "number"}:
                assert schema["format"] == "double"
            case {"enum": [*_]} | {"format": "uuid"}:
                assert schema["type"] == "string"
                assert "pattern" not in schema
