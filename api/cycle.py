"""One request and its answer on a client's connection, between uvicorn's protocol and the application."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from api.errors import InternalError
from api.request import request_id
from api.response import all_headers, error_response


class Cycle(RequestResponseCycle):
    """Sends an answer as one piece. uvicorn's own sends it in two and searches every header for what may not stand
    there, a tenth of the time of a request; all of ours are numbers, constants, or checked where they come in.
    """

    _head: Any = None

    async def send(self, message: Any) -> None:
        """The two messages of an answer, as ASGI has them; the body in one message."""
        if message["type"] == "http.response.start":
            self.response_started = True
            self._head = message
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        # Of pipelined requests uvicorn tells only the newest that the client is gone.
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
        else:
            self._write(self._head["status"], self._head["headers"], message["body"])

    async def send_500_response(self) -> None:
        """For a defect outside of all handlers."""
        error, new_id = InternalError(), request_id(None)
        answer = error_response(error, new_id)
        self.keep_alive = False
        self._write(answer.status, all_headers(answer, new_id, cors=False), answer.body)

    def _write(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        lines = [b": ".join(header) for header in (*self.default_headers, *headers)]
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        head = STATUS_LINE[status] + b"\r\n".join(lines)
        self.transport.write(head if self.scope["method"] == "HEAD" else head + body)
        self._complete()

    def _complete(self) -> None:
        self.response_started = self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
