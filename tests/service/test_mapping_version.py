"""A mapping change, from its deployment to the promoted generation, while programs of both versions run."""

import http.client
import sys

import pytest

from devstack.ports import free_port
from devstack.waiting import wait_until
from projector import mapping
from tests.harness import next_mapping, stored
from tests.harness.api_server import LEADS
from tests.harness.changes import Changes, Reader, Writer
from tests.harness.leadview import Leadview
from tests.harness.waiting import PATIENCE_SECONDS, assert_within

pytestmark = pytest.mark.apache

NEXT = (sys.executable, "-m", "tests.harness.next_mapping")


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def metric(port: int, name: str) -> float:
    try:
        lines = get(port, "/metrics").decode().splitlines()
    except OSError:
        return -1
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), -1)


def test_a_mapping_change_while_both_versions_run(leadview: Leadview, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(leads=400, contacts=150)
    leadview.publish(changes.initial())
    old = leadview.start("run")
    leadview.wait_until_served()
    assert '"rebuild_due": false' in leadview.run("status", "--json")
    writer = Writer(leadview, changes, rate=100)
    writer.start()
    with leadview.api() as api:
        reader = Reader(api.port, changes, 1)
        reader.start()
        port = free_port()
        new = leadview.start("run", command=NEXT, metrics_port=port)
        wait_until(
            lambda: metric(port, "leadview_projector_rebuild_due") == 1,
            "metrics say that a rebuild is due",
        )
        assert "a rebuild is due" in new.log.read_text()
        done = leadview.run("status", command=NEXT)
        assert "rebuild due: this program has mapping version 2" in done

        done = leadview.run("rebuild", "--promote", command=NEXT)
        assert done.status == 1
        assert "leads.referrer_length" in done
        assert "Not promoted" in done
        assert "was started with mapping version 2, this program has 1" in leadview.run("rebuild")
        wait_until(lambda: "standing by" in old.log.read_text(), "the old program stands by")
        old.kill()
        old = leadview.start("run")
        done = leadview.run("promote", "--allow", "leads.referrer_length", command=NEXT)
        assert done.status == 0, done.output
        assert "0 differ: 0 missing, 0 extra, 0 changed" in done
        wait_until(lambda: metric(port, "leadview_projector_rebuild_due") == 0, "no rebuild is due any more")
        done = leadview.run("status", command=NEXT)
        assert "rebuild due" not in done
        assert "former" in done
        path = LEADS + changes.leads[0]
        assert_within(
            3, lambda: "referrer_length" in api.get(path, key=changes.key).json, "the API serves the new field"
        )
        reader.stop()
    writer.stop()
    leadview.wait_until_current()
    monkeypatch.setattr(mapping, "lead_document", next_mapping.lead_document)
    assert leadview.documents(2) == leadview.expected()
    stored.assert_consistent(leadview.redis, 2)
