"""uvicorn for the peers, with the same settings as Leadview's API."""

import sys
from pathlib import Path

import uvicorn


def body() -> bytes:
    """The contents of the file that the second argument names: the constant."""
    return Path(sys.argv[2]).read_bytes()


def serve(application: str) -> None:
    """Serve `application` ("module:name"). The first argument is the port."""
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
    )
