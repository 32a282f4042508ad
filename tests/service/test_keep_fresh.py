"""The programs of docs/examples that keep copies of leads fresh, in Python and TypeScript, against the real API."""

import os
import queue
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from api.request import etag_of
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import API, ROOT, environment, while_running
from schemas import names, resources
from tests.harness import control
from tests.harness.api_server import UNLIMITED, ApiServer, patient, running_api
from tests.harness.front import gateway
from tests.harness.generations import generation
from tests.harness.programs import printed_by
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

EXAMPLES = ROOT / "docs" / "examples"
PACKAGES = ROOT / "build" / "reference" / "node_modules"
LEADS = 200
CHANGED = range(0, LEADS, 4)
"""Those that are waited for, and those that are asked for in turn."""

Program = Callable[[Path], list[str]]
"""Returns the command that runs an example, which may be compiled into this folder."""


def in_python(_folder: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / "keep_fresh.py")]


def in_typescript(folder: Path) -> list[str]:
    """With the compiler of `make docs`, as Node.js 20 cannot run TypeScript."""
    source = shutil.copy(EXAMPLES / "keep_fresh.ts", folder / "keep_fresh.mts")
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "--types", "node"]
    options += ["--erasableSyntaxOnly", "--typeRoots", str(PACKAGES / "@types")]
    printed_by(["node", str(PACKAGES / "typescript" / "bin" / "tsc"), *options, str(source)])
    return ["node", str(folder / "keep_fresh.mjs")]


@pytest.fixture(
    params=[
        pytest.param(in_python, id="Python"),
        pytest.param(in_typescript, id="TypeScript", marks=pytest.mark.docs),
    ]
)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    program: Program = request.param
    return program(tmp_path)


