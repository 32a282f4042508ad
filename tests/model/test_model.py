"""TLC checks the protocol: it finds no error in any order of steps, crashes and faults; and if a rule is switched off,
it finds the hole that the rule closes.

Only configurations that take seconds: `make model` checks all of them, and more rules.
"""

import os

import pytest

from devstack.jars import JarsMissing
from tests.harness.services import not_available
from tests.model import tlc

WORKERS = len(os.sched_getaffinity(0))


def outcome(configuration: str, *off: str) -> tlc.Outcome:
    try:
        return tlc.check(tlc.MODELS / f"{configuration}.cfg", workers=WORKERS, off=off)
    except JarsMissing as error:
        not_available(str(error))


@pytest.mark.parametrize("configuration", ["access", "tombstone", "first", "emptied"])
def test_no_error(configuration: str) -> None:
    found = outcome(configuration)
    assert found.violated is None, found.output
    assert found.states > 900, "the bounds are so small that nothing happens"


@pytest.mark.parametrize(
    ("configuration", "rule", "violated"),
    [
        pytest.param("access", "mark", "NeverAgain", id="a recreated organization is open while it is replayed"),
        pytest.param("access", "end", "NothingLeft NeverAgain", id="an erasure ends with its first pass"),
        pytest.param("access", "same-organization", "NothingLeft", id="a job of an earlier deletion ends a later one"),
        pytest.param("access", "same-slots", "NothingLeft", id="keys move behind an erasure"),
        pytest.param("access", "job-version", tlc.DEADLOCK, id="a job that became due again is lost"),
        pytest.param("emptied", "incarnation", "Covered", id="a batch from before a shard was emptied is covered"),
        pytest.param("emptied", "complete", "Complete", id="a shard is served while it is filled"),
        pytest.param("emptied", "written", "OneRecord", id="an emptied shard begins with a default"),
        pytest.param("rebuild", "mapping", "Mapped", id="an older program writes a newer generation"),
        pytest.param("sleeper", "fence", "NothingLeft", id="a drop does not wait for a writer that sleeps"),
        pytest.param("sleeper", "reconnect", "NothingLeft", id="a writer that woke up continues over a new connection"),
    ],
)
def test_each_rule_closes_a_hole(configuration: str, rule: str, violated: str) -> None:
    found = outcome(configuration, rule)
    assert found.violated in violated.split(), found.output
