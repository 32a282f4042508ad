"""`doctor` checks what must be there before a start, and its bundle holds no secret. `doctor --url` checks gateways:
deploy/Caddyfile and a good nginx keep every rule, and each fault of an nginx is named alone.
"""

import asyncio
import http.client
import re
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4
from zipfile import ZipFile

import pytest
import redis

from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import ROOT, environment
from devstack.redis_server import RedisServer
from operate.commands import doctor
from operate.commands.gateway import RULES, Gateway
from projector.errors import Refused
from projector.redis.rights import BEHIND_SENTINELS, CLUSTERED, PROJECTS, SERVES
from schemas import api_keys, names, resources
from tests.harness import certificates, crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.certificates import Certificate
from tests.harness.commands import Finished, call
from tests.harness.front import Front
from tests.harness.leadview import Leadview
from tests.harness.records import Caller
from tests.harness.services import Kafka, not_available
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.service.test_redis_users import access

ALL = "settings", "Redis", "Redis version", "Redis memory", "Redis clock", "Redis data", "Redis records"
FILLED, EMPTY = (resources.ORGANIZATION, resources.LEAD), (resources.API_KEY, resources.CONTACT)
ALL_OF_KAFKA = (
    *("Kafka", "Kafka topics", "Kafka deletions", "Kafka history", "Kafka transactions"),
    *("Kafka partitions", "Kafka records", "Kafka consumer groups"),
)


@pytest.fixture
def with_users(kafka: Kafka, topic_prefix: str, users_redis: RedisServer, tmp_path: Path) -> Iterator[Leadview]:
    with Leadview(kafka, topic_prefix, users_redis, tmp_path) as leadview:
        leadview.topics.create(partitions=1)
        yield leadview


def results(done: Finished) -> dict[str, str]:
    found = (re.fullmatch(r"(\w+) +([^:]+): .+", line) for line in done.stdout.splitlines())
    return {match[2]: match[1] for match in found if match}


@pytest.mark.apache
def test_all_is_there_and_a_bundle_holds_no_secret(leadview: Leadview, tmp_path: Path) -> None:
    leadview.publish(crm.organization(), crm.lead())
    done = leadview.run("doctor").ends(0)
    [(read, empty)] = re.findall(r"Kafka records: those of (.+) can be read; empty: (.+)", done.stdout)
    named = [{leadview.topics.name(kind) for kind in kinds} for kinds in (FILLED, EMPTY)]
    assert [set(topics.split(", ")) for topics in (read, empty)] == named
    found = results(done)
    assert found.pop("Redis rights of the projector") in ("ok", "unknown"), "only Redis 7 says it"
    assert found == dict.fromkeys((*ALL, *ALL_OF_KAFKA), "ok") | {"Redis rights of the API": "unknown"}
    assert leadview.run("doctor", "--api").status == 0
    # Except by an API of the test before, which may still end.
    assert set(leadview.redis.scan_iter("*")) <= {names.LATENCY}, "nothing is written"

    leadview.serve(crm.api_key(), crm.contact(first_name="Zaphod"))
    bundle = tmp_path / "ticket.zip"
    passwords = {"redis_password": "first-secret", "redis_sentinel_password": "second-secret"}
    pack = partial(leadview.run, "doctor", "--bundle", str(bundle), kafka_sasl_password="third-secret")
    pack(**passwords).ends(1)  # the password of Redis is wrong
    pack().ends(0)
    assert bundle.stat().st_mode & 0o077 == 0
    contents = contents_of(bundle)
    assert contents.keys() == {"doctor.json", "settings.json", "status.json", "versions.json"}
    text = "".join(contents.values())
    assert '"LEADVIEW_KAFKA_SASL_PASSWORD": "***"' in text
    assert not [word for word in ("-secret", "Zaphod", crm.key_hash(1), crm.LEAD, crm.ORGANIZATION) if word in text]
    done = leadview.run("doctor", "--bundle", str(tmp_path / "no" / "folder"))
    assert (done.status, "Traceback" in done, "cannot be written" in done.stderr) == (1, False, True)


