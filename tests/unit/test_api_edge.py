"""What the edge and uvicorn's server know of each other. If a test fails after an upgrade of uvicorn, compare
api/edge.py with `startup` and `shutdown` in uvicorn's `server.py` before changing anything here."""

import inspect
import re

from uvicorn import Config
from uvicorn.server import Server, ServerState

from api.edge import Edge
from api.request import Response, encode_head


def test_the_arguments_of_a_connection() -> None:
    [passed] = re.findall(r"http_protocol_class\((.*?)\n *\)", inspect.getsource(Server.startup), re.DOTALL)
    assert re.findall(r"(\w+)=", passed) == ["config", "server_state", "app_state", "_loop"]
    assert list(inspect.signature(Edge).parameters) == ["config", "server_state", "app_state", "_loop"]


def test_the_state_of_the_server() -> None:
    """The server waits for these connections and tasks, and renews these headers."""
    state = ServerState()
    assert (state.connections, state.tasks, state.default_headers) == (set(), set(), [])
    assert "server_state.default_headers = date_header" in inspect.getsource(Server.on_tick)
    waits = inspect.getsource(Server._wait_tasks_to_complete)
    assert "self.server_state.connections" in waits
    assert "self.server_state.tasks" in waits


def test_the_end_of_a_connection() -> None:
    assert "connection.shutdown()" in inspect.getsource(Server.shutdown)
    assert list(inspect.signature(Edge.shutdown).parameters) == ["self"]


def test_the_application_of_a_connection() -> None:
    assert "self.loaded_app = " in inspect.getsource(Config.load)


def test_status_lines() -> None:
    head = encode_head(Response(431), b"mine", cors=False, close=False)
    assert head == b"HTTP/1.1 431 Request Header Fields Too Large\r\nx-request-id: mine\r\ncontent-length: 0\r\n\r\n"


def test_the_head_of_a_response() -> None:
    large = Response(200, b"a: b\r\n", b"12", (b"345", b"6"))
    common = b"HTTP/1.1 200 OK\r\ndate: now\r\na: b\r\nx-request-id: mine\r\ncontent-length: 6\r\n"
    assert encode_head(large, b"mine", b"date: now\r\n", cors=False, close=False) == common + b"\r\n"
    closing = encode_head(large, b"mine", b"date: now\r\n", cors=True, close=True)
    assert closing.startswith(common + b"access-control-allow-origin: *\r\n")
    assert closing.endswith(b"\r\nconnection: close\r\n\r\n")
    for status in (204, 304):
        assert b"content-length" not in encode_head(Response(status), b"mine", cors=False, close=False)
