"""Promote, roll back and drop under readers and writers: no error, no step back, and nothing left behind."""

import time
from typing import NamedTuple

import pytest

from devstack.threads import Repeating
from schemas import names, resources
from schemas.control import number_of
from tests.chaos.core import key_of, writer_to
from tests.chaos.reader import readers_of
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.generations import pattern
from tests.harness.leadview import Leadview
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, wait_until
from tests.service.test_rebuild import assert_equal_and_right

pytestmark = pytest.mark.apache

GRACE_SECONDS = 1.0
_PAUSE_SECONDS = 0.01


class Seen(NamedTuple):
    """What an answer showed, and for how many seconds the machine had stood still before it was asked for."""

    asked_at: float
    lost: float
    shown: str


class Watcher(Repeating):
    """Repeatedly reads which generation a lead is served from, over new connections and so from every worker."""

    def __init__(self, api: ApiServer, stopwatch: Stopwatch) -> None:
        super().__init__(_PAUSE_SECONDS)
        self._api = api
        self._stopwatch = stopwatch
        self.seen: list[Seen] = []

    def _work(self) -> None:
        asked_at, lost = time.time(), self._stopwatch.lost
        answer = self._api.get(LEADS + crm.LEAD, key=key_of(crm.ORGANIZATION))
        shown = str(answer.json["referrer"]) if answer.status == 200 else answer.error
        self.seen.append(Seen(asked_at, lost, shown))

    def assert_followed(self, flipped_at: float, before: str, after: str) -> None:
        """All answers say `before` until the flip, `after` from a second later on, and one of the two between."""
        lost_before = max(seen.lost for seen in self.seen if seen.asked_at <= flipped_at)

        def seconds_since(seen: Seen) -> float:
            return seen.asked_at - flipped_at - (seen.lost - lost_before)

        wait_until(lambda: seconds_since(self.seen[-1]) > GRACE_SECONDS + 0.5, "the flip is long past")
        since = [seen for seen in self.seen if seen.asked_at > flipped_at]
        assert {seen.shown for seen in since if seconds_since(seen) > GRACE_SECONDS} == {after}
        assert {seen.shown for seen in since} <= {before, after}


def flipped_at(leadview: Leadview) -> float:
    return leadview.state().flipped_at / 1000


def test_readers_see_no_error_and_no_step_back(leadview: Leadview) -> None:
    writer = writer_to(leadview, 150, leads=300, contacts=120)
    leadview.publish(crm.lead(referrer="generation 1"))
    leadview.start("run")
    leadview.start("run")
    leadview.wait_until_served()
    with (
        leadview.api(workers=2, api_redis_timeout=PATIENCE_SECONDS) as api,
        Stopwatch() as stopwatch,
        writer,
        readers_of(writer, api.port, readers=2),
        Watcher(api, stopwatch) as watcher,
    ):
        done = leadview.run("rebuild", "--max-latency", "0")
        assert done.status == 0, done.output
        # A lead that differs shows which generation is served.
        mark = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), leadview.generation(2), crm.LEAD)
        leadview.redis.set(mark, leadview.redis.get(mark).replace(b"generation 1", b"generation 2"))

        done = leadview.run("promote")
        assert done.status == 1
        assert "Not promoted: 1 documents differ, and --threshold is 0" in done
        assert number_of(leadview.state().live) == 1
        done = leadview.run("promote", "--threshold", "1")
        assert done.status == 0, done.output
        watcher.assert_followed(flipped_at(leadview), "generation 1", "generation 2")
        done = leadview.run("rollback")
        assert "generation 1 is served again instead of 2" in done
        watcher.assert_followed(flipped_at(leadview), "generation 2", "generation 1")
        assert "`rollback` serves generation 2 again" in leadview.run("promote")
        assert leadview.run("rollback").status == 0
        watcher.assert_followed(flipped_at(leadview), "generation 1", "generation 2")

        assert "Generation 2 is live" in leadview.run("drop", "2")
        assert "There is no generation 3" in leadview.run("drop", "3")
        done = leadview.run("drop")
        assert done.status == 0, done.output
        assert "generation 1 dropped" in done
        leadview.wait_until_current()
        assert list(leadview.redis.scan_iter(match=pattern(1))) == [], "though projectors were writing"
        assert "There is no former generation" in leadview.run("rollback")
        assert "There is only generation 2" in leadview.run("drop")
    leadview.wait_until_current()
    assert leadview.run("rebuild", "--organization", crm.ORGANIZATION, "--lead", crm.LEAD).status == 0
    assert_equal_and_right(leadview, 2)
