"""uvicorn as the API runs it: one process, or several workers that share a listening socket."""

import gc
import resource
import socket
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from api.app import Api
from api.edge import MAX_CONNECTIONS, RECEIVE_BUFFER, SEND_BUFFER, Edge
from api.waiting import MOST, Waiting
from runtime import logs, metrics_port
from schemas.settings import ApiSettings

BACKLOG = 2048
SHUTDOWN_SECONDS = 10
_SIGNAL_SECONDS = 0.5
"""The time between two looks of the main process for signals, as in uvicorn."""
_OTHER_FILES = 128


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises CannotListen."""
    listener = metrics_port.listen(host, port, "LEADVIEW_API_HOST and LEADVIEW_API_PORT", BACKLOG)
    # Limits for what the kernel holds for each connection: in bytes, and in time if the client takes nothing of it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER // 2)  # the kernel doubles these
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER // 2)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(Edge.stalled_seconds * 1000))
    return listener


def config(settings: ApiSettings, snapshots: Path | None = None) -> uvicorn.Config:
    """Returns uvicorn's configuration. The application is created in each worker."""
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
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def serve(settings: ApiSettings, listener: socket.socket, snapshots: Path) -> int:
    """Serves until SIGTERM or SIGINT, then finishes the requests that are in progress. Returns the exit status."""
    workers = _Workers(config(settings, snapshots), [listener])
    workers.run()
    return STARTUP_FAILURE if any(it.exitcode == STARTUP_FAILURE for it in workers.processes) else 0


class _Workers(Multiprocess):
    """The main process, also of a single worker: SIGHUP replaces each worker, and no request fails."""

    def join_all(self) -> None:
        """Wait for the workers, which are finishing. A further SIGTERM or SIGINT is passed on, and ends their drain."""
        while any(worker.process.is_alive() for worker in self.processes):
            if self.signal_queue:
                self.signal_queue.clear()
                self.terminate_all()
            wait([worker.process.sentinel for worker in self.processes], _SIGNAL_SECONDS)


def _application(settings: ApiSettings, snapshots: Path | None) -> Api:
    logs.configure(settings.log_level)  # each worker is a new process
    Edge.max_connections, Waiting.most = _raise_file_limit()
    Edge.idle_seconds = settings.api_keep_alive
    application = Api(settings, snapshots)
    # Everything that exists now lives as long as the process. Without this, each full garbage collection would traverse
    # it all, which takes 20 ms.
    gc.collect()
    gc.freeze()
    return application


def _raise_file_limit() -> tuple[int, int]:
    """Allow this process as many open files as it needs. Returns how many connections it may have, and how many more
    whose request waits: if the limit is lower, each of them gets half.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + MOST + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_CONNECTIONS, MOST
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connections = max(1, min(MAX_CONNECTIONS, (soft - _OTHER_FILES) // 2))
    return connections, max(0, min(MOST, soft - _OTHER_FILES - connections))