def contents_of(bundle: Path) -> dict[str, str]:
    with ZipFile(bundle) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.apache
def test_doctor_on_a_cluster_counts_the_servers(leadview_on_cluster: Leadview) -> None:
    leadview_on_cluster.run("doctor").ends(0, "3 server(s) hold documents")


def problem(done: Finished, check: str, *said: str) -> dict[str, str]:
    """Fails unless this check has found a problem, and says these texts. Returns the results of all checks."""
    assert results(done.ends(1, *said))[check] == "problem"
    return results(done)


@pytest.mark.apache
def test_doctor_says_what_is_not_there(leadview: Leadview, monkeypatch: pytest.MonkeyPatch) -> None:
    call = partial(leadview.run, "doctor")
    advice = ("correct LEADVIEW_REDIS_URL", "nothing.leads: missing: create what is missing")
    found = problem(call(redis_url="redis://127.0.0.1:1/0", topic_prefix="nothing."), "Redis", *advice)
    assert (found["Redis data"], found["Kafka"], found["Kafka topics"]) == ("unknown", "ok", "problem")
    assert {found[f"Kafka {what}"] for what in ("history", "partitions", "records")} == {"unknown"}

    done = call(kafka_bootstrap_servers="127.0.0.1:1")
    assert problem(done, "Kafka", "Kafka cannot be reached at 127.0.0.1:1")["Redis"] == "ok"
    with monkeypatch.context() as soon, socket.create_server(("127.0.0.1", 0)) as silent:
        soon.setattr(doctor, "ANSWER_SECONDS", 0.5)
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        problem(call(kafka_bootstrap_servers=at), "Kafka", f"Kafka at {at} accepts connections, and does not answer")
        done = call(kafka_bootstrap_servers=leadview.server.url.split("/")[2])
        problem(done, "Kafka")
        assert "Error" not in done, done.output

    leadview.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        done = call()
    finally:
        leadview.redis.config_set("maxmemory-policy", "noeviction")
    problem(done, "Redis memory", "Set its maxmemory-policy to noeviction")


@pytest.mark.apache
def test_doctor_says_once_that_redis_wants_a_password(leadview: Leadview, own_redis: RedisServer) -> None:
    with redis.Redis(port=own_redis.port) as admin:
        admin.config_set("requirepass", "secret")
    done = leadview.run("doctor", redis_url=own_redis.url)
    found = problem(done, "Redis", "Redis wants a password: set LEADVIEW_REDIS_PASSWORD")
    assert found["Redis rights of the projector"] == "unknown"
    assert (done.stdout.count("NOAUTH"), "Start Redis" in done.stdout) == (1, False)
    assert leadview.run("doctor", redis_url=own_redis.url, redis_password="secret").status == 0


@pytest.mark.apache
def test_doctor_names_the_rights_that_a_user_lacks(with_users: Leadview, users_redis: RedisServer) -> None:
    users: dict[str, dict[str, Any]] = {name: access(f"leadview-{name}") for name in ("projector", "api")}
    of_projector = partial(with_users.run, "doctor", **users["projector"])
    of_api = partial(with_users.run, "doctor", "--api", **users["api"])
    of_projector().ends(0)
    of_api().ends(0)
    problem(of_projector(redis_password="wrong"), "Redis", "LEADVIEW_REDIS_PASSWORD")

    with redis.Redis(port=users_redis.port) as admin:
        admin.execute_command("ACL", "SETUSER", "leadview-projector", "-unlink", "-client|kill")
        admin.execute_command("ACL", "SETUSER", "leadview-api", "-hmget")
    lacks = "the user leadview-projector lacks unlink (key lv3…), client|kill: grant it"
    problem(of_projector(), "Redis rights of the projector", lacks)
    of_api().ends(1, "the user leadview-api lacks hmget (key lv3…): grant it")


