"""`make run` as a developer runs it: start it, paste its lines, end it. Its processes are real."""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from devstack.programs import descendants, is_alive
from devstack.run import EMBEDDED_KAFKA
from tests.harness.api_server import Response
from tests.harness.make_run import Run, running
from tests.harness.programs import printed_by
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

STATUSES = {
    "a lead, with the summary of its contact": 200,
    "the contact, with its custom fields": 200,
    "304 Not Modified, as long as the contact does not change": 304,
    "a lead of another organization: 404, as if it did not exist": 404,
    "the description of the API (OpenAPI 3.1), without a key": 200,
}


def paste(line: str) -> Response:
    """Runs a curl line as it was printed."""
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
        assert "crm.leads" in shown_status(run, tmp_path)
        [console] = re.findall(r"^  console +(http://127\.0\.0\.1:\d+)$", run.output, re.MULTILINE)
        assert paste(f"curl -i {console}/").status == 200
        figures = r"applied \d+ .*lag \d+ .*requests \d+"  # in lines, because its output is no terminal
        wait_until(lambda: re.search(figures, run.output), "a line of figures")
        assert "\x1b" not in run.output
        run.end(signal.SIGINT)


def shown_status(run: Run, folder: Path) -> str:
    """Returns what the printed status line shows, pasted into a shell in another folder."""
    [line] = re.findall(r"^# whether all is well\n(.+)$", run.output, re.MULTILINE)
    return printed_by(["/bin/sh", "-c", line], directory=folder)


def status_of(line: str) -> int:
    """304 also where the condition names a version that was replaced since the line was printed."""
    answer = paste(line)
    outdated = "If-None-Match" in line and answer.status == 200 and answer.headers["etag"] not in line
    return 304 if outdated else answer.status


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


def test_a_process_that_dies_ends_it_with_its_log(tmp_path: Path) -> None:
    with running(tmp_path, "--no-live", "--port", "0") as run:
        run.wait_until_ready()
        [projector] = descendants(run.process.pid, "projector run")
        os.kill(projector, signal.SIGKILL)
        assert run.process.wait(PATIENCE_SECONDS) == 1
        assert "`projector` ended with status -9." in run.output
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
        assert message in run.output
        assert "Traceback" not in run.output
        assert run.nothing_is_left()
