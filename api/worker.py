"""A worker: one process of the API, with all that its requests share, and the tasks that exist while it runs."""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

from api.keys import KnownKeys
from api.limits import Guesses, LocalLimiter
from api.metrics import Counters, read_heartbeats, report_counters, report_latency
from api.redis.links import links
from api.redis.serving import Serving
from api.redis.store import Store
from api.request import Request, Response
from api.request_log import RequestLog
from api.usage import Usage
from api.waiting import Waiting
from runtime.background import keep, watch_parent
from schemas.settings import ApiSettings, limit, networks

Handler = Callable[["Worker", Request], Awaitable[Response]]
"""Computes the response to a request. Raises ApiError for every response that is an error."""

logger = logging.getLogger(__name__)


class Worker:
    """The objects that requests share. It has to be made in an event loop."""

    def __init__(self, settings: ApiSettings) -> None:
        """Raises AddressError."""
        self.settings = settings
        self.counters = Counters()
        self.log = RequestLog(settings.request_log)
        self.usage = Usage()
        self.servers = links(settings)
        self.serving = Serving(self.servers)
        self.store = Store(settings, self.servers, self.serving)
        self.waiting = Waiting(self.store)
        self.limiter = LocalLimiter()
        self.keys = KnownKeys(
            self.store,
            Guesses(limit(settings.api_unknown_key_limit)),
            settings.api_max_in_flight,
            networks(settings.api_trusted_proxies),
        )
        self.draining = False
        """True once SIGTERM has begun the drain, in which the worker still serves, so that others stop sending to it.
        Meanwhile `/readyz` answers 503, and each response closes its connection. So a load balancer that asks `/readyz`
        sends new requests elsewhere, and one with open connections opens its next one elsewhere."""

    @asynccontextmanager
    async def running(self, snapshots: Path | None) -> AsyncGenerator[None]:
        """Connects to Redis, and keeps the tasks beside the requests until the block ends. It writes the counters into
        the directory `snapshots`, for the exporter.
        """
        self._drain_at_sigterm(self.settings.api_drain_seconds)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(task) for task in self._tasks(snapshots)]
            await self.servers.first_attempt()  # otherwise the first requests of a worker would be answered with 503
            yield
            await self.usage.write_last(self.servers)
            for task in background:
                task.cancel()

    def _tasks(self, snapshots: Path | None) -> list[Coroutine[Any, Any, None]]:
        servers, serving, counters = self.servers, self.serving, self.counters
        kept: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "the poll of Redis": serving.poll,
            "the look after requests that wait": self.waiting.watch,
            "the reading of heartbeats": partial(read_heartbeats, servers, counters),
            "the report of the latency": partial(report_latency, servers, serving, counters),
            "the report of the use of keys": partial(self.usage.report, servers),
        }
        if snapshots is not None:
            kept["the report of the metrics"] = partial(
                report_counters, snapshots, counters, servers, serving, self.waiting
            )
        return [servers.run(), watch_parent(), *(keep(what, run) for what, run in kept.items())]

    def _drain_at_sigterm(self, seconds: float) -> None:
        """Make SIGTERM begin the drain. After `seconds`, or at the next SIGTERM, the former handler of SIGTERM runs.

        With 0, nothing changes. Otherwise it has to be called from the main thread, in the event loop that serves.
        """
        if not seconds:
            return
        loop = asyncio.get_running_loop()
        end = cast(Callable[[int, FrameType | None], object], signal.getsignal(signal.SIGTERM))  # uvicorn has set one

        def begin(number: int, frame: FrameType | None) -> None:
            if self.draining:
                end(number, frame)
                return
            self.draining = True
            loop.call_soon_threadsafe(self.waiting.end)
            loop.call_soon_threadsafe(loop.call_later, seconds, end, number, None)
            logger.info("this worker serves for a last time, then it ends", extra={"seconds": seconds})

        signal.signal(signal.SIGTERM, begin)
