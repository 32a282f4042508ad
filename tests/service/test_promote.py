"""Promote, roll back and drop under readers and writers: no error, no step back, and nothing left behind."""

import pytest

from schemas import names, resources
from schemas.control import number_of
from tests.harness import crm
from tests.harness.api_server import LEADS
from tests.harness.generations import pattern
from tests.harness.histories import Changes, Reader, Writer
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until
from tests.service.test_rebuild import assert_equal_and_right

pytestmark = pytest.mark.apache


def test_readers_see_no_error_and_no_step_back(leadview: Leadview) -> None:
    """A lead that differs shows which generation is served."""
    changes = Changes(leads=300, contacts=120)
    leadview.publish_all([*changes.initial(), crm.lead(referrer="generation 1")])
    leadview.start("run")
    leadview.start("run")
    leadview.wait_until_served()
    with leadview.api(workers=2) as api:

        def wait_until_served(generation: int) -> None:
            def is_served() -> bool:
                return bool(api.get(LEADS + crm.LEAD, key=changes.key).json["referrer"] == f"generation {generation}")

            wait_until(is_served, f"generation {generation} is served")

        background = [Writer(leadview, changes, rate=150), *(Reader(api.port, changes, seed) for seed in range(2))]
        for each in background:
            each.start()
        done = leadview.run("rebuild", "--max-latency", "0")
        assert done.status == 0, done.output
        mark = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), leadview.generation(2), crm.LEAD)
        leadview.redis.set(mark, leadview.redis.get(mark).replace(b"generation 1", b"generation 2"))

        done = leadview.run("promote")
        assert done.status == 1
        assert "Not promoted: 1 documents differ, and --threshold is 0" in done
        assert number_of(leadview.state().live) == 1
        done = leadview.run("promote", "--threshold", "1")
        assert done.status == 0, done.output
        wait_until_served(2)
        assert "generation 1 is served again instead of 2" in leadview.run("rollback")
        wait_until_served(1)
        assert leadview.run("rollback").status == 0
        wait_until_served(2)
        done = leadview.run("drop")
        assert done.status == 0, done.output
        assert "generation 1 dropped" in done
        leadview.wait_until_current()
        assert list(leadview.redis.scan_iter(match=pattern(1))) == [], "though projectors were writing"
        assert "There is no former generation" in leadview.run("rollback")
        for each in background:
            each.stop()
    leadview.wait_until_current()
    assert leadview.run("rebuild", "--organization", crm.ORGANIZATION, "--lead", crm.LEAD).status == 0
    assert_equal_and_right(leadview, 2)
