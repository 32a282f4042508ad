"""The console as a process, and what a page asks it."""

import http.client
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import orjson

from devstack.child import Child
from devstack.ports import free_port
from tests.harness.leadview import Leadview
from tests.harness.processes import PROJECTOR, while_running
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

PAGE = {"X-Leadview-Console": "page"}


class Reply(NamedTuple):
    """An answer of the console. `body` is its JSON; None if it is something else."""

    status: int
    headers: dict[str, str]
    body: Any


class Console:
    """A console that listens on a port of loopback. `headers` are those of every request."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.headers = headers

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """`headers` replace those of the page; an empty one is left out. `_` stands for `-`."""
        given = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as connection:
            data = None if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
            connection.request(method, path, data, {name: value for name, value in given.items() if value})
            response = connection.getresponse()
            text = response.read()
            is_json = response.getheader("content-type", "").startswith("application/json")
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, fields, orjson.loads(text) if is_json else None)

    def find(self, text: str) -> list[Any]:
        """Returns the answers of the box."""
        reply = self.request("POST", "/api/find", {"text": text})
        assert reply.status == 200, reply
        found: list[Any] = reply.body
        return found

    @contextmanager
    def page(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open a page. The block gets its events: their names and their JSON."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request("GET", "/api/events", headers=self.headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            with response:
                yield events(response)

    def picture(self) -> Any:
        """Returns the newest picture."""
        with self.page() as heard:
            return next(data for name, data in heard if name == "picture")

    def wait_for_verdict(self, *words: str) -> Any:
        """Wait until all of these words are in the verdict. Returns the picture."""
        last: Any = None

        def is_said() -> bool:
            nonlocal last
            last = self.picture()
            return all(word in last["status"]["verdict"] for word in words)

        wait_until(is_said, f"the console says {words}")
        return last


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yields server-sent events, until the stream ends."""
    name = ""
    while line := response.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, orjson.loads(value)


@contextmanager
def running_console(
    leadview: Leadview,
    *words: str,
    port: int = 0,
    token: str = "",
    command: Sequence[str] = PROJECTOR,
    **settings: object,
) -> Iterator[tuple[Child, Console]]:
    """Run `python -m projector console` until the block ends. The block begins when it answers."""
    headers = PAGE | ({"Authorization": f"Bearer {token}"} if token else {})
    console = Console(port or free_port(), headers)
    child = leadview.start("console", "--port", str(console.port), *words, command=command, log="console", **settings)

    def answers() -> bool:
        try:
            return console.request("GET", "/").status == 200
        except OSError:
            return False

    wait_until(while_running(child, answers), "the console answers")
    try:
        yield child, console
    finally:
        child.stop()
