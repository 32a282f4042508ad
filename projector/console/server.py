"""`leadview console`: serves the page until SIGTERM or SIGINT."""

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from projector.console.actions import Actions
from projector.console.api_figures import ApiMetrics
from projector.console.app import create_app
from projector.console.feed import Feed
from projector.console.options import Options, options
from projector.console.sampler import Sampler
from projector.errors import Refused
from projector.explain.explainer import Explainer
from projector.redis.store import Store
from projector.stop import Stop
from schemas.settings import ApiSettings, ProjectorSettings, SettingsError, load

_MOST_CONNECTIONS = 128
_STOP_SECONDS = 2

logger = logging.getLogger(__name__)


async def run_console(arguments: argparse.Namespace, settings: ProjectorSettings) -> int:
    """Serve the page. Raises Refused if the options are wrong or the port is not free."""
    try:
        api = load(ApiSettings, os.environ)
    except SettingsError as error:
        raise Refused(str(error)) from None
    chosen = options(arguments, api)
    listening = _listen(chosen)
    feed, store, acting = Feed(), Store(settings), Store(settings)
    actions = Actions(acting, settings) if chosen.allow_actions else None
    explainer = Explainer(acting, settings, api)
    sampler = Sampler(store, settings, ApiMetrics(chosen.api_metrics), actions, feed)

    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(sampler.run())
        logger.info("console starts", extra={"url": chosen.url, "actions": chosen.allow_actions})
        yield
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        if actions:
            await actions.close()

    config = uvicorn.Config(
        create_app(chosen, feed, explainer, actions, lifespan),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    sys.stdout.write(f"The console is at {chosen.url}\n")
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
        await acting.close()
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


def _listen(chosen: Options) -> socket.socket:
    try:
        family = socket.getaddrinfo(chosen.host, chosen.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((chosen.host, chosen.port), family=family)
    except OSError as error:
        raise Refused(
            f"cannot listen on {chosen.host}:{chosen.port}: {error.strerror or error}. Stop the program that uses this "
            "port, or choose another one with --port and --host."
        ) from error
