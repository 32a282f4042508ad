"""The ASGI scope of a request whose head is complete."""

import httptools
from uvicorn._types import ASGIVersions, HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.edge.rules import normalized

_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}


def http_scope(connection: HttpToolsProtocol, method: bytes, version: str) -> HTTPScope:
    """Returns the scope of the request whose head `connection` has just parsed. `version` is that of HTTP.

    Raises httptools.HttpParserError if the URL is not valid.
    """
    target = connection.url
    if target.startswith(b"/"):  # what this form may contain was checked by the parser
        path, _, query = target.partition(b"?")
    else:
        url = httptools.parse_url(target)
        path, query = url.path or b"/", url.query or b""
    path = normalized(path)
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "server": connection.server,
        "client": connection.client,
        "scheme": "http",
        "method": method.decode(),
        "root_path": "",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": connection.headers,
        "state": connection.app_state,  # nobody changes it
        "extensions": {},
    }
