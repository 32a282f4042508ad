"""The ASGI scope of a request whose head is complete."""

from urllib.parse import unquote

import httptools
from uvicorn._types import ASGIVersions, HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}


def http_scope(connection: HttpToolsProtocol, version: str) -> HTTPScope:
    """Returns the scope of the request whose head `connection` has just parsed. `version` is that of HTTP.

    Raises httptools.HttpParserError if the URL is not valid.
    """
    url = httptools.parse_url(connection.url)
    path = url.path or b"/"
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "server": connection.server,
        "client": connection.client,
        "scheme": "http",
        "method": connection.parser.get_method().decode(),
        "root_path": "",
        "path": unquote(path) if b"%" in path else path.decode(),
        "raw_path": path,
        "query_string": url.query or b"",
        "headers": connection.headers,
        "state": connection.app_state.copy(),
        "extensions": {},
    }
