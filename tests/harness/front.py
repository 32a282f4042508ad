"""The TLS front as deploy/Caddyfile describes it, in Debian's Caddy."""

import http.client
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from devstack.child import Child
from devstack.ports import LOOPBACK, Place, free_port
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_CADDYFILE = Path(__file__).parents[2] / "deploy/Caddyfile"


class Front:
    """One Caddy. It names itself `localhost`, wherever it listens; its certificate is signed by a CA of its own."""

    def __init__(
        self,
        folder: Path,
        upstreams: Sequence[str],
        place: Place = LOOPBACK,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`upstreams` are addresses of APIs, `variables` further environment variables. Its files are in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.host, self.port = place.host, free_port()
        self.ca = folder / "caddy/pki/authorities/local/root.crt"
        self._folder = folder
        text = _CADDYFILE.read_text("utf-8").replace("8443", str(self.port))
        (folder / "Caddyfile").write_text(text, "utf-8")
        self._command = [*place.prefix, "caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
        homes = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"), str(folder))
        self._environment = dict(os.environ) | dict(variables or {}) | homes | {"FRONT_UPSTREAMS": " ".join(upstreams)}
        self._child = self._launch()

    @classmethod
    @contextmanager
    def running(
        cls,
        folder: Path,
        upstreams: Sequence[str],
        place: Place = LOOPBACK,
        variables: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Iterator[Self]:
        """Yields a front that answers /healthz with `status`, and stops it."""
        front = cls(folder, upstreams, place, variables)
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
        wait_until(lambda: self._answers(status), f"the front at {self.host}:{self.port} answers {status}")

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
        self._child.check_running()
        try:
            return self.ask("GET", "/healthz")[0] == status
        except OSError:
            return False

    def _launch(self) -> Child:
        return Child(self._command, log=self._folder / "front.log", environment=self._environment)
