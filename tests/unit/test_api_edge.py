"""The private parts of uvicorn that api/edge relies on. If a test fails after an upgrade of uvicorn, compare api/edge
with uvicorn's `protocols/http/httptools_impl.py` before changing anything here."""

import inspect
import re

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.edge import Cycle, Edge
from api.request import encode_head

ATTRIBUTES = {
    "app",
    "app_state",
    "client",
    "cycle",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "server",
    "server_state",
    "transport",
    "url",
}
CYCLE_ATTRIBUTES = {
    "default_headers",
    "disconnected",
    "keep_alive",
    "message_event",
    "on_response",
    "response_complete",
    "response_started",
    "scope",
    "transport",
}


@pytest.mark.parametrize(
    ("overridden", "parameters"),
    [
        pytest.param("connection_made", ["self", "transport"]),
        pytest.param("connection_lost", ["self", "exc"]),
        pytest.param("data_received", ["self", "data"]),
        pytest.param("eof_received", ["self"]),
        pytest.param("on_message_begin", ["self"]),
        pytest.param("on_header", ["self", "name", "value"]),
        pytest.param("on_headers_complete", ["self"]),
        pytest.param("on_message_complete", ["self"]),
        pytest.param("on_response_complete", ["self"]),
        pytest.param("pause_writing", ["self"]),
        pytest.param("resume_writing", ["self"]),
        pytest.param("timeout_keep_alive_handler", ["self"]),
    ],
)
def test_what_the_edge_overrides(overridden: str, parameters: list[str]) -> None:
    assert overridden in vars(Edge)
    assert list(inspect.signature(getattr(HttpToolsProtocol, overridden)).parameters) == parameters


@pytest.mark.parametrize(
    ("called", "parameters"),
    [
        pytest.param("_start_asgi_task", ["self", "cycle", "app"]),
        pytest.param("_unset_keepalive_if_required", ["self"]),
    ],
)
def test_what_the_edge_calls(called: str, parameters: list[str]) -> None:
    assert called not in vars(Edge)
    assert list(inspect.signature(getattr(HttpToolsProtocol, called)).parameters) == parameters


@pytest.mark.parametrize("overridden", ["send", "send_500_response"])
def test_what_the_cycle_overrides(overridden: str) -> None:
    assert overridden in vars(Cycle)
    assert inspect.iscoroutinefunction(getattr(RequestResponseCycle, overridden))


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        pytest.param(HttpToolsProtocol, ATTRIBUTES, id="protocol"),
        pytest.param(RequestResponseCycle, CYCLE_ATTRIBUTES, id="cycle"),
        pytest.param(FlowControl, {"write_paused"}, id="flow control"),
    ],
)
def test_attributes_that_are_read_or_set(kind: type, attributes: set[str]) -> None:
    assert attributes <= set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(kind)))


def test_the_arguments_of_a_cycle() -> None:
    assert list(inspect.signature(RequestResponseCycle).parameters) == [
        "scope",
        "transport",
        "flow",
        "logger",
        "access_logger",
        "access_log",
        "default_headers",
        "message_event",
        "expect_100_continue",
        "keep_alive",
        "on_response",
    ]


def test_status_lines() -> None:
    head = encode_head(431, (), close=False)
    assert head == b"HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n"
