"""`doctor --url` behind gateways: deploy/Caddyfile and a good nginx keep every rule, and each fault of an nginx is
named alone.
"""

import asyncio
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4
from zipfile import ZipFile

import pytest
from rich.console import Console

from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import PROJECTOR, environment
from projector.commands.arguments import parse
from projector.commands.doctor import run_doctor
from projector.commands.gateway import RULES
from projector.commands.operator import Operator
from projector.redis.store import Store
from schemas import api_keys
from schemas.settings import ProjectorSettings
from tests.harness import certificates
from tests.harness.api_server import ApiServer, patient, running_api
from tests.harness.certificates import Certificate
from tests.harness.front import Front
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService, not_available
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

# The paths, because Debian's nginx would use folders of root; and no other user could write into ours.
_NGINX = """
daemon off; user root; pid nginx.pid; error_log stderr; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    proxy_cache_path cache keys_zone=cache:1m;
    default_type text/html;
    gzip on; gzip_types application/json; gzip_proxied any; gzip_min_length 100;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate}; ssl_certificate_key {key};
        large_client_header_buffers {buffers};
        {server}
        location / {{
            proxy_pass http://127.0.0.1:{api};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_hide_header Data-As-Of;  # whether the API sends it depends on projectors
            {location}
        }}
    }}
}}
"""
UNSEEN = {"Retry-After", "Data-As-Of"}
UNSEEN_WITHOUT_KEY = UNSEEN | {"a key is accepted", "RateLimit"}
ALL = {"HTTPS"} | {rule.name for rule in RULES}


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    with running_api(patient(redis_server.url)) as api:
        yield api


@pytest.fixture
def caller(records: Records) -> Caller:
    return records.caller()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.create(tmp_path_factory.mktemp("certificate"))


