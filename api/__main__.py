"""`python -m api`: runs the HTTP API under uvicorn. The settings are environment variables."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from api.exporter import serve_metrics
from api.server import listen, serve
from leadview import logs, metrics_port
from leadview.redis.access import access
from leadview.redis.errors import AddressError
from schemas.settings import ApiSettings, SettingsError, effective, load
from schemas.version import VERSION

logger = logging.getLogger("api")


def main(words: Sequence[str] | None = None, program: str = "python -m api") -> int:
    """Returns the exit status: 0 after SIGTERM, 1 if it cannot listen on a port, 2 if the settings are not
    valid. Exits with 0 for `--help` and `--version`, and with 2 for other arguments.
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
        access(settings)  # raises before any worker starts
    except (SettingsError, AddressError) as error:
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
    with listener, TemporaryDirectory(prefix="leadview-api-") as directory:
        snapshots = Path(directory)
        if settings.metrics_port is not None:
            serve_metrics(settings.metrics_host, settings.metrics_port, snapshots)
        url = metrics_port.url(settings.api_host, listener.getsockname()[1])
        logger.info("the API is starting", extra={"url": url, "settings": effective(settings)})
        return serve(settings, listener, snapshots)


if __name__ == "__main__":
    sys.exit(main())
