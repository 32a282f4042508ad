"""The same bytes as h11 reads them, which is another parser of HTTP/1.1."""

import h11

_LARGE = 1 << 20
_UNKNOWN_CODING = 501
_NOT_FOUND = h11.Response(status_code=404, headers=[("Content-Length", "0")])


def request_ids(sent: bytes) -> list[bytes]:
    """Returns the `X-Request-Id` of each request that h11 finds until it would close the connection. A request without
    this header, or with two, has an empty one.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGE)
    connection.receive_data(sent)
    found: list[bytes] = []
    try:
        while not _is_last(event := connection.next_event()):
            if isinstance(event, h11.Request):
                ids = [value for name, value in event.headers if name == b"x-request-id"]
                found.append(ids[0] if len(ids) == 1 else b"")
            elif (event is h11.PAUSED or isinstance(event, h11.EndOfMessage)) and not _answer(connection):
                break
    except h11.RemoteProtocolError as error:
        if error.error_status_hint == _UNKNOWN_CODING:  # a request all the same, and the last one
            found.append(b"")
    return found


def _is_last(event: object) -> bool:
    return event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed)


def _answer(connection: h11.Connection) -> bool:
    """Returns whether another request may follow."""
    if connection.our_state is h11.SEND_RESPONSE:
        connection.send(_NOT_FOUND)
        connection.send(h11.EndOfMessage())
    if connection.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
        return False
    connection.start_next_cycle()
    return True
