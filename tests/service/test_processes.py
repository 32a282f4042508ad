"""`run --processes N`: several projectors from one command."""

import os
import signal
import socket

import orjson
import pytest

from devstack.child import Child
from devstack.programs import descendants, is_alive
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache


def projectors(parent: Child) -> set[int]:
    """Returns the process ids of the children that project; Python starts another one, which cleans up after them."""
    return descendants(parent.pid, "spawn_main")


def known(leadview: Leadview) -> int:
    """Returns the number of projectors that `status` shows."""
    return int(orjson.loads(leadview.run("status", "--json").stdout)["projectors"])


def test_two_share_the_work_and_end_with_their_parent(leadview: Leadview) -> None:
    leadview.publish(crm.organization(), *(crm.lead(1, id=crm.uuid(0x1000 + number)) for number in range(50)))
    parent = leadview.start("run", "--processes", "2")
    leadview.wait_until_served()
    wait_until(lambda: known(leadview) == 2, "both projectors have a heartbeat", 2 * PATIENCE_SECONDS)
    first = projectors(parent)
    assert len(first) == 2
    killed = first.pop()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(projectors(parent) - {killed}) == 2, "the killed one is replaced")
    assert first < projectors(parent), "the other one keeps running"
    leadview.publish(*(crm.lead(2, id=crm.uuid(0x1000 + number)) for number in range(50)))
    leadview.wait_until_current()
    assert leadview.documents() == leadview.expected()
    started = projectors(parent)
    parent.kill()
    wait_until(lambda: not any(map(is_alive, started)), "the children notice that nobody watches them")


def test_if_one_refuses_to_start_the_others_stop(leadview: Leadview) -> None:
    leadview.publish(crm.organization())
    # An address of its own: at the usual one, another test's server may have the port of the first projector.
    with socket.create_server(("127.0.0.77", 0)) as holder:
        taken = holder.getsockname()[1]
        ended = leadview.run("run", "--processes", "2", metrics_host="127.0.0.77", metrics_port=taken - 1)
    assert ended.status == 1
    assert f"Refused: cannot listen on 127.0.0.77:{taken}" in ended.stderr
    assert "a projector ended by itself: the others are stopped" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_they_start(leadview: Leadview, number: signal.Signals) -> None:
    """Redis and Kafka need not be there: each child is stopped at whatever point it is."""
    parent = leadview.start("run", "--processes", "2", kafka_bootstrap_servers="127.0.0.1:1")
    wait_until(lambda: projectors(parent), "the first one is being started")
    os.kill(parent.pid, number)
    assert parent.wait(PATIENCE_SECONDS) == 0
