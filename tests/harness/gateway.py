"""A proxy between a tool and the API that has errors of its own, as load balancers have: HTML, usually without
Retry-After.
"""

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat

from tests.harness.waiting import PATIENCE_SECONDS

_HOP = ("connection", "content-length", "transfer-encoding")


@contextmanager
def gateway(upstream: str, statuses: Sequence[int], *, forever: bool = False, **headers: str) -> Iterator[str]:
    """Yields the URL of a gateway whose first answers have these statuses, or all if `forever`, and these headers; the
    others are those of `upstream`, a URL.
    """
    own = {"Content-Type": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
    last = repeat(statuses[-1] if forever else 0)
    answers = chain(statuses, last)

    class Gateway(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status = next(answers)
            if status:
                self._answer(status, own, b"<html><h1>%d</h1></html>\n" % status)
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            request = urllib.request.Request(upstream + self.path, headers=headers)  # noqa: S310 - the API of a test
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310
                    self._answer(response.status, dict(response.headers), response.read())
            except urllib.error.HTTPError as error:  # also 304
                self._answer(error.code, dict(error.headers), error.read())

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            if status != 304:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