_WORDS = {"auth", "count", "head", "kill", "list", "load", "match", "maxlen", "post", "setname", "slots"}
"""What stands in commands beside their names; AUTH needs no right, and HEAD and POST are HTTP."""


@pytest.mark.parametrize(
    ("package", "needed"), [pytest.param("projector", PROJECTS, id="projector"), pytest.param("api", SERVES, id="api")]
)
def test_every_command_that_is_used_is_checked_and_no_other(package: str, needed: tuple[tuple[str, ...], ...]) -> None:
    scripts = "".join(path.read_text() for path in sorted((ROOT / package / "redis" / "lua").iterdir()))
    used = {name.lower() for name in re.findall(r"call\(\s*'([A-Za-z]+)'", scripts)}
    assert used
    for path in (*(ROOT / package).rglob("*.py"), *(ROOT / "runtime/redis").iterdir()):
        if path.suffix == ".py":
            used |= {name.lower() for name in re.findall(r'b"([A-Z]{3,})"', path.read_text())}
    beyond = {words[0] for words in (*CLUSTERED, *BEHIND_SENTINELS)}
    assert used - _WORDS - beyond == {words[0] for words in needed} - beyond


async def test_server_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 0)
    found = await doctor._check("Kafka", asyncio.Future())
    assert found == doctor.Diagnosis("Kafka", "problem", "there was no answer within 0 s")


def test_secret_inside_a_text_is_replaced(tmp_path: Path) -> None:
    doctor.write(tmp_path / "b.zip", {"a.json": ["redis://u:p%40ss@h", "pass"], "b.json": None}, {"p%40ss"})
    assert contents_of(tmp_path / "b.zip") == {"a.json": '[\n  "redis://u:***@h",\n  "pass"\n]'}


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
    large_client_header_buffers 4 32k;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate}; ssl_certificate_key {key};
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
# The timeouts are those of Debian's configuration.
_HAPROXY = """
defaults
    mode http
    timeout connect 5000
    timeout client 50000
    timeout server 50000
listen front
    bind 127.0.0.1:{port} ssl crt {pem}
    server api 127.0.0.1:{api}
"""
UNSEEN = {"Retry-After", "Data-As-Of"}
UNSEEN_WITHOUT_KEY = UNSEEN | {"a key is accepted", "RateLimit"}
EVERY_RULE = {"HTTPS"} | {rule.name for rule in RULES}


@contextmanager
def nginx(
    folder: Path, api: ApiServer, certificate: Certificate, location: str = "", server: str = ""
) -> Iterator[str]:
    port = free_port()
    (folder / "nginx.conf").write_text(
        _NGINX.format(
            port=port,
            api=api.port,
            certificate=certificate.certificate,
            key=certificate.key,
            location=location,
            server=server.replace("API", str(api.port)),
        )
    )
    with running(folder, port, "nginx", "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr") as url:
        yield url


@contextmanager
def haproxy(folder: Path, api: ApiServer, certificate: Certificate) -> Iterator[str]:
    port, file = free_port(), folder / "haproxy.cfg"
    file.write_text(_HAPROXY.format(port=port, api=api.port, pem=certificate.both()))
    with running(folder, port, "haproxy", "-f", str(file)) as url:
        yield url


@contextmanager
def running(folder: Path, port: int, name: str, *words: str) -> Iterator[str]:
    """Runs a front of others that listens on this port. Yields its URL."""
    program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        not_available(f"{name} is not installed")
    with Child([program, *words], log=folder / f"{name}.log") as child:
        wait_until(lambda: _listens(child, port), f"{name} listens")
        yield f"https://127.0.0.1:{port}"


def _listens(child: Child, port: int) -> bool:
    child.check_running()
    try:
        ssl.get_server_certificate(("127.0.0.1", port))
    except OSError:
        return False
    return True


