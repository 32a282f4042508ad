"""The OpenAPI document is valid, complete against the contract's table, and its examples fit its own schemas.

`make lint` finds what it declares and does not use.
"""

from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from api.errors import ApiError, NoSuchPath, Rebuilding, TooManyGuesses
from docs.generate.openapi import document
from schemas.problems import PROBLEMS
from schemas.resources import RESOURCES

LEAD = "/api/v1/ext/leads/{id}"
CONTACT = "/api/v1/ext/contacts/{id}"
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


def schema_of(reference: dict[str, Any]) -> dict[str, Any]:
    return {**reference, "components": document()["components"]}


def test_it_is_valid_openapi() -> None:
    assert [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(document())] == []


def test_every_status_of_the_contract_is_described() -> None:
    expected = {200, 304} | {problem.status for problem in PROBLEMS}
    for path in PATHS:
        for method in ("get", "head"):
            assert {int(status) for status in document()["paths"][path][method]["responses"]} == expected


def test_every_problem_has_an_example() -> None:
    for problem in PROBLEMS:
        content = answer(LEAD, "get", problem.status)["content"]["application/json"]
        example = content["examples"][problem.code]["value"]
        jsonschema_rs.validate(schema_of(content["schema"]), example)
        assert (example["error"], example["status"]) == (problem.code, problem.status)


def test_the_example_of_a_record_is_valid() -> None:
    for path in PATHS:
        content = answer(path, "get", 200)["content"]["application/json"]
        jsonschema_rs.validate(schema_of(content["schema"]), content["example"], validate_formats=True)


def test_a_record_may_get_new_fields() -> None:
    content = answer(CONTACT, "get", 200)["content"]["application/json"]
    jsonschema_rs.validate(schema_of(content["schema"]), content["example"] | {"new_field": 1})


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        pytest.param(200, {"ETag", "Data-As-Of"} | RATE_LIMIT, id="record"),
        pytest.param(304, {"ETag", "Data-As-Of"} | RATE_LIMIT, id="not modified"),
        pytest.param(400, RATE_LIMIT, id="invalid id"),
        pytest.param(401, {"WWW-Authenticate"}, id="not authenticated"),
        pytest.param(403, set(), id="no access"),
        pytest.param(404, {"Data-As-Of"} | RATE_LIMIT, id="not found"),
        pytest.param(405, {"Allow"}, id="another method"),
        pytest.param(429, {"Retry-After"} | RATE_LIMIT, id="rate limit"),
        pytest.param(503, {"Retry-After"}, id="unavailable"),
    ],
)
def test_headers_of_each_answer(status: int, headers: set[str]) -> None:
    expected = headers | {"X-Request-Id", "Cache-Control"}
    for method in ("get", "head"):
        assert answer(LEAD, method, status)["headers"].keys() == expected


def test_head_has_no_body() -> None:
    responses = document()["paths"][LEAD]["head"]["responses"]
    assert not [status for status in responses if "content" in answer(LEAD, "head", int(status))]


def test_only_the_resources_need_a_key() -> None:
    assert document()["security"] == [{"apiKey": []}]
    get = {path: item["get"].get("security") for path, item in document()["paths"].items()}
    public = ("/api/v1/ext/openapi.json", "/healthz", "/readyz")
    assert get == dict.fromkeys(PATHS) | {path: [] for path in public}


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
