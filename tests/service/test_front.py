"""The TLS front as deploy/Caddyfile describes it, where Caddy is installed: what is not ours is answered in JSON."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from devstack.ports import free_port
from tests.harness.api_server import ApiServer
from tests.harness.front import Front

JSON = "application/json"
WELL_KNOWN = {
    "LEADVIEW_DOCS_URL": "https://docs.example/leadview/",
    "FRONT_SECURITY_CONTACT": "mailto:security@example.com",
    "FRONT_SECURITY_EXPIRES": "2027-01-01T00:00:00Z",
}


@pytest.fixture(scope="module")
def front(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front.running(tmp_path_factory.mktemp("front"), [f"127.0.0.1:{api.port}"]) as front:
        yield front


@pytest.mark.parametrize(
    ("method", "target", "host", "status", "code"),
    [
        pytest.param("GET", "/nothing", None, 404, "not_found", id="the API answers"),
        pytest.param("GET", "/.well-known/api-catalog", None, 404, "not_found", id="a catalog that is not set"),
        pytest.param("GET", "/.well-known/security.txt", None, 404, "not_found", id="a contact that is not set"),
        pytest.param("TRACE", "/healthz", None, 405, "method_not_allowed", id="another method"),
        pytest.param("GET", "/healthz", "elsewhere.example", 421, "misdirected_request", id="a foreign Host"),
        pytest.param("GET", "http://elsewhere.example/healthz", None, 421, "misdirected_request", id="a foreign URL"),
        pytest.param("CONNECT", "elsewhere.example:443", None, 421, "misdirected_request", id="CONNECT to elsewhere"),
        pytest.param("CONNECT", "localhost:PORT", None, 405, "method_not_allowed", id="CONNECT to itself"),
    ],
)
def test_every_answer_is_json(front: Front, method: str, target: str, host: str | None, status: int, code: str) -> None:
    answered, headers, body = front.ask(method, target.replace("PORT", str(front.port)), host)
    problem: dict[str, Any] = orjson.loads(body)
    assert (answered, problem["error"], problem["status"]) == (status, code, status)
    told = {"content-type": JSON, "cache-control": "no-store", "x-request-id": problem["request_id"]}
    assert headers | told == headers
    assert "server" not in headers


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        pytest.param({}, "max-age=31536000", id="a year"),
        pytest.param({"FRONT_HSTS_SECONDS": "0"}, "max-age=0", id="never, as compose.yaml says for localhost"),
    ],
)
def test_browsers_are_told_to_use_https_only(
    api: ApiServer, tmp_path: Path, variables: dict[str, str], sent: str
) -> None:
    with Front.running(tmp_path, [f"127.0.0.1:{api.port}"], variables=WELL_KNOWN | variables) as front:
        ours = [("GET", "/healthz"), ("GET", "/nothing"), ("GET", "/.well-known/security.txt"), ("TRACE", "/healthz")]
        ours.append(("CONNECT", f"localhost:{front.port}"))
        told = [front.ask(method, target)[1]["strict-transport-security"] for method, target in ours]
        foreign = front.ask("GET", "/healthz", "elsewhere.example")[1]
        plain = ApiServer(front.port).get("/healthz")
    assert told == [sent] * len(ours)
    assert "strict-transport-security" not in foreign, "what other hosts do is not ours to say"
    assert (plain.status, "strict-transport-security" in plain.headers) == (400, False), "over HTTP it counts nothing"


def test_front_without_an_api_answers_503(tmp_path: Path) -> None:
    with Front.running(tmp_path, [f"127.0.0.1:{free_port()}"], status=503) as front:
        status, headers, body = front.ask("GET", "/healthz")
    problem = orjson.loads(body)
    assert (status, problem["error"], problem["status"]) == (503, "service_unavailable", 503)
    assert headers | {"content-type": JSON, "strict-transport-security": "max-age=31536000"} == headers


def test_well_known_pages_are_served_if_they_are_set(api: ApiServer, tmp_path: Path) -> None:
    with Front.running(tmp_path, [f"127.0.0.1:{api.port}"], variables=WELL_KNOWN) as front:
        own = f"https://localhost:{front.port}"
        _, catalog, body = front.ask("GET", "/.well-known/api-catalog")
        (links,) = orjson.loads(body)["linkset"]
        targets = {name: links[name][0]["href"] for name in ("service-desc", "service-doc", "status")}
        description = orjson.loads(front.ask("GET", targets["service-desc"].removeprefix(own))[2])
        status, head, _ = front.ask("HEAD", "/.well-known/api-catalog")
        _, security, contact = front.ask("GET", "/.well-known/security.txt")
        others = [front.ask("POST", f"/.well-known/{name}")[0] for name in ("api-catalog", "security.txt")]
    assert catalog["content-type"].startswith("application/linkset+json; profile=")
    assert (status, head["link"]) == (200, '</.well-known/api-catalog>; rel="api-catalog"')
    assert (links["anchor"], targets["service-doc"]) == (f"{own}/api/v1/ext", WELL_KNOWN["LEADVIEW_DOCS_URL"])
    assert description["openapi"] == "3.1.0"
    assert (security["content-type"], contact.decode().splitlines()) == (
        "text/plain; charset=utf-8",
        [
            "Contact: mailto:security@example.com",
            "Expires: 2027-01-01T00:00:00Z",
            f"Canonical: {own}/.well-known/security.txt",
        ],
    )
    assert others == [404, 404]
