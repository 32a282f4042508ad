"""One request and its response on a client connection, between uvicorn's protocol and the application."""

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.errors import Header, InternalError
from api.request import request_id
from api.response import all_headers, encode_head, error_response

logger = logging.getLogger(__name__)


class Cycle(RequestResponseCycle):
    """Sends a response in one write. uvicorn's own cycle sends it in two and searches every header for forbidden
    characters, which takes a tenth of the time of a request. Here all headers are numbers, constants, or values that
    were validated when they came in.
    """

    organization = b""
    """The organization that the response is for, if it is one."""
    _start: Any = None

    async def send(self, message: Any) -> None:
        """Take the two ASGI messages of a response. The whole body is in one message, and is written at once: before,
        the client had taken all former responses. The first message may name the `organization` beside the headers.
        """
        if message["type"] == "http.response.start":
            self.response_started = True
            self._start = message
            self.organization = message.get("organization", b"")
            return
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
        else:
            self._write(self._start["status"], self._start["headers"], message["body"])

    async def send_500_response(self) -> None:
        """Report a defect outside of all handlers."""
        error, new_id = InternalError(), request_id(None)
        response = error_response(error, new_id, self.scope["state"]["docs_url"])
        logger.error(
            "a request failed because of a defect outside of all handlers",
            extra={"request_id": new_id.decode(), "status": response.status, "error": error.code},
        )
        self.keep_alive = False
        self._write(response.status, all_headers(response, new_id, cors=False), response.body)

    def _write(self, status: int, headers: list[Header], body: bytes) -> None:
        head = encode_head(status, (*self.default_headers, *headers), close=not self.keep_alive)
        self.transport.write(head if self.scope["method"] == "HEAD" else head + body)
        self._complete()

    def _complete(self) -> None:
        self.response_started = self.response_complete = True
        self.scope = None  # type: ignore[assignment]  # it holds the API key, and the connection holds this cycle
        self.on_response()
