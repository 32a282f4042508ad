"""uvicorn, as the API runs it: one process, or several that share a listening socket."""

import gc
import socket
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from api.app import create_app
from api.edge import Edge
from api.errors import CannotListen
from schemas import logs
from schemas.settings import ApiSettings

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
"""Longer than a proxy in front keeps a connection (nginx: 60), so that it is never the one to find it closed."""
SHUTDOWN_SECONDS = 10


def listen(host: str, port: int) -> socket.socket:
    """The listening socket. Raises CannotListen."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(host, port, error, "LEADVIEW_API") from error


def config(settings: ApiSettings, snapshots: Path | None = None) -> uvicorn.Config:
    """uvicorn's configuration; the application is made in each worker."""
    return uvicorn.Config(
        partial(_application, settings, snapshots),
        factory=True,
        interface="asgi3",
        http=Edge,
        loop="uvloop",
        ws="none",
        lifespan="on",
        workers=settings.api_workers,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def serve(settings: ApiSettings, listener: socket.socket, snapshots: Path) -> int:
    """Serves until SIGTERM or SIGINT, finishes the requests under way, and returns the exit status."""
    configuration = config(settings, snapshots)
    if settings.api_workers == 1:
        uvicorn.Server(configuration).run([listener])
        return 0
    workers = Multiprocess(configuration, [listener])
    workers.run()
    return STARTUP_FAILURE if any(it.exitcode == STARTUP_FAILURE for it in workers.processes) else 0


def _application(settings: ApiSettings, snapshots: Path | None) -> Starlette:
    logs.configure(settings.log_level)  # a worker is a new process
    application = create_app(settings, snapshots)
    # All that is there by now stays. The collector would walk through it again and again, 20 ms each time.
    gc.collect()
    gc.freeze()
    return application
