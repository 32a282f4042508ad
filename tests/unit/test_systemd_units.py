"""The units of deploy/systemd: systemd accepts them, and their limits are those of compose.yaml."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = shutil.which("systemd-analyze")
ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())


@pytest.mark.skipif(not PROGRAM, reason="this machine has no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.MULTILINE)
    (tmp_path / unit.name).write_text(text)
    assert PROGRAM
    done = subprocess.run([PROGRAM, "verify", tmp_path / unit.name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


HARDENING = (
    *("UMask=0077", "ProtectKernelLogs=yes", "ProtectClock=yes", "ProtectHostname=yes", "ProtectProc=invisible"),
    *("RestrictRealtime=yes", "SystemCallArchitectures=native"),
)
"""Limits that cost a program nothing which reads no other process, and changes neither clock nor host."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_may_do_nothing_that_it_never_does(unit: Path) -> None:
    assert [line for line in HARDENING if line not in unit.read_text().splitlines()] == []


@pytest.mark.skipif(not PROGRAM, reason="this machine has no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_systemd_thinks_of_its_exposure(unit: Path) -> None:
    """systemd counts from 0 to 10. Of what remains, most is the network, and the tests that only root passes."""
    assert PROGRAM
    command = [PROGRAM, "security", "--offline=yes", "--threshold=16", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("unit", "service"), [("leadview-api.service", "api"), ("leadview-projector@.service", "projector")]
)
def test_its_limits_are_those_of_compose(unit: str, service: str) -> None:
    text = (ROOT / "deploy" / "systemd" / unit).read_text()
    part = (ROOT / "compose.yaml").read_text().split(f"\n  {service}:\n")[1]
    assert _found(r"MemoryMax=(\S+)", text).lower() == _found(r"mem_limit: (\S+)", part)
    assert _found(r"TasksMax=(\d+)", text) == _found(r"pids_limit: (\d+)", part)
    assert _found(r"TimeoutStopSec=(\d+)", text) == _found(
        r"stop_grace_period: (\d+)s", (ROOT / "compose.yaml").read_text()
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, pattern
    return match[1]
