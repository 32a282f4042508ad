"""`status` is a verdict: its first line says what is not well, and its exit code says whether anything is."""

import socket
from typing import Any

import orjson
import pytest

from devstack.programs import environment
from tests.harness import crm
from tests.harness.commands import Finished, call
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache


@pytest.fixture
def leadview(leadview_with_own_redis: Leadview) -> Leadview:
    return leadview_with_own_redis


def first_line(done: Finished) -> str:
    return done.stdout.partition("\n")[0]


def as_json(leadview: Leadview) -> Any:
    done = leadview.run("status", "--json")
    found = orjson.loads(done.stdout)
    assert done.status == (0 if found["well"] else 1)
    return found


def test_well_and_then_every_projector_dies(leadview: Leadview) -> None:
    leadview.topics.create(partitions=2)
    leadview.publish(crm.organization(), crm.contact(), crm.lead())
    assert "no projector is running" in first_line(leadview.wait_for_verdict("Redis is empty"))
    first, second = leadview.start("run"), leadview.start("run")
    leadview.wait_until_served()
    wait_until(lambda: as_json(leadview)["projectors"] == 2, "both are alive")
    done = leadview.run("status")
    assert (done.status, first_line(done)) == (0, "all is well"), done.output
    assert "access: running  documents: running" in done.stdout

    first.kill()
    second.kill()
    leadview.wait_for_verdict("no projector is running: nothing is applied; look whether")
    leadview.publish(crm.lead(2))
    found = as_json(leadview)
    assert (found["projectors"], found["lag"]) == (0, 1)
    assert found["freshness"] > 60, "by the time that the producer gave its record"


def test_servers_that_do_not_answer_are_named_at_once() -> None:
    """It does not wait for any client's timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        done = call("status", environment=environment(redis_url=f"redis://{at}/0", kafka_bootstrap_servers=at))
    assert done.status == 1
    assert first_line(done) == "not well: Redis cannot be read; Kafka cannot be read"
    assert "Redis does not answer within 1.2 s" in done
    assert "Kafka does not answer within 1.2 s" in done


def test_it_stays_on_the_screen(leadview: Leadview) -> None:
    leadview.topics.create(partitions=1)
    watching = leadview.start("status", "--watch", "--json")
    wait_until(lambda: watching.log.read_text().count('"no projector is running') > 0, "it says what is not well")
    leadview.start("run")
    leadview.publish(crm.organization())
    wait_until(lambda: '"verdict":"all is well"' in watching.log.read_text(), "it notices that all is well")
    assert all(orjson.loads(line) for line in watching.log.read_text().splitlines()[:-1])
