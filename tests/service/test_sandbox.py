"""A running sandbox answers as `docs/sandbox.md` says. The tables and documents of that page are the expectations."""

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from devstack.programs import ROOT
from tests.harness.api_server import ApiServer, Response
from tests.harness.make_run import Run, running
from tests.harness.programs import printed_by
from tests.harness.waiting import wait_until

PAGE = (ROOT / "docs/sandbox.md").read_text("utf-8")
EVENTS = (ROOT / "docs/events.md").read_text("utf-8")
DOCUMENTS = {
    document["id"]: document for document in map(orjson.loads, re.findall(r"```json\n(.+?)```", PAGE, re.DOTALL))
}


def table(heading: str) -> list[tuple[str, ...]]:
    """The rows of the first table below a heading. A cell that is all code loses its backticks."""
    [section] = re.findall(rf"^## {heading}\n(.+?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [tuple(re.sub("^`([^`]+)`$", r"\1", cell.strip()) for cell in row) for row in rows[2:]]


KEYS = {name: key for name, key, *_ in table("Keys")}
RECORDS = [(key, path) for key, path, _ in table("Records")]
ANSWERS = table("Expected answers")
SOMETIMES = ("slow", "unsteady")


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


def test_it_prints_the_keys_of_the_page_and_a_warning(sandbox: Run) -> None:
    printed = re.findall(r"^  (\S+) +(lv_live_\w+)  (.+)$", sandbox.output, re.MULTILINE)
    assert printed == [(name, key, answer) for name, key, _, answer in table("Keys")]
    assert "NOT FOR PRODUCTION" in sandbox.output


def test_records_are_those_of_the_page(api: ApiServer) -> None:
    shown = {path.rpartition("/")[2]: ask(api, key, path).json for key, path in RECORDS}
    assert [id_ for id_, document in shown.items() if document.get("id") != id_] == []
    assert len(DOCUMENTS) == 4
    assert {id_: shown[id_] for id_ in DOCUMENTS} == DOCUMENTS


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


def test_a_slow_key_has_one_request_a_minute(api: ApiServer) -> None:
    answers = [ask(api, "slow", path_of("slow")) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert 1 <= int(answers[1].headers["retry-after"]) <= 60


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: it is only an example")
def test_the_first_request_of_the_page_is_answered(sandbox: Run) -> None:
    """The command of docs/reading.md, after the line that sets its variables."""
    [export] = re.findall("^export .+$", sandbox.output, re.MULTILINE)
    [request] = re.findall(r"^\$ (curl .+)$", (ROOT / "docs/reading.md").read_text("utf-8"), re.MULTILINE)
    assert orjson.loads(printed_by(["/bin/sh", "-c", f"{export}\n{request}"]))["stage"] == "ACCEPTED"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: it is only an example")
def test_a_first_lead_is_published_with_the_lines_that_are_printed(sandbox: Run, tmp_path: Path) -> None:
    """The commands of docs/events.md, after the lines that set everything, in a shell in another folder."""
    [export, enter] = re.findall("^(?:export|cd) .+$", sandbox.output, re.MULTILINE)
    [commands] = re.findall(r"## Publish a first lead.+?```console\n(.+?)```", EVENTS, re.DOTALL)
    pasted = re.sub(r"^\$ ", "", commands, flags=re.MULTILINE)

    def paste(command: str) -> str:
        return printed_by(["/bin/sh", "-c", f"{export}\n{enter}\n{command}"], directory=tmp_path)

    assert '"stage":"NEW"' in paste(pasted)
    assert "version 1 at crm.leads:" in paste(f"leadview show lead $ORGANIZATION {pasted.strip().rpartition('/')[2]}")


def test_one_lead_changes_and_one_key_meets_503_by_the_clock(api: ApiServer) -> None:
    [path] = [path for _, path, shows in table("Records") if shows.startswith("changes every 10 s")]
    etag = ask(api, "reader", path).headers["etag"]
    wanted = {"a 503", "a 304", "another version"}

    def everything_was_seen() -> bool:
        # 304 is free of charge, so the limits do not end this.
        wanted.discard(f"a {ask(api, 'unsteady', path_of('unsteady'), '*').status}")
        if "another version" in wanted and ask(api, "reader", path, etag).status == 200:
            wanted.discard("another version")
        return not wanted

    wait_until(everything_was_seen, "everything that follows the clock was seen")
