"""The API for tests: in a thread of this process or as a process of its own, called over plain HTTP. And its
connections to Redis alone (`connected`).
"""

import asyncio
import http.client
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from msgspec import Struct

from api import server
from api.app import Api
from api.edge import Edge
from api.redis.link import Link
from api.redis.links import Links
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import API, environment, while_running
from schemas.settings import ApiSettings, load
from tests.harness import control
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

LEADS = "/api/v1/ext/leads/"
CONTACTS = "/api/v1/ext/contacts/"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
"""A request as it is sent, over a connection that stays open."""
UNLIMITED: dict[str, Any] = {"key_rate_limit": "1000000/1s", "organization_rate_limit": "1000000/1s"}
"""Settings."""


def get(path: str, key: str, *headers: str) -> bytes:
    """Returns a request as it is sent, over a connection that stays open."""
    lines = (f"GET {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *headers)
    return "\r\n".join((*lines, "", "")).encode()


def patient(redis_url: str, **settings: Any) -> ApiSettings:
    """Returns settings of an API that does not take a slow reply of Redis for an outage: in tests of something else, a
    busy machine must not cause one."""
    return ApiSettings(redis_url=redis_url, api_redis_timeout=PATIENCE_SECONDS, **settings)


class Unhurried(Edge):
    """The API's side of connections that do not end by the time: a slow test is not a slow client."""

    head_seconds = idle_seconds = stalled_seconds = linger_seconds = 10 * PATIENCE_SECONDS


class Response(Struct, frozen=True):
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class ApiServer(Struct, frozen=True):
    """A running API. A request waits for its response for `timeout` seconds."""

    port: int
    timeout: float = PATIENCE_SECONDS

    def get(
        self,
        path: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        data: bytes | None = None,
    ) -> Response:
        """Send one request over a connection of its own."""
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            connection.request(method, path, data, sent)
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Response(reply.status, names, reply.read())
        finally:
            connection.close()

    def answers(self, path: str = "/healthz") -> bool:
        """Is the status of this path 200? False if nothing listens."""
        try:
            return self.get(path).status == 200
        except OSError:
            return False

    def is_ready(self) -> bool:
        return self.answers("/readyz")

    def connect(self) -> socket.socket:
        """Returns a TCP connection; the caller closes it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=self.timeout)

    def exchange(self, sent: bytes, size: int = 1 << 30) -> bytes:
        """Returns everything that the server sends in response to `sent`, which goes out in pieces of this size, until
        it closes the connection."""
        with self.connect() as connection:
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def responses(received: bytes) -> list[Response]:
    """Split a stream of responses. Each of them has a Content-Length or no body."""
    found = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", "0"))
        found.append(Response(int(status.split()[1]), headers, received[:length]))
        received = received[length:]
    return found


def in_kernel(port: int) -> list[tuple[int, int]]:
    """Returns how many bytes the kernel holds for each connection of a server on this port, also for those that are
    closed: those that the client has not taken, where 1 may be the end of the connection, and those that the server has
    not read.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sizes = [row[4].split(":") for row in rows if row[1].endswith(f":{port:04X}")]
    return [(int(sent, 16), int(received, 16)) for sent, received in sizes]


@asynccontextmanager
async def connected(servers: Links | Link) -> AsyncIterator[None]:
    """Keeps the API's connections to Redis, without the API, until the block ends. The block begins after the first
    attempt to connect."""
    keeping = asyncio.create_task(servers.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await servers.first_attempt()
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


@contextmanager
def running_api(settings: ApiSettings, *, edge: type[Edge] = Unhurried, ready: bool = True) -> Iterator[ApiServer]:
    """Serves on a free port until the block ends. With `ready`, the block begins once the API is ready: if no projector
    has begun a control record, one is written that says that everything is complete."""
    if ready:
        control.complete_all(settings)
    listener = server.listen(settings.api_host, 0)
    api = ApiServer(listener.getsockname()[1])
    configuration = server.config(settings)
    configuration.app = partial(Api, settings)  # without configuring logs, as a worker would
    configuration.http = edge
    uvicorn_server = uvicorn.Server(configuration)
    with running_uvicorn(uvicorn_server, listener):
        if ready:
            wait_until(api.is_ready, "the API is ready")
        yield api


@contextmanager
def running_uvicorn(uvicorn_server: uvicorn.Server, *listeners: socket.socket) -> Iterator[None]:
    """Run a server in a thread until the block ends. The block begins when it listens."""
    thread = threading.Thread(target=uvicorn_server.run, args=([*listeners] or None,))
    thread.start()
    try:
        wait_until(lambda: uvicorn_server.started, "the server listens")
        yield
    finally:
        uvicorn_server.should_exit = True
        thread.join()


@contextmanager
def running_api_process(log: Path, **settings: object) -> Iterator[tuple[Child, ApiServer]]:
    """Run `python -m api` on a free port until the block ends. The block begins when it is ready."""
    api = ApiServer(free_port())
    control.complete_all(load(ApiSettings, environment(**settings)))
    child = Child(API, log=log, environment=environment(**settings, api_port=api.port))
    try:
        wait_until(while_running(child, api.is_ready), "the API is ready")
        yield child, api
    finally:
        child.stop()
