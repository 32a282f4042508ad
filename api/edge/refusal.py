"""A refusal as it is sent: the response to input that did not become a request."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import Refused
from api.request import request_id
from api.response import all_headers, encode_head, error_response


def encode_refusal(error: Refused, connection: HttpToolsProtocol) -> bytes:
    """Returns the whole response. It uses the headers that `connection` had parsed by then."""
    received = dict(connection.headers or ())
    sent_id = request_id(received.get(b"x-request-id"))
    response = error_response(error, sent_id)
    headers = all_headers(response, sent_id, cors=b"origin" in received)
    head = encode_head(error.status, (*connection.server_state.default_headers, *headers), close=True)
    return head if connection.parser.get_method() == b"HEAD" else head + response.body
