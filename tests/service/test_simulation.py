"""Simulated worlds (`tests/simulation`), as a program of its own: in them, time is not that of the machine."""

import sys

from tests.harness.programs import printed_by

_SIMULATE = (sys.executable, "-m", "tests.simulation")


def test_nothing_is_wrong_in_simulated_worlds() -> None:
    printed = printed_by([*_SIMULATE, "--seed", "2", "--worlds", "3"])
    assert "all is right: 3 worlds" in printed


def test_a_seed_repeats_every_command_in_another_process() -> None:
    digests = {
        printed_by([*_SIMULATE, "--seed", "7", "--worlds", "1", "--steps", "3", "--digest"]).partition("\n")[0]
        for _ in range(2)
    }
    assert len(digests) == 1
