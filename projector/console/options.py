"""How the console was started: its address, who may use it, and what it may show and do."""

import argparse
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from projector.errors import Refused
from schemas.settings import ApiSettings

_SHORTEST_TOKEN = 32
_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64}):(\S+)")


class Options(msgspec.Struct, frozen=True):
    """`tokens` has the name of each person or program by its token; it is empty if no token is needed.

    `api_metrics` are the addresses of the metrics ports of the API, such as `http://127.0.0.1:9100`.
    """

    host: str
    port: int
    tokens: Mapping[str, str]
    api_metrics: tuple[str, ...]
    allow_actions: bool
    show_documents: bool

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def options(arguments: argparse.Namespace, api: ApiSettings) -> Options:
    """Returns what the command line says. Raises Refused if the console would be open to strangers."""
    tokens = _read_tokens(arguments.token_file) if arguments.token_file else {}
    if not tokens and not is_loopback(arguments.host):
        raise Refused(
            f"{arguments.host} can be reached from other machines, so the console needs --token-file: a file with a "
            "line <name>:<token> for each person. Without it, leave out --host."
        )
    if arguments.port == api.api_port:
        raise Refused(f"Port {arguments.port} is that of the API (LEADVIEW_API_PORT). Choose another one with --port.")
    for url in arguments.api_metrics:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise Refused(f"--api-metrics {url}: write the address of a metrics port, such as http://127.0.0.1:9100")
    return Options(
        arguments.host,
        arguments.port,
        tokens,
        tuple(url.rstrip("/") for url in arguments.api_metrics),
        arguments.allow_actions,
        arguments.show_documents,
    )


def is_loopback(host: str) -> bool:
    """Returns whether only programs on this machine reach this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_tokens(path: Path) -> dict[str, str]:
    """No message quotes a line, because it has a token."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--token-file {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if not match:
            raise Refused(f"--token-file {path}, line {number}: write <name>:<token>, without spaces")
        if len(match[2]) < _SHORTEST_TOKEN:
            raise Refused(
                f"--token-file {path}, line {number}: a token has at least {_SHORTEST_TOKEN} characters. "
                "`openssl rand -hex 32` makes one."
            )
        found[match[2]] = match[1]
    if not found:
        raise Refused(f"--token-file {path} has no token: write a line <name>:<token> for each person.")
    return found
