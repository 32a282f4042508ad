"""uvicorn for the peers, with the settings that Leadview's own has."""

import sys
from pathlib import Path

import uvicorn


def body() -> bytes:
    """The file that the second argument names: what a constant answers."""
    return Path(sys.argv[2]).read_bytes()


def serve(application: str) -> None:
    """Serves `application` ("module:name") on the port that the first argument names; the third is the number of
    workers."""
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http="httptools",
        loop="uvloop",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        workers=int(sys.argv[3]),
    )
