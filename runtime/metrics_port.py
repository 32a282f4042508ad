"""The server of the metrics port: `/livez`, `/healthz`, and metrics in Prometheus's format at every other path.

It runs in its own threads, so that it still responds when the event loop does not. Each connection has its own thread
and is closed after one request, so that an idle connection does not delay the others. If there are too many, the oldest
one is closed: it is idle, because an answer takes milliseconds. So idle connections never keep others out either, and
need no time limit.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import orjson
from prometheus_client import CollectorRegistry, make_wsgi_app

MAX_CONNECTIONS = 32
_OPTIONS = "LEADVIEW_METRICS_HOST and LEADVIEW_METRICS_PORT"

logger = logging.getLogger(__name__)


class HealthAnswer(NamedTuple):
    """The answer to `/livez` or `/healthz`: 200 or 503, with `body` as JSON."""

    healthy: bool
    body: object


def responds() -> HealthAnswer:
    """Returns healthy: the program is alive because it answers."""
    return HealthAnswer(True, {"status": "ok"})


class CannotListen(OSError):
    """Nothing can be served at an address and port. The message is for operators."""


def listen(host: str, port: int, options: str = _OPTIONS, backlog: int | None = None) -> socket.socket:
    """Returns a listening socket. `::` is every address, of IPv4 too, and of IPv4 alone where the system has no IPv6.
    `options` names the settings of the address and port, for the error. Raises CannotListen.
    """
    address, dual = host, host == "::"
    if dual and not socket.has_dualstack_ipv6():
        address, dual = "0.0.0.0", False  # noqa: S104 - as the setting says
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address, port), family=family, backlog=backlog, dualstack_ipv6=dual)
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Stop the program that uses this port, or "
            f"choose another one with {options}."
        ) from error


def url(host: str, port: int) -> str:
    """Returns the URL of what listens there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Returns whether only programs on this machine reach this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves from its creation until `close`. The overridden methods are hooks of socketserver."""

    daemon_threads = True

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        health: Callable[[], HealthAnswer],
        *,
        live: Callable[[], HealthAnswer] = responds,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`health` and `live` are called in threads of this server. The oldest connection is closed if there are more
        than `max_connections`. Raises CannotListen.
        """
        self._metrics = make_wsgi_app(registry)
        self._answers = {"/healthz": health, "/livez": live}
        self._max_connections = max_connections
        self._open: dict[Any, None] = {}  # the connections, the oldest first
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()  # it is for IPv4 alone
        self.socket = listen(host, port)
        self.server_name, self.server_port = host, self.socket.getsockname()[1]  # without asking DNS for a name
        self.setup_environ()
        self.set_app(self._respond)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Open connections are still served and then closed."""
        self.shutdown()
        self.server_close()

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

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= self._max_connections:
            with suppress(StopIteration, RuntimeError, OSError):  # threads remove and close their own ones meanwhile
                oldest = next(iter(self._open))
                self._open.pop(oldest, None)
                oldest.shutdown(socket.SHUT_RDWR)  # then its thread can neither read nor write, and ends
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """Log that a connection failed. By default socketserver writes a traceback to standard error."""
        logger.debug("a connection of the metrics port failed", exc_info=True)  # noqa: LOG014 - called while it is handled


class _Handler(WSGIRequestHandler):
    default_request_version = "HTTP/1.0"  # a request that cannot be read is answered with a status line as well

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Requests are not logged."""
