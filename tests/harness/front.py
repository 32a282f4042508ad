"""What stands before the API: the TLS front as deploy/Caddyfile describes it, in Debian's Caddy; and a gateway with
errors of its own, as load balancers have: HTML, usually without Retry-After.
"""

import http.client
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from typing import Self

from devstack.child import Child
from devstack.ports import LOOPBACK, free_port
from devstack.programs import while_running
from tests.harness.programs import installed
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_CADDYFILE = Path(__file__).parents[2] / "deploy/Caddyfile"
_HOP = ("connection", "content-length", "transfer-encoding")
_LOOK_SECONDS = 0.05
"""How often a server looks whether it should end."""


class Front:
    """One Caddy. It names itself `localhost`, wherever it listens; its certificate is signed by a CA of its own."""

    def __init__(
        self,
        folder: Path,
        upstreams: Sequence[str],
        host: str,
        variables: Mapping[str, str] | None,
    ) -> None:
        """`upstreams` are addresses of APIs, `variables` further environment variables. Its files are in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.host, self.port = host, free_port()
        self.ca = folder / "caddy/pki/authorities/local/root.crt"
        self._folder = folder
        text = _CADDYFILE.read_text("utf-8").replace("8443", str(self.port))
        (folder / "Caddyfile").write_text(text, "utf-8")
        self._command = [
            installed("caddy", "caddy"),
            "run",
            "--config",
            str(folder / "Caddyfile"),
            "--adapter",
            "caddyfile",
        ]
        homes = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"), str(folder))
        self._environment = dict(os.environ) | dict(variables or {}) | homes | {"FRONT_UPSTREAMS": " ".join(upstreams)}
        self._child = self._launch()

    @classmethod
    @contextmanager
    def running(
        cls,
        folder: Path,
        upstreams: Sequence[str],
        host: str = LOOPBACK,
        variables: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Iterator[Self]:
        """Yields a front that answers /healthz with `status`, and stops it."""
        front = cls(folder, upstreams, host, variables)
        try:
            front.wait_until_answering(status)
            yield front
        finally:
            front._child.stop()

    def restart(self) -> None:
        """Send SIGTERM, start it again when it has ended, and wait until it answers."""
        self._child.stop()
        self._child = self._launch()
        self.wait_until_answering()

    def wait_until_answering(self, status: int = 200) -> None:
        wait_until(
            while_running(self._child, lambda: self._answers(status)),
            f"the front at {self.host}:{self.port} answers {status}",
        )

    def ask(self, method: str, target: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers with names in lower case, and body."""
        context = ssl._create_unverified_context()  # noqa: S323 - its CA is a moment old
        connection = http.client.HTTPSConnection(self.host, self.port, context=context, timeout=PATIENCE_SECONDS)
        try:
            connection.putrequest(method, target, skip_host=True)
            connection.putheader("Host", host or f"localhost:{self.port}")
            connection.endheaders()
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def _answers(self, status: int) -> bool:
        try:
            return self.ask("GET", "/healthz")[0] == status
        except OSError:
            return False

    def _launch(self) -> Child:
        return Child(self._command, log=self._folder / "front.log", environment=self._environment)


class Quiet(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a response with these headers, but for those of one connection, and its length."""
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _OverTls(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing: a client that does not trust the certificate breaks the connection."""


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yields the port of a server on loopback that answers as `handler` does."""
    kind = _OverTls if tls else ThreadingHTTPServer
    with kind(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def gateway(
    upstream: str,
    statuses: Sequence[int] = (),
    *,
    forever: bool = False,
    change: Callable[[bytes], bytes] = bytes,
    **headers: str,
) -> Iterator[str]:
    """Yields the URL of a gateway whose first answers have these statuses, or all if `forever`, and these headers; the
    others are those of `upstream`, a URL, with what `change` makes of their bodies.
    """
    own = {"Content-Type": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
    last = repeat(statuses[-1] if forever else 0)
    answers = chain(statuses, last)

    class Gateway(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status = next(answers)
            if status:
                self.answer(status, own, b"<html><h1>%d</h1></html>\n" % status)
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            request = urllib.request.Request(upstream + self.path, headers=headers)  # noqa: S310 - the API of a test
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310
                    self.answer(response.status, dict(response.headers), change(response.read()))
            except urllib.error.HTTPError as error:  # also 304
                with error:
                    self.answer(error.code, dict(error.headers), change(error.read()))

    with serving(Gateway) as port:
        yield f"http://127.0.0.1:{port}"
