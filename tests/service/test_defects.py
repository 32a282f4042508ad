"""A defect in one line never ends the other, nor the program."""

import sys
from pathlib import Path

import orjson
import pytest

from devstack.ports import free_port
from devstack.programs import while_running
from schemas import names
from tests.harness import crm, stored
from tests.harness.defective import SECRET
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache

DEFECTIVE = (sys.executable, "-m", "tests.harness.defective")
PROBLEM = (
    "line documents is failing: the line documents failed with KeyError, which is a defect of Leadview: see its log"
)


def test_a_line_that_fails_is_retried_while_the_other_one_continues(leadview: Leadview, tmp_path: Path) -> None:
    defect, port = tmp_path / "defect", free_port()
    defect.touch()
    leadview.publish(crm.organization(), crm.api_key(), crm.contact(), crm.lead())
    child = leadview.start("run", command=DEFECTIVE, metrics_port=port, test_defect=defect)
    wait_until(while_running(child, lambda: ask(port, "/healthz")[0] == 503), "the line fails")
    assert ask(port, "/healthz")[1]["problems"] == [PROBLEM]
    leadview.publish(crm.api_key(2, status="revoked"))
    revoked = {1}
    wait_until(lambda: set(stored.key_expiries(leadview.redis).values()) == revoked, "the key is revoked meanwhile")
    failures = metric(port, 'leadview_projector_defects_total{line="documents"}') or 0
    assert failures >= 1
    assert leadview.documents() == {}

    defect.unlink()
    wait_until(while_running(child, leadview.is_current), "the line continues")
    wait_until(lambda: ask(port, "/healthz")[0] == 200, "it is healthy again")
    assert leadview.documents() == leadview.expected()
    assert leadview.redis.hlen(names.DEAD_LETTERS) == 0
    lines = [orjson.loads(line) for line in child.log.read_bytes().splitlines() if b"defect of Leadview" in line]
    assert "KeyError" in lines[0]["traceback"]
    assert any("in write" in frame for frame in lines[0]["traceback"])
    assert SECRET not in child.log.read_text("utf-8")
