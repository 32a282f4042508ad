"""A refusal as it is sent: the response to input that did not become a request."""

from collections.abc import Iterable

from api.errors import Header, Refused
from api.request import request_id
from api.request_log import Entry, RequestLog
from api.response import all_headers, encode_head, error_response


def encode_refusal(
    error: Refused,
    received: Iterable[Header],
    default: Iterable[Header],
    log: RequestLog,
    docs_url: str | None,
    *,
    body: bool,
) -> bytes:
    """Returns the whole response, with or without its body, and notes it in the log. `received` are the headers that
    were parsed by then, `default` those of every response.
    """
    parsed = dict(received)
    sent_id = request_id(parsed.get(b"x-request-id"))
    if error.status >= log.lowest:
        log.write(Entry(sent_id, "", "edge", error.status, 0.0, error))
    response = error_response(error, sent_id, docs_url)
    headers = all_headers(response, sent_id, cors=b"origin" in parsed)
    head = encode_head(error.status, (*default, *headers), close=True)
    return head + response.body if body else head
