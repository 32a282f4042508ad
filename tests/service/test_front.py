"""The TLS front as deploy/Caddyfile describes it, where Caddy is installed: what is not ours is answered in JSON."""

import http.client
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from devstack.ports import free_port
from tests.harness.api_server import ApiServer, patient, running_api
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

CADDYFILE = Path(__file__).parents[2] / "deploy/Caddyfile"

pytestmark = pytest.mark.skipif(shutil.which("caddy") is None, reason="Caddy is not installed: it is only an example")


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    with running_api(patient(redis_server.url, api_trusted_proxies="127.0.0.1")) as api:
        yield api


WELL_KNOWN = {
    "LEADVIEW_DOCS_URL": "https://docs.example/leadview/",
    "FRONT_SECURITY_CONTACT": "mailto:security@example.com",
    "FRONT_SECURITY_EXPIRES": "2027-01-01T00:00:00Z",
}


@pytest.fixture(scope="module")
def front(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yields its port."""
    with running_front(api, tmp_path_factory.mktemp("front"), {}) as port:
        yield port


@contextmanager
def running_front(api: ApiServer, folder: Path, settings: dict[str, str]) -> Iterator[int]:
    port = free_port()
    text = CADDYFILE.read_text("utf-8").replace("api:8000", f"127.0.0.1:{api.port}").replace("8443", str(port))
    # Debian's Caddy does not know this option yet.
    (folder / "Caddyfile").write_text(text.replace("\tpersist_config off\n", ""), "utf-8")
    environment = (
        os.environ | settings | {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    )
    command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: answers(port), "the front answers")
            yield port
        finally:
            process.terminate()
            process.wait()


def ask(port: int, method: str, target: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    context = ssl._create_unverified_context()  # noqa: S323 - its CA is a moment old
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=PATIENCE_SECONDS)
    try:
        connection.putrequest(method, target, skip_host=True)
        connection.putheader("Host", host or f"localhost:{port}")
        connection.endheaders()
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/healthz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    ("method", "target", "host", "status", "code"),
    [
        pytest.param("GET", "/nothing", None, 404, "not_found", id="the API answers"),
        pytest.param("TRACE", "/healthz", None, 405, "method_not_allowed", id="another method"),
        pytest.param("GET", "/healthz", "elsewhere.example", 421, "misdirected_request", id="a foreign Host"),
        pytest.param("GET", "http://elsewhere.example/healthz", None, 421, "misdirected_request", id="a foreign URL"),
        pytest.param("CONNECT", "elsewhere.example:443", None, 421, "misdirected_request", id="CONNECT to elsewhere"),
        pytest.param("CONNECT", "localhost:PORT", None, 405, "method_not_allowed", id="CONNECT to itself"),
    ],
)
def test_every_answer_is_json(front: int, method: str, target: str, host: str | None, status: int, code: str) -> None:
    answered, headers, body = ask(front, method, target.replace("PORT", str(front)), host)
    problem: dict[str, Any] = msgspec.json.decode(body)
    assert (answered, problem["error"], problem["status"]) == (status, code, status)
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert headers["x-request-id"] == problem["request_id"]
    assert "server" not in headers


def test_options_without_a_path_is_answered_by_go(front: int) -> None:
    """It is documented in docs/decisions.md: Caddy has no say in it."""
    status, _, body = ask(front, "OPTIONS", "*")
    assert (status, body) == (200, b"")


@pytest.mark.parametrize("path", ["/.well-known/api-catalog", "/.well-known/security.txt"])
def test_nothing_is_well_known_unless_it_is_set(front: int, path: str) -> None:
    status, _, body = ask(front, "GET", path)
    assert (status, msgspec.json.decode(body)["error"]) == (404, "not_found")


def test_what_is_well_known_if_it_is_set(api: ApiServer, tmp_path: Path) -> None:
    with running_front(api, tmp_path, WELL_KNOWN) as port:
        catalog, head, security, others = (
            ask(port, "GET", "/.well-known/api-catalog"),
            ask(port, "HEAD", "/.well-known/api-catalog"),
            ask(port, "GET", "/.well-known/security.txt"),
            [ask(port, "POST", f"/.well-known/{name}") for name in ("api-catalog", "security.txt")],
        )
        (links,) = msgspec.json.decode(catalog[2])["linkset"]
        targets = {name: links[name][0]["href"] for name in ("service-desc", "service-doc", "status")}
        description = ask(port, "GET", targets["service-desc"].removeprefix(f"https://localhost:{port}"))
    assert catalog[1]["content-type"].startswith("application/linkset+json; profile=")
    assert (head[0], head[1]["link"]) == (200, '</.well-known/api-catalog>; rel="api-catalog"')
    assert links["anchor"] == f"https://localhost:{port}/api/v1/ext"
    assert targets["service-doc"] == WELL_KNOWN["LEADVIEW_DOCS_URL"]
    assert msgspec.json.decode(description[2])["openapi"] == "3.1.0"
    assert security[1]["content-type"] == "text/plain; charset=utf-8"
    assert security[2].decode().splitlines() == [
        "Contact: mailto:security@example.com",
        "Expires: 2027-01-01T00:00:00Z",
        f"Canonical: https://localhost:{port}/.well-known/security.txt",
    ]
    assert [status for status, _, _ in others] == [404, 404]
