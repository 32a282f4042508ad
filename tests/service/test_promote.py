"""Promote, roll back and drop under readers and writers: no error, no step back, and nothing left behind."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from schemas import names, resources
from schemas.control import number_of
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.generations import pattern
from tests.harness.histories import STOOD_STILL_SECONDS, Changes, Reader, Writer
from tests.harness.leadview import Leadview
from tests.harness.waiting import Stopwatch, wait_until
from tests.service.test_rebuild import assert_equal_and_right

pytestmark = pytest.mark.apache

GRACE_SECONDS = 1.0
_PAUSE_SECONDS = 0.01


class Seen(NamedTuple):
    """What an answer showed, and for how many seconds the machine had stood still before it was asked for."""

    asked_at: float
    lost: float
    shown: str


class Watcher(threading.Thread):
    """Repeatedly reads which generation a lead is served from, over new connections and so from every worker."""

    def __init__(self, api: ApiServer, key: str) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._key = key
        self._ended = threading.Event()
        self.seen: list[Seen] = []

    def run(self) -> None:
        with Stopwatch() as stopwatch:
            while not self._ended.wait(_PAUSE_SECONDS):
                asked_at, lost = time.time(), stopwatch.lost
                answer = self._api.get(LEADS + crm.LEAD, key=self._key)
                if answer.status == 503 and stopwatch.lost - lost > STOOD_STILL_SECONDS:
                    continue  # the machine stood still, so that the API had no answer of Redis in time
                shown = str(answer.json["referrer"]) if answer.status == 200 else answer.error
                self.seen.append(Seen(asked_at, lost, shown))

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def assert_followed(self, flipped_at: float, before: str, after: str) -> None:
        """All answers say `before` until the flip, `after` from a second later on, and one of the two between."""
        lost_before = max(seen.lost for seen in self.seen if seen.asked_at <= flipped_at)

        def seconds_since(seen: Seen) -> float:
            return seen.asked_at - flipped_at - (seen.lost - lost_before)

        wait_until(lambda: seconds_since(self.seen[-1]) > GRACE_SECONDS + 0.5, "the flip is long past")
        since = [seen for seen in self.seen if seen.asked_at > flipped_at]
        assert {seen.shown for seen in since if seconds_since(seen) > GRACE_SECONDS} == {after}
        assert {seen.shown for seen in since} <= {before, after}


@contextmanager
def in_background(*threads: Writer | Reader | Watcher) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.stop()


def flipped_at(leadview: Leadview) -> float:
    return leadview.state().flipped_at / 1000


def test_readers_see_no_error_and_no_step_back(leadview: Leadview) -> None:
    changes = Changes(leads=300, contacts=120)
    leadview.publish_all([*changes.initial(), crm.lead(referrer="generation 1")])
    leadview.start("run")
    leadview.start("run")
    leadview.wait_until_served()
    with leadview.api(workers=2) as api:
        readers = [Reader(api.port, changes, seed) for seed in range(2)]
        watcher = Watcher(api, changes.key)
        with in_background(Writer(leadview, changes, rate=150), *readers, watcher):
            done = leadview.run("rebuild", "--max-latency", "0")
            assert done.status == 0, done.output
            # A lead that differs shows which generation is served.
            mark = names.document(
                resources.LEAD, names.organization(crm.ORGANIZATION), leadview.generation(2), crm.LEAD
            )
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
