"""`python -m api` as an operator starts it."""

import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import orjson
import pytest

from api.__main__ import main
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import API, descendants, environment, is_alive
from devstack.redis_server import RedisServer
from schemas import api_keys
from schemas.settings import ApiSettings, variable
from tests.harness import control
from tests.harness.api_server import (
    LEADS,
    UNLIMITED,
    ApiServer,
    get,
    in_kernel,
    read_all,
    responses,
    running_api_process,
)
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_for, wait_until


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param({"api_port": "x"}, "LEADVIEW_API_PORT", id="bad"),
        pytest.param({"api_prot": "1"}, "did you mean LEADVIEW_API_PORT", id="unknown"),
        pytest.param({"redis_url": "redis://h/0?x=1"}, "LEADVIEW_REDIS_URL", id="an option in the URL"),
        pytest.param(
            {"redis_url": "rediss://h/0", "redis_tls_ca_file": "/nothing"}, "LEADVIEW_REDIS_TLS", id="no CA file"
        ),
    ],
)
def test_bad_settings_stop_the_start(
    settings: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in settings.items():
        monkeypatch.setenv(variable(name), text)
    assert main([]) == 2
    printed = capsys.readouterr()
    assert (printed.out, named in printed.err) == ("", True)


@pytest.mark.parametrize("taken", ["api_port", "metrics_port"])
def test_port_that_is_taken_ends_the_start_and_is_named(taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        given = environment(**{"api_port": free_port(), taken: holder.getsockname()[1]})
        ended = subprocess.run(API, env=given, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False)
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, f"LEADVIEW_{taken.upper()}" in orjson.loads(line)["message"]) == (1, True)


def test_requests_in_progress_are_answered_after_sigterm(tmp_path: Path) -> None:
    with (
        RedisServer.start(tmp_path / "redis") as server,
        two_workers(tmp_path, server, api_redis_timeout=PATIENCE_SECONDS) as (child, api, metrics),
        ExitStack() as connections,
    ):
        server.kill()
        wait_for_workers(metrics, 0)
        assert api.get(LEADS + "x", key=api_keys.mint(str(uuid4()))).status == 503
        failed = 'leadview_api_redis_errors_total{reason="unavailable"}'
        wait_until(lambda: values(metrics)[failed] == 1, "the request is counted")
        server.restart()
        control.complete_all(ApiSettings(redis_url=server.url))
        wait_for_workers(metrics, 2)
        server.pause()
        asked = [connections.enter_context(api.connect()) for _ in range(4)]
        for connection in asked:
            connection.sendall(get(LEADS + "x", api_keys.mint(str(uuid4()))))
        wait_until(lambda: not any(unread for _, unread in in_kernel(api.port)), "the workers have read the requests")
        os.kill(child.pid, signal.SIGTERM)
        # Not that the port refuses connections: the main process keeps it open until the last worker has ended.
        wait_until(lambda: child.log.read_text().count("Shutting down") == 2, "all workers are shutting down")
        server.resume()
        assert [it.status for connection in asked for it in responses(read_all(connection))] == [401] * 4
        assert child.wait(PATIENCE_SECONDS) == 0


def test_after_sigterm_it_serves_on_until_others_have_noticed(
    tmp_path: Path, redis_server: RedisService, caller: Caller
) -> None:
    # The drain lasts as long as this test wants: the second SIGTERM ends it.
    settings = {"redis_url": redis_server.url, "api_redis_timeout": PATIENCE_SECONDS, "api_drain_seconds": 3600}
    head = get(LEADS + str(uuid4()), caller.key)
    with running_api_process(tmp_path / "log", **settings) as (child, api), api.connect() as kept:
        kept.sendall(head)
        [before] = responses(kept.recv(65536))
        os.kill(child.pid, signal.SIGTERM)
        wait_until(lambda: api.get("/readyz").status == 503, "it is not ready any more")
        assert api.get("/readyz").error == "service_unavailable"
        assert api.get("/healthz").status == 200, "nothing may restart it now"
        [new] = responses(api.exchange(head))
        kept.sendall(head)
        [last] = responses(read_all(kept))
        told = [(answer.status, answer.headers.get("connection")) for answer in (before, new, last)]
        assert told == [(404, None), (404, "close"), (404, "close")]
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(PATIENCE_SECONDS) == 0


def test_all_workers_end_by_themselves_after_the_drain(tmp_path: Path, redis_server: RedisService) -> None:
    with two_workers(tmp_path, redis_server, api_drain_seconds=0.5) as (child, _, _):
        began = time.monotonic()
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(PATIENCE_SECONDS) == 0
        assert time.monotonic() - began > 0.5
    assert child.log.read_text().count("serves for a last time") == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_replaces_the_workers_and_sigusr1_does_nothing(
    tmp_path: Path, redis_server: RedisService, caller: Caller, workers: int
) -> None:
    settings = {"redis_url": redis_server.url, "api_redis_timeout": PATIENCE_SECONDS, "api_workers": workers}
    with running_api_process(tmp_path / "log", **settings, **UNLIMITED) as (child, api):
        before = {*descendants(child.pid)}
        os.kill(child.pid, signal.SIGUSR1)
        os.kill(child.pid, signal.SIGHUP)

        def is_replaced() -> bool:
            assert api.get(LEADS + str(uuid4()), key=caller.key).status == 404, "no request fails"
            # One of them is the resource tracker of multiprocessing, which stays.
            return sum(is_alive(pid) for pid in before) <= len(before) - workers

        wait_until(is_replaced, "the workers were replaced")
        wait_until(lambda: len(descendants(child.pid)) == len(before), "as many workers as before")
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(PATIENCE_SECONDS) == 0


def test_idle_connection_ends_after_the_time_of_the_setting(tmp_path: Path, redis_server: RedisService) -> None:
    with (
        running_api_process(tmp_path / "log", redis_url=redis_server.url, api_keep_alive=1) as (_, api),
        api.connect() as idle,
    ):
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        [answer] = responses(read_all(idle))
    assert (answer.status, answer.headers.get("connection")) == (200, None)


@contextmanager
def two_workers(
    folder: Path, redis: RedisServer | RedisService, **settings: object
) -> Iterator[tuple[Child, ApiServer, ApiServer]]:
    """Runs `python -m api`, and yields it, its port and that of its metrics. The block begins when both are ready."""
    metrics = ApiServer(free_port())
    own = {"redis_url": redis.url, "api_workers": 2, "metrics_port": metrics.port}
    with running_api_process(folder / "log", **own, **settings) as (child, api):
        wait_for_workers(metrics, 2)
        yield child, api, metrics


def wait_for_workers(metrics: ApiServer, ready: int) -> None:
    wait_until(lambda: values(metrics)["leadview_api_ready_workers"] == ready, f"{ready} workers are ready")


def values(metrics: ApiServer) -> dict[str, float]:
    text = metrics.get("/metrics").body.decode()
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE)}


