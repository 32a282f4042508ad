"""Every rule of the models has a mutation that switches it off, and `make model` checks enough."""

import re
from typing import Any

import pytest

from tests.model import defects, tlc
from tests.model.__main__ import MUTATIONS

_RULE = re.compile(r'Rule\("([^."]+)"\)')


def test_every_rule_is_switched_off_by_a_mutation() -> None:
    for module in sorted(tlc.MODELS.glob("*.tla")):
        rules = set(_RULE.findall(module.read_text("utf-8")))
        assert rules, f"{module.name} has no rules"
        configurations = {path.stem for path in tlc.MODELS.glob("*.cfg") if tlc.module_of(path) == module.stem}
        named = {rule for mutation in MUTATIONS if mutation.configuration in configurations for rule in mutation.off}
        assert rules == named, f"rules of {module.name} and those that `make model` switches off differ"


def test_every_rule_is_one_of_the_code_or_says_why_not() -> None:
    rules = {
        rule
        for module in ("access", "control")
        for rule in _RULE.findall((tlc.MODELS / f"{module}.tla").read_text("utf-8"))
    }
    of_code = {defect.rule for defect in (*defects.OF_ACCESS, *defects.OF_CONTROL)} - {""}
    assert of_code.isdisjoint(defects.WITHOUT)
    assert of_code | set(defects.WITHOUT) == rules


@pytest.mark.parametrize("defect", [*defects.OF_ACCESS, *defects.OF_CONTROL], ids=lambda defect: defect.code)
def test_every_defect_is_one_of_the_present_code(defect: Any) -> None:
    """A script that has changed is noticed at once."""
    with defect.off():
        pass


def test_every_configuration_can_have_an_entity_in_two_versions() -> None:
    """With one version of each entity, "older after newer" could not happen."""
    for path in tlc.MODELS.glob("*.cfg"):
        if records := re.search(r"^  Records = (\d+)$", path.read_text("utf-8"), re.MULTILINE):
            assert int(records[1]) >= 3 or path.stem in ONE_VERSION, path.stem


ONE_VERSION = frozenset(("all-emptied", "new-lineage", "old-backup", "recovery", "recovery-failover", "slow-keeper"))
"""Configurations that would be too large with two versions of an entity."""
