"""`python -m api`: runs the HTTP API under uvicorn. The settings are environment variables."""

import argparse
import fcntl
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from api.exporter import serve_metrics
from api.server import listen, serve
from runtime import logs, metrics_port
from runtime.redis.errors import AddressError, TooOld
from runtime.redis.version import check_version
from schemas.settings import ApiSettings, SettingsError, effective, load
from schemas.version import VERSION

_PREFIX = "leadview-api-"

logger = logging.getLogger("api")


def main(words: Sequence[str] | None = None, program: str = "python -m api") -> int:
    """Returns the exit status: 0 after SIGTERM, 1 if it cannot listen on a port, 2 if the settings are not
    valid or Redis is too old. Exits with 0 for `--help` and `--version`, and with 2 for other arguments.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description="Serves the HTTP API until SIGTERM. All settings are environment variables, such as "
        "LEADVIEW_API_PORT: docs/settings.md lists them.",
    )
    parser.add_argument("--version", action="version", version=f"leadview {VERSION}")
    parser.parse_args(words)
    try:
        settings = load(ApiSettings, os.environ)
        check_version(settings)  # raises before any worker starts
    except (SettingsError, AddressError, TooOld) as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure(settings.log_level)
    try:
        return _run(settings)
    except metrics_port.CannotListen as error:
        logger.error(str(error))  # noqa: TRY400 - the message says it all
        return 1


def _run(settings: ApiSettings) -> int:
    # uvicorn raises the signal once more when all requests have been answered.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    listener = listen(settings.api_host, settings.api_port)
    with listener, _directory() as snapshots:
        if settings.metrics_port is not None:
            serve_metrics(settings.metrics_host, settings.metrics_port, snapshots, settings.api_workers)
        url = metrics_port.url(settings.api_host, listener.getsockname()[1])
        logger.info("the API is starting", extra={"url": url, "settings": effective(settings)})
        return serve(settings, listener, snapshots)


@contextmanager
def _directory() -> Iterator[Path]:
    """Yields a locked directory for the counters of the workers, and removes it at the end. Removes those of killed
    APIs as well: nobody locks them any more.
    """
    for left in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left)
    new = Path(mkdtemp(prefix="leadview-new-"))
    with _locked(new):
        # Only what is locked, or was, has this name.
        directory = new.rename(new.with_name(new.name.replace("leadview-new-", _PREFIX)))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks a directory until the end, also of the process. Raises OSError if another process has locked it."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


if __name__ == "__main__":
    sys.exit(main())
