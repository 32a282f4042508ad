"""The units of deploy/systemd: systemd accepts them, and their limits are those of compose.yaml."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from api.server import SHUTDOWN_SECONDS
from schemas.settings import ApiSettings, ProjectorSettings, RedisSettings, load

PROGRAM = shutil.which("systemd-analyze")
ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
TIMER = SYSTEMD / "leadview-verify.timer"


@pytest.mark.heavy
@pytest.mark.skipif(not PROGRAM, reason="this machine has no systemd-analyze")
@pytest.mark.parametrize("unit", [*UNITS, TIMER], ids=lambda unit: unit.name)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    for each in (*UNITS, TIMER):
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", each.read_text(), flags=re.MULTILINE)
        (tmp_path / each.name).write_text(text)
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


@pytest.mark.heavy
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


def test_a_stop_waits_for_the_drain_and_the_requests_in_progress() -> None:
    text = (SYSTEMD / "leadview-api.service").read_text()
    drain, stop = _found(r"LEADVIEW_API_DRAIN_SECONDS=(\d+)", text), _found(r"TimeoutStopSec=(\d+)", text)
    assert int(stop) > int(drain) + SHUTDOWN_SECONDS


def test_all_run_as_the_user_that_sysusers_makes() -> None:
    """A user that systemd makes for each start could not read a secret that only one user may read."""
    users = {_found(r"^u (\S+)", (SYSTEMD / "leadview.sysusers.conf").read_text())}
    assert {_found(r"^User=(\S+)", unit.read_text()) for unit in UNITS} == users


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["leadview-api.service", "leadview-projector@.service"])
def test_what_no_restart_repairs_is_not_started_again(name: str) -> None:
    wrong = subprocess.run(
        [sys.executable, "-m", "api" if "api" in name else "projector", *([] if "api" in name else ["run"])],
        env={"PATH": "", "LEADVIEW_API_PORT": "none", "LEADVIEW_BATCH_RECORDS": "none"},
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert str(wrong.returncode) in _found(r"RestartPreventExitStatus=(.+)", (SYSTEMD / name).read_text()).split()


@pytest.mark.parametrize(("name", "process"), [("api", ApiSettings), ("projector", ProjectorSettings)])
def test_the_examples_of_settings_are_valid(name: str, process: type[RedisSettings], tmp_path: Path) -> None:
    """Also with the lines that are commented out. Their secrets are in files, which are made here."""
    lines = (SYSTEMD / f"{name}.env.example").read_text().splitlines()
    active = [line for line in lines if line.startswith("LEADVIEW_")]
    for some in (active, [*active, *(line[1:] for line in lines if line.startswith("#LEADVIEW_"))]):
        variables = dict(line.split("=", 1) for line in some)
        for variable in (variable for variable in variables if variable.endswith("_FILE")):
            (tmp_path / variable).write_text("secret")
            variables[variable] = str(tmp_path / variable)
        load(process, variables)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert match, pattern
    return match[1]