def test_metrics_and_logs_hold_no_key(
    tmp_path: Path, redis_server: RedisService, records: Records, caller: Caller
) -> None:
    """The logs are JSON, and hold no key."""
    settings = {"api_redis_timeout": PATIENCE_SECONDS, "log_level": "debug"}
    busy = records.caller(key_limit=(20, 3600))
    with two_workers(tmp_path, redis_server, **settings) as (child, api, metrics):
        for _ in range(10):
            assert api.get(LEADS + str(uuid4()), key=caller.key).status == 404
        api.exchange(f"GET /\x00 HTTP/1.1\r\nHost: x\r\nAuthorization: {caller.authorization}\r\n\r\n".encode())
        told = {
            'leadview_api_requests_total{route="lead",status="404"}': 10,
            'leadview_api_requests_total{route="edge",status="400"}': 1,
            'leadview_api_request_seconds_count{route="lead"}': 10,
            'leadview_api_request_seconds_bucket{le="+Inf",route="lead"}': 10,
            "leadview_api_limiter_failures_total": 0,
            "leadview_api_generation": 1,
        }
        found = wait_for(lambda: values(metrics), lambda found: found | told == found, "all requests are counted")
        assert metrics.get("/healthz").json == {"status": "ok"}
        with records.full():
            statuses = Counter(api.get(LEADS + str(uuid4()), key=busy.key).status for _ in range(50))
        failures = "leadview_api_limiter_failures_total"
        wait_until(lambda: values(metrics)[failures] == 50, "uncharged requests are counted")
        assert values(metrics)["leadview_api_limiter_refusals_total"] == statuses[429] == 50 - statuses[404] > 0
    reasons = {name: value for name, value in found.items() if name.startswith("leadview_api_redis_errors_total")}
    assert reasons == {
        f'leadview_api_redis_errors_total{{reason="{each}"}}': 0
        for each in ("unavailable", "error", "busy", "rebuilding")
    }
    assert "leadview_api_redis_in_flight" in found
    lines = child.log.read_text().splitlines()
    assert all(orjson.loads(line)["message"] for line in lines)
    assert not any(caller.key[8:40] in line for line in lines)


def test_workers_end_when_their_parent_was_killed(tmp_path: Path, redis_server: RedisService) -> None:
    with running_api_process(tmp_path / "log", redis_url=redis_server.url, api_workers=2) as (child, _):
        workers = descendants(child.pid)
        assert len(workers) >= 2
        child.kill()
        try:
            wait_until(lambda: not any(map(is_alive, workers)), f"the workers are gone: {workers}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def test_what_a_killed_api_has_left_is_removed_by_the_next_one(
    tmp_path: Path, redis_server: RedisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of one that runs."""
    url, log = redis_server.url, tmp_path / "log"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running_api_process(log, redis_url=url):
        [running] = tmp_path.glob("leadview-api-*")
        with running_api_process(log, redis_url=url) as (killed, _):
            [left] = set(tmp_path.glob("leadview-api-*")) - {running}
            killed.kill()
        assert left.is_dir()
        with running_api_process(log, redis_url=url):
            assert (running.is_dir(), left.is_dir()) == (True, False)
