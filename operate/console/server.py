"""`leadview console`: serves the page until SIGTERM or SIGINT. Its options say who may use it, and what it shows."""

import argparse
import asyncio
import logging
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from operate.api_figures import ApiMetrics
from operate.console.app import create_app
from operate.console.feed import Feed, Sampler
from operate.explain.explainer import Explainer
from projector.errors import Refused
from projector.redis.store import Store
from projector.stop import Stop
from runtime import metrics_port
from schemas.settings import ApiSettings, ProjectorSettings, load

_MOST_CONNECTIONS = 128
_STOP_SECONDS = 2
_SHORTEST_TOKEN = 32
_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64}):(\S+)")

logger = logging.getLogger(__name__)


def checked_tokens(arguments: argparse.Namespace, api: ApiSettings) -> Mapping[str, str]:
    """Returns the name of each person or program by its token; nothing if no token is needed.

    Raises Refused if the console would be open to strangers, or if another option of its command line is wrong.
    """
    tokens = _read_tokens(arguments.token_file) if arguments.token_file else {}
    if not tokens and not metrics_port.is_loopback(arguments.host):
        raise Refused(
            f"{arguments.host} can be reached from other machines, so the console needs --token-file: a file with a "
            "line <name>:<token> for each person. Without it, leave out --host."
        )
    if arguments.port == api.api_port:
        raise Refused(f"Port {arguments.port} is that of the API (LEADVIEW_API_PORT). Choose another one with --port.")
    return tokens


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


async def run_console(arguments: argparse.Namespace, settings: ProjectorSettings) -> int:
    """Serve the page. Raises Refused if the options are wrong or the port is not free, and SettingsError for a setting
    of the API.
    """
    api = load(ApiSettings, os.environ)
    tokens, url = checked_tokens(arguments, api), metrics_port.url(arguments.host, arguments.port)
    try:
        listening = metrics_port.listen(arguments.host, arguments.port, "--port and --host")
    except metrics_port.CannotListen as error:
        raise Refused(str(error)) from error
    feed, store, asking = Feed(), Store(settings), Store(settings)
    explainer = Explainer(asking, settings, api)
    sampler = Sampler(store, settings, ApiMetrics(arguments.api_metrics), feed)

    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(sampler.run())
        logger.info("console starts", extra={"url": url})
        yield
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)

    config = uvicorn.Config(
        create_app(tokens, feed, explainer, lifespan, show_documents=arguments.show_documents),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    sys.stdout.write(f"The console is at {url}\n")
    sys.stdout.flush()
    server = _Server(config, feed)
    stop = Stop.on_signals()
    serving, stopping = asyncio.create_task(server.serve([listening])), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        await store.close()
        await asking.close()
    return 0


class _Server(uvicorn.Server):
    """Ends the streams of events first, because uvicorn waits for all responses. It leaves signals to `Stop`: uvicorn
    would raise them again, and the console would not end with 0.
    """

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feed.end()
        await super().shutdown(sockets)
