"""`make run` as a developer runs it: start it, paste its lines, end it. Its processes are real.

A running sandbox answers as `docs/sandbox.md` says. The tables of that page are the expectations.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import orjson
import pytest

from devstack.programs import ROOT, descendants, is_alive
from devstack.run import EMBEDDED_KAFKA
from devstack.sandbox import MORE_LEADS
from schemas.resources import CONTACT, LEAD
from tests.harness.api_server import ApiServer, Response
from tests.harness.make_run import Run, running
from tests.harness.programs import installed, printed_by
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

STATUSES = {
    "a lead, with the summary of its contact": 200,
    "the contact, with its custom fields": 200,
    "304 Not Modified, as long as the contact does not change": 304,
    "a lead of another organization: 404, as if it did not exist": 404,
    "the description of the API (OpenAPI 3.1), without a key": 200,
}


def paste(line: str) -> Response:
    installed("curl", "curl")
    found = subprocess.run(shlex.split(line), capture_output=True, check=True, timeout=PATIENCE_SECONDS)
    head, _, body = found.stdout.partition(b"\r\n\r\n")
    status, *headers = head.decode().splitlines()
    fields = (header.split(": ", 1) for header in headers)
    return Response(int(status.split()[1]), {name.lower(): value for name, value in fields}, body)


def test_lines_that_it_prints_work_and_documents_change_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0", "--leads", "9", "--rate", "30") as run:
        run.wait_until_ready()
        assert EMBEDDED_KAFKA in run.output
        # Each line by the comment above it.
        lines = dict(re.findall(r"^# (.+)\n(curl .+)$", run.output, re.MULTILINE))
        assert {comment: status_of(line) for comment, line in lines.items()} == STATUSES
        lead_line, contact_line, *_, openapi_line = lines.values()
        lead = paste(lead_line)
        assert lead.headers["ratelimit-policy"] == '"key";q=100;w=10, "organization";q=300;w=10'
        assert lead.json["contact"]["id"] == lead.json["contact_id"] == paste(contact_line).json["id"]
        assert paste(openapi_line).json["openapi"].startswith("3.1")
        # The rate limit allows ten requests a second.
        wait_until(lambda: is_another_version(lead_line, lead.body), "the lead changes", interval=0.2)
        [status] = re.findall(r"^# whether all is well\n(.+)$", run.output, re.MULTILINE)
        # It waits for Kafka for little more than a second, and a busy machine may need longer.
        wait_until(lambda: is_well(status, tmp_path), "status says that all is well")
        [console] = re.findall(r"^  console +(http://127\.0\.0\.1:\d+)$", run.output, re.MULTILINE)
        assert paste(f"curl -i {console}/").status == 200
        [logs] = re.findall(r"^  logs +(/.+)$", run.output, re.MULTILINE)
        assert (Path(logs) / "projector.log").is_file()
        figures = r"applied \d+ .*lag \d+ .*requests \d+"  # in lines, because its output is no terminal
        wait_until(lambda: re.search(figures, run.output), "a line of figures")
        assert "\x1b" not in run.output
        run.end(signal.SIGINT)


def status_of(line: str) -> int:
    """304 also where the condition names a version that was replaced since the line was printed."""
    answer = paste(line)
    outdated = "If-None-Match" in line and answer.status == 200 and answer.headers["etag"] not in line
    return 304 if outdated else answer.status


def is_well(command: str, directory: Path) -> bool:
    done = subprocess.run(["/bin/sh", "-c", command], cwd=directory, capture_output=True, check=False)
    return done.returncode == 0 and b"crm.leads" in done.stdout and b"unasked" not in done.stdout


def is_another_version(line: str, body: bytes) -> bool:
    answer = paste(line)
    assert answer.status == 200, answer
    return answer.body != body


def test_killed_it_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--no-live", "--port", "0", LEADVIEW_API_WORKERS="2") as run:
        run.wait_until_ready()
        assert len(run.started) >= len(("redis", "kafka", "projector", "api", "worker", "worker", "console", "leash"))
        run.end(signal.SIGKILL, -signal.SIGKILL)


def test_ctrl_c_before_it_is_ready(tmp_path: Path) -> None:
    with running(tmp_path, "--no-live", "--port", "0") as run:
        wait_until(lambda: list(run.scratch.glob("*/api.log")), "the API starts")
        run.started = descendants(run.process.pid)
        run.end(signal.SIGINT)


def test_process_that_dies_ends_it_with_its_log(tmp_path: Path) -> None:
    with running(tmp_path, "--no-live", "--port", "0") as run:
        run.wait_until_ready()
        [projector] = descendants(run.process.pid, "projector run")
        os.kill(projector, signal.SIGKILL)
        assert run.process.wait(PATIENCE_SECONDS) == 1
        assert "`projector` was killed (SIGKILL)." in run.output
        assert "projector starts" in run.output
        [logs] = re.findall(r"^All logs: (.+)$", run.output, re.MULTILINE)
        assert (Path(logs) / "projector.log").is_file()
        assert not any(is_alive(pid) for pid in run.started)


@pytest.mark.parametrize(
    ("arguments", "variables", "status", "message"),
    [
        pytest.param((), {"LEADVIEW_NOTHING": "1"}, 2, "LEADVIEW_NOTHING is not a setting", id="unknown setting"),
        pytest.param(("--redis-url", "redis://127.0.0.1:1"), {}, 1, "Redis at 127.0.0.1:1 cannot", id="no Redis there"),
    ],
)
def test_what_cannot_work_is_told_at_once(
    tmp_path: Path, arguments: tuple[str, ...], variables: dict[str, str], status: int, message: str
) -> None:
    with running(tmp_path, "--no-live", "--port", "0", *arguments, **variables) as run:
        assert run.process.wait(PATIENCE_SECONDS) == status
        assert (message in run.output, "Traceback" in run.output) == (True, False), run.output
        assert run.nothing_is_left()


PAGE = (ROOT / "docs/sandbox.md").read_text("utf-8")
EVENTS = (ROOT / "docs/events.md").read_text("utf-8")
EXAMPLES = {
    document["id"]: document
    for document in (orjson.loads(msgspec.json.encode(resource.example)) for resource in (LEAD, CONTACT))
}
"""The documents of the OpenAPI document, by their ids."""


def table(heading: str) -> list[tuple[str, ...]]:
    """The rows of the first table below a heading. A cell that is all code loses its backticks."""
    [section] = re.findall(rf"^## {heading}\n(.+?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [tuple(re.sub("^`([^`]+)`$", r"\1", cell.strip()) for cell in row) for row in rows[2:]]


KEYS = {name: key for name, key, *_ in table("Keys")}
RECORDS = table("Records")
ANSWERS = table("Expected answers")
SOMETIMES = ("slow", "unsteady")
[CHANGING] = [path.removeprefix("/leads/") for _, path, shows in RECORDS if shows.startswith("changes every 10 s")]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """At the end, SIGTERM leaves nothing of it."""
    with running(tmp_path_factory.mktemp("sandbox"), "--sandbox", "--no-live", "--port", "0") as run:
        run.wait_until_ready()
        yield run
        run.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def api(sandbox: Run) -> ApiServer:
    [port] = re.findall(r"^  base URL +http://127\.0\.0\.1:(\d+)$", sandbox.output, re.MULTILINE)
    return ApiServer(int(port))


def ask(api: ApiServer, key: str, path: str, condition: str = "") -> Response:
    headers = {"If-None-Match": condition} if condition else {}
    return api.get(f"/api/v1/ext{path}", key=KEYS.get(key), headers=headers)


def test_make_run_prints_the_keys_of_the_page_and_a_warning(sandbox: Run) -> None:
    printed = re.findall(r"^  (\S+) +(lv_live_\w+)  (.+)$", sandbox.output, re.MULTILINE)
    assert printed == [(name, key, answer) for name, key, _, answer in table("Keys")]
    assert "NOT FOR PRODUCTION" in sandbox.output


def test_records_are_those_of_the_page(api: ApiServer) -> None:
    documents = {path: ask(api, key, path).json for key, path, _ in RECORDS}
    assert [path for path, document in documents.items() if not path.endswith(f"/{document.get('id')}")] == []
    by_id = {document["id"]: document for document in documents.values()}
    assert {id_: by_id[id_] for id_ in EXAMPLES} == EXAMPLES
    required = {"id", "organization_id", "created_at", "updated_at"}
    others = {"leads": {"contact_id", "stage", "contact"}, "contacts": {"first_name", "last_name"}}
    minimal = [path for _, path, shows in RECORDS if shows.startswith("only the required fields")]
    assert len(minimal) == 2
    for path in minimal:
        filled = {name for name, value in documents[path].items() if value}
        assert filled == required | others[path.split("/")[1]]
        assert "source" not in documents[path]


@pytest.mark.parametrize(("key", "path", "condition", "expected"), [row for row in ANSWERS if row[0] not in SOMETIMES])
def test_answers_are_those_of_the_page(api: ApiServer, key: str, path: str, condition: str, expected: str) -> None:
    answer = ask(api, key, path, condition)
    match = re.match(r"(\d+)(?: `(\w+)`)?(?:, `ETag: (.+?)`)?", expected)
    assert match
    error = answer.error if answer.status >= 400 else None
    assert (str(answer.status), error, answer.headers.get("etag")) == match.groups()


def path_of(key: str) -> str:
    [(_, path, *_)] = [row for row in ANSWERS if row[0] == key]
    return path


def test_slow_key_has_one_request_a_minute(api: ApiServer) -> None:
    answers = [ask(api, "slow", path_of("slow")) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert 1 <= int(answers[1].headers["retry-after"]) <= 60


def test_the_first_request_of_the_page_is_answered(sandbox: Run) -> None:
    """The command of docs/reading.md, after the line that sets its variables."""
    installed("curl", "curl")
    [export] = re.findall("^export .+$", sandbox.output, re.MULTILINE)
    request, *_ = re.findall(r"^\$ (curl .+)$", (ROOT / "docs/reading.md").read_text("utf-8"), re.MULTILINE)
    assert orjson.loads(printed_by(["/bin/sh", "-c", f"{export}\n{request}"]))["stage"] == "ACCEPTED"


def test_first_lead_is_published_with_the_lines_that_are_printed(sandbox: Run, tmp_path: Path) -> None:
    """The commands of docs/events.md, after the lines that set everything, in a shell in another folder."""
    installed("kcat", "kcat")
    [export, enter] = re.findall("^(?:export|cd) .+$", sandbox.output, re.MULTILINE)
    [commands] = re.findall(r"## Publish a first lead.+?```console\n(.+?)```", EVENTS, re.DOTALL)
    pasted = re.sub(r"^\$ ", "", commands, flags=re.MULTILINE)

    def paste(command: str) -> str:
        return printed_by(["/bin/sh", "-c", f"{export}\n{enter}\n{command}"], directory=tmp_path)

    assert '"stage":"NEW"' in paste(pasted)
    assert "version 1 at crm.leads:" in paste(f"leadview show lead $ORGANIZATION {pasted.strip().rpartition('/')[2]}")


def test_one_lead_changes_and_one_key_meets_503_by_the_clock(api: ApiServer) -> None:
    path = f"/leads/{CHANGING}"
    etag = ask(api, "reader", path).headers["etag"]
    wanted = {"a 503", "a 304", "another version"}

    def everything_was_seen() -> bool:
        # 304 is free of charge, so the limits do not end this.
        wanted.discard(f"a {ask(api, 'unsteady', path_of('unsteady'), '*').status}")
        if "another version" in wanted and ask(api, "reader", path, etag).status == 200:
            wanted.discard("another version")
        return not wanted

    wait_until(everything_was_seen, "everything that follows the clock was seen")


def test_200_leads_are_read_within_the_limit_and_the_one_that_changes_is_printed_again(
    sandbox: Run, tmp_path: Path
) -> None:
    """The command of docs/sandbox.md, after the line that sets its variables. It is the last one here, because no
    request is left to the key after it.
    """
    [export] = re.findall("^export .+$", sandbox.output, re.MULTILINE)
    [command] = re.findall(r"^\$ (python docs/examples/keep_fresh\.py .+)$", PAGE, re.MULTILINE)
    python = shlex.quote(sys.executable)
    script = f"{export}\nexec {python} -u {command.removeprefix('python ')}"
    output = tmp_path / "output"

    def seen() -> list[str]:
        return [line.split()[1] for line in output.read_text().splitlines()]

    with output.open("w") as file, subprocess.Popen(["/bin/sh", "-c", script], cwd=ROOT, stdout=file) as keeper:
        try:
            wait_until(
                lambda: seen().count(CHANGING) > 1 and len({*seen()}) == 1 + MORE_LEADS, "all are read, one again"
            )
        finally:
            keeper.kill()
    assert [lead for lead in {*seen()} if seen().count(lead) > 1] == [CHANGING]
