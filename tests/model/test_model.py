"""TLC checks the protocol: it finds no error in any order of steps, crashes and faults; and if a rule is switched off,
it finds the hole that the rule closes.

Only configurations that take seconds: `make model` checks all of them, and every rule.
"""

import os
import re

import pytest

from devstack.jars import JarsMissing
from tests.harness.services import not_available
from tests.model import tlc
from tests.model.__main__ import MUTATIONS, Mutation

WORKERS = len(os.sched_getaffinity(0))
_RULE = re.compile(r'Rule\("([^."]+)"\)')
_QUICK = [pytest.param(mutation, id=mutation.hole) for mutation in MUTATIONS if mutation.quick]


def outcome(configuration: str, *off: str) -> tlc.Outcome:
    try:
        return tlc.check(tlc.MODELS / f"{configuration}.cfg", workers=WORKERS, off=off)
    except JarsMissing as error:
        not_available(str(error))


@pytest.mark.parametrize("configuration", ["access", "tombstone", "sleeper", "emptied", "lost"])
def test_no_error(configuration: str) -> None:
    found = outcome(configuration)
    assert found.violated is None, found.output
    assert found.states > 900, "the bounds are so small that nothing happens"


@pytest.mark.parametrize("mutation", _QUICK)
def test_each_rule_closes_a_hole(mutation: Mutation) -> None:
    found = outcome(mutation.configuration, *mutation.off)
    assert found.violated in mutation.violated, found.output


def test_every_rule_is_switched_off_by_a_mutation() -> None:
    for module in sorted(tlc.MODELS.glob("*.tla")):
        rules = set(_RULE.findall(module.read_text("utf-8")))
        assert rules, f"{module.name} has no rules"
        configurations = {path.stem for path in tlc.MODELS.glob("*.cfg") if tlc.module_of(path) == module.stem}
        named = {rule for mutation in MUTATIONS if mutation.configuration in configurations for rule in mutation.off}
        assert rules == named, f"rules of {module.name} and those that `make model` switches off differ"


def test_every_configuration_can_have_an_entity_in_two_versions() -> None:
    """With one version of each entity, "older after newer" could not happen."""
    for path in tlc.MODELS.glob("*.cfg"):
        if records := re.search(r"^  Records = (\d+)$", path.read_text("utf-8"), re.MULTILINE):
            assert int(records[1]) >= 3 or path.stem in ONE_VERSION, path.stem


ONE_VERSION = frozenset(("all-emptied", "new-lineage", "old-backup", "recovery", "recovery-failover", "slow-keeper"))
"""Configurations that would be too large with two versions of an entity."""