@contextmanager
def nginx(
    folder: Path, api: ApiServer, certificate: Certificate, location: str = "", server: str = "", buffers: str = "4 32k"
) -> Iterator[str]:
    """Yields the URL of an nginx with these directives, and stops it."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        not_available("nginx is not installed")
    port = free_port()
    (folder / "nginx.conf").write_text(
        _NGINX.format(
            port=port,
            api=api.port,
            certificate=certificate.certificate,
            key=certificate.key,
            location=location,
            server=server,
            buffers=buffers,
        )
    )
    child = Child([program, "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr"], log=folder / "nginx.log")
    try:
        wait_until(lambda: _listens(child, port), "nginx listens")
        yield f"https://127.0.0.1:{port}"
    finally:
        child.stop()


def _listens(child: Child, port: int) -> bool:
    child.check_running()
    try:
        ssl.get_server_certificate(("127.0.0.1", port))
    except OSError:
        return False
    return True


class Doctor:
    """Runs `doctor --url`. Neither a Redis nor a Kafka is there for it."""

    settings = ProjectorSettings(redis_url="redis://127.0.0.1:1/0", kafka_bootstrap_servers="127.0.0.1:1")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.output = ""
        self.code = 0

    def run(self, url: str, ca: Path, key: str | None = None) -> dict[str, str]:
        """Run it in this process. Returns the result of each rule."""
        self._monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        self._monkeypatch.setattr("sys.stdin", StringIO(f"Bearer {key}\n"))
        printed = StringIO()
        arguments = parse(["doctor", "--url", url, *(("--key", "-") if key else ())])

        async def command() -> int:
            console = Console(file=printed, highlight=False, soft_wrap=True)
            return await run_doctor(arguments, Operator(self.settings, Store(self.settings), console))

        self.code = asyncio.run(command())
        self.output = printed.getvalue()
        return results(self.output)


def results(output: str) -> dict[str, str]:
    found = (re.fullmatch(r"(\w+) +([^:]+): .+", line) for line in output.splitlines())
    return {match[2]: match[1] for match in found if match}


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Doctor:
    return Doctor(monkeypatch)


def expected(unknown: set[str], problems: set[str] = frozenset()) -> dict[str, str]:  # type: ignore[assignment]
    return dict.fromkeys(ALL, "ok") | dict.fromkeys(unknown, "unknown") | dict.fromkeys(problems, "problem")


@pytest.mark.skipif(shutil.which("caddy") is None, reason="Caddy is not installed: it is only an example")
def test_our_front_keeps_every_rule(api: ApiServer, caller: Caller, doctor: Doctor, tmp_path: Path) -> None:
    with Front.running(tmp_path, [f"127.0.0.1:{api.port}"]) as front:
        found = doctor.run(f"https://localhost:{front.port}", front.ca, key=caller.key)
    assert found.pop("Data-As-Of") in ("ok", "unknown"), "it depends on projectors"
    assert found | {"Data-As-Of": "unknown"} == expected(UNSEEN), doctor.output
    assert doctor.code == 0


def test_a_good_nginx_keeps_every_rule(
    api: ApiServer, caller: Caller, certificate: Certificate, doctor: Doctor, tmp_path: Path
) -> None:
    as_of = "add_header Data-As-Of 2026-11-23T13:37:00.123Z always;"
    with nginx(tmp_path, api, certificate, as_of, "error_page 497 =301 https://$http_host$request_uri;") as url:
        found = doctor.run(f"{url}/api/v1/ext/", certificate.certificate)
        done = subprocess.run(
            [*PROJECTOR, "doctor", "--url", url, "--key", "-", "--bundle", str(tmp_path / "bundle.zip")],
            env=environment(redis_url="redis://127.0.0.1:1/0") | {"SSL_CERT_FILE": str(certificate.certificate)},
            input=caller.key,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert found == expected(UNSEEN_WITHOUT_KEY), doctor.output
    assert (done.returncode, results(done.stdout)) == (0, expected({"Retry-After"})), done.stdout + done.stderr
    assert "answers are compressed" in done.stdout
    assert "is redirected to HTTPS" in done.stdout
    with ZipFile(tmp_path / "bundle.zip") as bundle:
        assert sorted(bundle.namelist()) == ["doctor.json", "settings.json", "versions.json"]
        written = done.stdout + done.stderr + "".join(bundle.read(name).decode() for name in bundle.namelist())
    assert caller.key not in written


HIDDEN = {"404 without redirects", "405 with Allow", "401 without a key", "401 for an invalid key", "a key is accepted"}
HIDDEN |= {"RateLimit", "no caching", "Cache-Control"}
ERROR_PAGES = "proxy_intercept_errors on; error_page 400 401 403 404 405 429 500 502 503 504 /page.html;"
CACHE = "proxy_cache cache; proxy_cache_valid any 1m; proxy_ignore_headers Cache-Control Expires Vary;"


@pytest.mark.parametrize(
    ("location", "server", "broken", "unknown"),
    [
        pytest.param(ERROR_PAGES, "location = /page.html {}", {"errors are JSON"}, HIDDEN, id="error pages"),
        pytest.param(CACHE, "", {"no caching"}, set(), id="a cache"),
        pytest.param(
            'proxy_set_header Authorization "";',
            "",
            {"401 for an invalid key"},
            {"a key is accepted", "RateLimit"},
            id="no Authorization",
        ),
        pytest.param("proxy_set_header X-Request-Id $request_id;", "", {"X-Request-Id"}, set(), id="ids of its own"),
        pytest.param("proxy_hide_header X-Request-Id;", "", {"X-Request-Id"}, set(), id="no ids"),
        pytest.param(
            "rewrite ^(.+)/$ $1 permanent;", "", {"404 without redirects"}, set(), id="redirects without a slash"
        ),
        pytest.param("proxy_hide_header ETag;", "", {"weak ETag"}, {"304", "compression"}, id="no ETag"),
        pytest.param('proxy_set_header If-None-Match "";', "", {"304"}, set(), id="no conditional requests"),
        pytest.param("limit_except GET { deny all; }", "", {"405 with Allow", "CORS"}, set(), id="no other methods"),
        pytest.param(
            "add_header Access-Control-Allow-Origin * always;", "", {"CORS"}, set(), id="CORS headers of its own"
        ),
        pytest.param("expires 1h;", "", {"Cache-Control"}, set(), id="Cache-Control of its own"),
        pytest.param("proxy_hide_header RateLimit-Policy;", "", {"RateLimit"}, set(), id="no limits"),
        pytest.param("add_header Data-As-Of yesterday always;", "", {"Data-As-Of"}, set(), id="Data-As-Of of its own"),
        pytest.param("if ($request_method = HEAD) { return 405; }", "", {"HEAD"}, set(), id="no HEAD"),
        pytest.param(
            "proxy_hide_header ETag; add_header ETag $upstream_http_etag$suffix;",
            'set $suffix ""; if ($http_accept_encoding = gzip) { set $suffix "-gzip"; }',
            {"compression"},
            set(),
            id="another ETag of what is compressed",
        ),
        pytest.param("", "location = /readyz { return 503; }", {"health", "Retry-After"}, set(), id="no health"),
        pytest.param(
            "",
            "error_page 497 =200 @plain; location @plain { proxy_pass http://127.0.0.1:API; }",
            {"HTTP is redirected or refused"},
            set(),
            id="HTTP beside HTTPS",
        ),
    ],
)
def test_a_fault_is_named(
    api: ApiServer,
    caller: Caller,
    certificate: Certificate,
    doctor: Doctor,
    tmp_path: Path,
    location: str,
    server: str,
    broken: set[str],
    unknown: set[str],
) -> None:
    with nginx(tmp_path, api, certificate, location, server.replace("API", str(api.port))) as url:
        found = doctor.run(url, certificate.certificate, key=caller.key)
    assert found == expected(UNSEEN | unknown, broken), doctor.output
    assert doctor.code == 1


def test_nginx_as_it_is_refuses_large_headers(
    api: ApiServer, caller: Caller, certificate: Certificate, doctor: Doctor, tmp_path: Path
) -> None:
    with nginx(tmp_path, api, certificate, buffers="4 8k") as url:
        found = doctor.run(url, certificate.certificate, key=caller.key)
    assert found == expected(UNSEEN, {"large headers"}), doctor.output
    assert "large_client_header_buffers 4 32k" in doctor.output


def test_without_a_valid_certificate_nothing_is_sent(
    api: ApiServer, certificate: Certificate, doctor: Doctor, tmp_path: Path
) -> None:
    other = certificates.create(tmp_path)
    with nginx(tmp_path, api, certificate) as url:
        found = doctor.run(url, other.certificate)
    assert found == expected(ALL, {"HTTPS"}), doctor.output
    assert "the certificate is not valid" in doctor.output
    assert doctor.code == 1


WITHOUT_TLS = {"HTTPS", "certificate is renewed", "HTTP is redirected or refused"}


def test_the_api_itself_keeps_every_rule_that_needs_no_tls(
    api: ApiServer, caller: Caller, certificate: Certificate, doctor: Doctor
) -> None:
    found = doctor.run(f"http://127.0.0.1:{api.port}", certificate.certificate, key=caller.key)
    assert found.pop("Data-As-Of") in ("ok", "unknown"), "it depends on projectors"
    assert found | {"Data-As-Of": "unknown"} == expected(UNSEEN | WITHOUT_TLS), doctor.output
    assert doctor.code == 0


def test_without_tls_no_key_leaves_this_machine(certificate: Certificate, doctor: Doctor) -> None:
    found = doctor.run("http://leadview.invalid", certificate.certificate, key=api_keys.mint(str(uuid4())))
    assert found == expected(ALL, {"HTTPS"}), doctor.output
    assert doctor.code == 1


def test_a_certificate_that_ends_soon(
    api: ApiServer, certificate: Certificate, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.time() + 1.8 * 86400  # it is valid for two days
    monkeypatch.setattr("projector.commands.gateway.time", SimpleNamespace(time=lambda: later))
    with nginx(tmp_path, api, certificate) as url:
        found = doctor.run(url, certificate.certificate)
    assert (found["HTTPS"], found["certificate is renewed"]) == ("ok", "problem"), doctor.output


def test_a_key_that_is_not_known(
    api: ApiServer, caller: Caller, certificate: Certificate, doctor: Doctor, tmp_path: Path
) -> None:
    unknown = api_keys.mint(caller.organization_id)
    with nginx(tmp_path, api, certificate) as url:
        found = doctor.run(url, certificate.certificate, key=unknown)
        assert found == expected(UNSEEN | {"RateLimit"}, {"a key is accepted"}), doctor.output
    with pytest.raises(api_keys.MalformedKey):
        doctor.run("https://127.0.0.1:1", certificate.certificate, key=unknown[:-1])
