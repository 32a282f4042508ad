"""Who may ask the console: ASGI middleware around everything that it answers.

- Without tokens the console listens on loopback only, and answers only if `Host` is a name of loopback. So a foreign
  site whose name points to 127.0.0.1 (DNS rebinding) gets nothing.
- With tokens, everything below `/api/` needs `Authorization: Bearer <token>`. There is no cookie, so no other site can
  send a request in somebody's name.
- Everything below `/api/` needs a header that no other site can send without a preflight, which is never allowed.
"""

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-leadview-console"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOCAL = "local"
"""Who asks if no token is needed."""
SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Guard:
    """Refuses what strangers ask, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, tokens: Mapping[str, str]) -> None:
        """`tokens` has the name of each person by the token."""
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY)
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        await (refusal or self._app)(scope, receive, send_secured)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Returns the response to a request that may not be answered. Otherwise the scope says who asks."""
        if not self._tokens and _name(headers.get("host", "")) not in _LOCAL_NAMES:
            return problem(421, "The console answers only as localhost. Open http://127.0.0.1 with its port.")
        if not scope["path"].startswith("/api/"):
            return None
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host", "")
        if headers.get(HEADER) != "page" or foreign:
            return problem(403, "Only the page of the console may ask this.")
        who = self._who(headers.get("authorization", "")) if self._tokens else LOCAL
        if who is None:
            return problem(401, "This token is not known. The file of --token-file has those that are.")
        scope["leadview.who"] = who
        return None

    def _who(self, authorization: str) -> str | None:
        """Compares with every token, in a time that says nothing about any of them."""
        scheme, _, given = authorization.partition(" ")
        found = None
        for token, name in self._tokens.items():
            if hmac.compare_digest(token.encode(), given.encode()):
                found = name
        return found if scheme.lower() == "bearer" else None


def problem(status: int, message: str) -> Response:
    """Returns an answer in the form of the API's errors."""
    return JSONResponse({"status": status, "message": message}, status)


def _name(host: str) -> str:
    """Returns the name of a Host header, without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()