class Keeper:
    """A running example. `copies` are the ETags that it has printed, by lead."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.copies: dict[str, str] = {}
        self._lines: queue.Queue[str] = queue.Queue()
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.child.pipes[1]:
            self._lines.put(line.decode())

    def has(self, etags: Mapping[str, str]) -> bool:
        while not self._lines.empty():
            status, lead, *etag = self._lines.get().split()
            self.copies[lead] = etag[0] if status == "200" else "gone"
        return self.copies == etags

    @property
    def errors(self) -> str:
        return self.child.log.read_text("utf-8")


@contextmanager
def keeping(command: list[str], folder: Path, url: str, caller: Caller, ids: list[str]) -> Iterator[Keeper]:
    own = {"API": url, "API_KEY": caller.key, "PAUSE_SECONDS": "0.2"}
    with Child([*command, *ids], log=folder / "keeper.log", environment={**os.environ, **own}, piped=True) as child:
        yield Keeper(child)


def write(records: Records, caller: Caller, lead_id: str, title: str) -> str:
    """Write a lead with this referrer. Returns its ETag."""
    body: dict[str, Any] = msgspec.to_builtins(resources.LEAD.example)
    records.lead(caller.organization_id, {**body, "referrer": title}, record_id=lead_id)
    return etag_of(records.read(names.document(resources.LEAD, caller.name, generation(1), lead_id))).decode()


def test_copies_of_many_leads_are_kept_fresh_within_the_rate_limit(
    command: list[str], redis_server: RedisService, records: Records, tmp_path: Path
) -> None:
    """Also those that change while the API is not there. A revoked key ends it."""
    settings = {"redis_url": redis_server.url, "api_redis_timeout": PATIENCE_SECONDS, **UNLIMITED}
    control.complete_all(patient(redis_server.url))
    server = ApiServer(free_port())

    @contextmanager
    def serving() -> Iterator[Child]:
        variables = environment(**settings, api_port=server.port)
        with Child(API, log=tmp_path / "api.log", environment=variables) as api:
            wait_until(while_running(api, server.is_ready), "the API is ready")
            yield api

    caller = records.caller(key_limit=(100, 1), organization_limit=(300, 1))
    ids = [records.lead(caller.organization_id, resources.LEAD.example) for _ in range(LEADS)]
    etags = {lead_id: write(records, caller, lead_id, "first") for lead_id in ids}
    with keeping(command, tmp_path, f"http://127.0.0.1:{server.port}", caller, ids) as keeper:
        with serving() as api:
            wait_until(while_running(keeper.child, lambda: keeper.has(etags)), "it has a copy of all leads")
            etags |= {ids[number]: write(records, caller, ids[number], "second") for number in CHANGED}
            wait_until(while_running(keeper.child, lambda: keeper.has(etags)), "it has all changes")
            assert "429" not in keeper.errors
            api.kill()
        etags |= {ids[number]: write(records, caller, ids[number], "third") for number in CHANGED}
        with serving():
            wait_until(while_running(keeper.child, lambda: keeper.has(etags)), "it has what changed meanwhile")
            records.revoke(caller.key)
            assert keeper.child.wait(PATIENCE_SECONDS) == 1
    assert keeper.errors.splitlines()[-1].startswith('401: {"error":"invalid_api_key"')


def test_what_a_proxy_or_the_limiter_refuses_is_asked_for_again(
    command: list[str], redis_server: RedisService, records: Records, tmp_path: Path
) -> None:
    """A lead that is gone is no copy any more, as soon as the service knows it. Without access, the program ends."""
    with (
        running_api(patient(redis_server.url)) as api,
        gateway(f"http://127.0.0.1:{api.port}", [429, 502, 503, 504], Retry_After="1") as url,
    ):
        caller = records.caller()
        ids = [records.lead(caller.organization_id, resources.LEAD.example) for _ in range(2)]
        etags = {lead_id: write(records, caller, lead_id, "first") for lead_id in ids}
        with keeping(command, tmp_path, f"{url}/", caller, ids) as keeper:
            wait_until(while_running(keeper.child, lambda: keeper.has(etags)), "it has a copy of both leads")
            again = [line.partition(":")[0] for line in keeper.errors.splitlines()]
            assert again == ["429", "502", "503", "504"]
            records.lead(caller.organization_id, {}, state=b"D", record_id=ids[0])
            wait_until(while_running(keeper.child, lambda: "404: asking again" in keeper.errors), "it asks again")
            assert keeper.has(etags)
            records.client.set(names.AS_OF, 1)
            wait_until(while_running(keeper.child, lambda: keeper.has({**etags, ids[0]: "gone"})), "one is gone")
            records.organization(caller.organization_id, access=False)
            assert keeper.child.wait(PATIENCE_SECONDS) == 1
    assert keeper.errors.splitlines()[-1].startswith('403: {"error":"api_access_disabled"')


def test_id_without_a_record_is_named_and_a_wrong_path_ends_the_program(
    command: list[str], redis_server: RedisService, records: Records, tmp_path: Path
) -> None:
    with running_api(patient(redis_server.url)) as api:
        caller, url = records.caller(), f"http://127.0.0.1:{api.port}"
        records.client.set(names.AS_OF, 1)
        unknown = resources.LEAD.event_example.id
        with keeping(command, tmp_path, url, caller, [unknown]) as keeper:
            wait_until(while_running(keeper.child, lambda: keeper.has({unknown: "gone"})), "it names the id")
        with keeping(command, tmp_path, f"{url}/wrong", caller, [unknown]) as keeper:
            assert keeper.child.wait(PATIENCE_SECONDS) == 1
    assert keeper.errors.startswith('404: {"error":"not_found","message":"There is nothing at this path.')
    assert keeper.has({})


def test_without_an_address_the_usage_is_printed(command: list[str]) -> None:
    given = {name: value for name, value in os.environ.items() if name != "API"} | {"API_KEY": "key"}
    ended = subprocess.run([*command, "id"], env=given, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch("usage: .+\n", ended.stderr)