def through(url: str, ca: Path, key: str | None = None, *words: str) -> Finished:
    """Run `doctor --url`. Neither a Redis nor a Kafka is there for it."""
    away = environment(redis_url="redis://127.0.0.1:1/0", kafka_bootstrap_servers="127.0.0.1:1")
    words = ("doctor", "--url", url, *(("--key", "-") if key else ()), *words)
    return call(*words, environment=away | {"SSL_CERT_FILE": str(ca)}, stdin=f"Bearer {key}\n")


def assert_found(done: Finished, unknown: set[str], problems: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """All other rules must be kept."""
    expected = dict.fromkeys(EVERY_RULE, "ok") | dict.fromkeys(unknown, "unknown") | dict.fromkeys(problems, "problem")
    assert (done.status, results(done)) == (int(bool(problems)), expected), done.output


def test_our_front_keeps_every_rule(api: ApiServer, caller: Caller, tmp_path: Path) -> None:
    with Front.running(tmp_path, [f"127.0.0.1:{api.port}"]) as front:
        done = through(f"https://localhost:{front.port}", front.ca, caller.key)
    unseen = UNSEEN if results(done)["Data-As-Of"] == "unknown" else {"Retry-After"}  # it depends on projectors
    assert_found(done, unseen)


def test_good_nginx_keeps_every_rule(api: ApiServer, caller: Caller, certificate: Certificate, tmp_path: Path) -> None:
    as_of, bundle = "add_header Data-As-Of 2026-11-23T13:37:00.123Z always;", tmp_path / "bundle.zip"
    with nginx(tmp_path, api, certificate, as_of, "error_page 497 =301 https://$http_host$request_uri;") as url:
        assert_found(through(f"{url}/api/v1/ext/", certificate.certificate), UNSEEN_WITHOUT_KEY)
        done = through(url, certificate.certificate, caller.key, "--bundle", str(bundle))
    assert_found(done.ends(0, "answers are compressed", "is redirected to HTTPS"), {"Retry-After"})
    contents = contents_of(bundle)
    assert sorted(contents) == ["doctor.json", "settings.json", "versions.json"]
    assert caller.key not in done.output + "".join(contents.values())


@pytest.mark.long
def test_the_longest_wait_passes_each_front(
    api: ApiServer, caller: Caller, certificate: Certificate, tmp_path: Path
) -> None:
    """With their own timeouts: a request for a lead that never comes is answered by the API after 30 seconds."""

    context = ssl._create_unverified_context()  # noqa: S323 - the certificates are a moment old

    def waited(address: str) -> tuple[int, str | None]:
        connection = http.client.HTTPSConnection(
            address.removeprefix("https://"), context=context, timeout=2 * PATIENCE_SECONDS
        )
        with closing(connection):
            sent = {"Authorization": f"Bearer {caller.key}", "Prefer": "wait=30"}
            connection.request("GET", LEADS + str(uuid4()), headers=sent)
            answer = connection.getresponse()
            return answer.status, answer.headers["Preference-Applied"]

    with (
        Front.running(tmp_path, [f"127.0.0.1:{api.port}"]) as front,
        nginx(tmp_path, api, certificate) as of_nginx,
        haproxy(tmp_path, api, certificate) as of_haproxy,
        ThreadPoolExecutor() as threads,
    ):
        fronts = (f"localhost:{front.port}", of_nginx, of_haproxy)
        assert [*threads.map(waited, fronts)] == [(404, "wait=30")] * 3


HIDDEN = {"404 without redirects", "405 with Allow", "401 without a key", "401 for an invalid key", "a key is accepted"}
HIDDEN |= {"RateLimit", "no caching", "Cache-Control"}
ERROR_PAGES = "proxy_intercept_errors on; error_page 400 401 403 404 405 429 500 502 503 504 /page.html;"
EXPOSED = "ETag, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
CACHE = "proxy_cache cache; proxy_cache_valid any 1m; proxy_ignore_headers Cache-Control Expires Vary;"


@pytest.mark.parametrize(
    ("location", "server", "broken", "unknown"),
    [
        pytest.param(ERROR_PAGES, "location = /page.html {}", {"errors are JSON"}, HIDDEN, id="error pages"),
        pytest.param(CACHE, "", {"no caching"}, set(), id="a cache"),
        pytest.param("add_header Age 5 always;", "", {"no caching"}, set(), id="answers that are seconds old"),
        pytest.param(
            "proxy_hide_header Access-Control-Expose-Headers;"
            f'add_header Access-Control-Expose-Headers "{EXPOSED}" always;',
            "",
            {"CORS"},
            set(),
            id="its own list of exposed headers",
        ),
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
        pytest.param("", "large_client_header_buffers 4 8k;", {"large headers"}, set(), id="its own limit of headers"),
    ],
)
def test_fault_is_named(
    api: ApiServer,
    caller: Caller,
    certificate: Certificate,
    tmp_path: Path,
    location: str,
    server: str,
    broken: set[str],
    unknown: set[str],
) -> None:
    with nginx(tmp_path, api, certificate, location, server) as url:
        done = through(url, certificate.certificate, caller.key)
    assert_found(done, UNSEEN | unknown, broken)
    assert all(rule.mend in done for rule in RULES if rule.name in broken)


def test_without_a_valid_certificate_nothing_is_sent(api: ApiServer, certificate: Certificate, tmp_path: Path) -> None:
    other = certificates.create(tmp_path)
    with nginx(tmp_path, api, certificate) as url:
        done = through(url, other.certificate)
    assert_found(done.ends(1, "the certificate is not valid"), EVERY_RULE, {"HTTPS"})


def test_without_tls_keys_are_sent_to_this_machine_only(
    api: ApiServer, caller: Caller, certificate: Certificate
) -> None:
    done = through(f"http://127.0.0.1:{api.port}", certificate.certificate, caller.key)
    unseen = UNSEEN if results(done)["Data-As-Of"] == "unknown" else {"Retry-After"}
    assert_found(done, unseen | {"HTTPS", "certificate is renewed", "HTTP is redirected or refused"})
    assert_found(through("http://leadview.invalid", certificate.certificate, caller.key), EVERY_RULE, {"HTTPS"})


def test_nothing_is_looked_at_where_nobody_listens(certificate: Certificate) -> None:
    port = free_port()
    for scheme, how in (("http", ""), ("https", " with TLS")):
        done = through(f"{scheme}://127.0.0.1:{port}", certificate.certificate)
        assert_found(done.ends(1, f"127.0.0.1:{port} cannot be reached{how} ("), EVERY_RULE, {"HTTPS"})


def test_certificate_that_ends_soon_is_refused() -> None:
    """Of two days, a tenth is left."""
    [rule] = [rule for rule in RULES if rule.name == "certificate is renewed"]
    gateway = Gateway(urlsplit("https://leadview.invalid"), None)
    days = {"notBefore": -1.8, "notAfter": 0.2}
    gateway.certificate = {
        name: time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + after * 86400))
        for name, after in days.items()
    }
    with pytest.raises(Refused, match=rf"it expires in \d hours, after 48\. {rule.mend}"):
        rule.check(gateway)


def test_doctor_with_an_unknown_key_finds_it_not_accepted(
    api: ApiServer, caller: Caller, certificate: Certificate, tmp_path: Path
) -> None:
    unknown = api_keys.mint(caller.organization_id)
    with nginx(tmp_path, api, certificate) as url:
        done = through(url, certificate.certificate, unknown)
    assert_found(done, UNSEEN | {"RateLimit"}, {"a key is accepted"})
    done = through("https://127.0.0.1:1", certificate.certificate, unknown[:-1])
    assert (done.status, done.stdout, "MalformedKey: " in done.stderr) == (1, "", True)
    assert unknown[:-1] not in done
