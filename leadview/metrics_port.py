"""The server of the metrics port: `/livez`, `/healthz`, and metrics in Prometheus's format at every other path.

It runs in its own threads, so that it still responds when the event loop does not. Each connection has its own thread
and is closed after one request, so that an idle connection does not delay the others. If there are too many, the one
that has been idle for the longest time is closed, so that idle connections never keep others out either.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from socket import SHUT_RDWR
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import orjson
from prometheus_client import CollectorRegistry, make_wsgi_app

MAX_CONNECTIONS = 32
CONNECTION_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Health(NamedTuple):
    """The answer to `/livez` or `/healthz`: 200 or 503, with `body` as JSON."""

    healthy: bool
    body: object


def responds() -> Health:
    """The program is alive because it answers."""
    return Health(True, {"status": "ok"})


class MetricsServer:
    """Serves from its creation until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        *,
        live: Callable[[], Health] = responds,
        max_connections: int = MAX_CONNECTIONS,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        """`health` and `live` are called in threads of this server. Every connection is closed after
        `connection_seconds`. If there are `max_connections`, a new one takes the place of the oldest that has not sent
        a request yet; if all have, the new one is closed at once. Raises OSError if the server cannot listen.
        """
        self._metrics = make_wsgi_app(registry)
        self._answers = {"/healthz": health, "/livez": live}
        self._server = make_server(host, port, self._respond, server_class=_Server, handler_class=_Handler)
        self._server.max_connections = max_connections
        self._server.connection_seconds = connection_seconds
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Open connections are still served and then closed."""
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        answer = self._answers.get(environ.get("PATH_INFO", ""))
        if answer is None:
            return self._metrics(environ, start_response)  # type: ignore[no-any-return]  # WSGI is not typed
        healthy, content = answer()
        status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
        body = orjson.dumps(content)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]


class _Server(ThreadingMixIn, WSGIServer):
    """Limits the number and the duration of connections. The overridden methods are hooks of socketserver."""

    daemon_threads = True
    request_queue_size = 128
    max_connections = MAX_CONNECTIONS
    connection_seconds = CONNECTION_SECONDS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._deadlines: dict[Any, float] = {}
        self._idle: dict[Any, None] = {}  # those that have not sent a whole request, oldest first
        super().__init__(*arguments, **named)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's signature
        """Returns whether the connection is served. Otherwise socketserver closes it at once."""
        if len(self._deadlines) >= self.max_connections:
            with suppress(StopIteration, RuntimeError):  # its thread removed another one a moment ago
                oldest = next(iter(self._idle))
                self._forget(oldest)
                _shut_down(oldest)
        return len(self._deadlines) < self.max_connections

    def process_request(self, request: Any, client_address: Any) -> None:
        self._deadlines[request] = time.monotonic() + self.connection_seconds
        self._idle[request] = None
        super().process_request(request, client_address)

    def has_request(self, request: Any) -> None:
        """Note that a connection has sent a whole request, and is being answered."""
        self._idle.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def _forget(self, request: Any) -> None:
        self._deadlines.pop(request, None)
        self._idle.pop(request, None)

    def service_actions(self) -> None:
        """Shut down connections whose time is over. Their threads can then neither read nor write, and end.

        `serve_forever` calls this at least twice a second. A socket timeout would not suffice, because it starts
        again with every byte.
        """
        now = time.monotonic()
        for request, deadline in self._deadlines.copy().items():
            if now > deadline:
                _shut_down(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """Log that a connection failed. By default socketserver writes a traceback to standard error."""
        logger.debug("a connection of the metrics port failed", exc_info=True)  # noqa: LOG014 - called while it is handled


def _shut_down(connection: Any) -> None:
    with suppress(OSError):  # its thread closed it a moment ago
        connection.shutdown(SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    default_request_version = "HTTP/1.0"  # a request that cannot be read is answered with a status line as well

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.has_request(self.request)  # type: ignore[attr-defined]  # it is a _Server
        return parsed

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """By default, a version of HTTP that is not known is answered with 505. It is no failure of this server."""
        own = HTTPStatus.BAD_REQUEST if code == HTTPStatus.HTTP_VERSION_NOT_SUPPORTED else code
        super().send_error(own, message, explain)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Requests are not logged."""
