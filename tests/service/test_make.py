"""What the Makefile installs, where other programs, settings and accidents are in the way. No network is used."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.programs import ROOT
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.heavy

UNREACHABLE = "leadview-does-not-exist==1.0 --hash=sha256:" + 64 * "0"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The parts of a clone that install, without requirements, at a path that needs quotes."""
    clone = tmp_path / "a clone's $HOME é"
    for name in ("Makefile", ".ci/parts.mk", "devstack/install.py"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    (clone / "requirements-run.txt").touch()
    return clone


def installing(
    clone: Path, python: str = sys.executable, venv: str = ".venv", **variables: str
) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "MAKE"))}
    return subprocess.Popen(
        ["/usr/bin/env", "make", f"{venv}/run.stamp", f"VENV={venv}", f"PYTHON={python}"],
        cwd=clone,
        env=inherited | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def installed(clone: Path, python: str = sys.executable, **variables: str) -> tuple[int, str, str]:
    """Returns the exit status, and what was printed. make adds a line if a recipe fails."""
    with installing(clone, python, **variables) as process:
        output, errors = process.communicate(timeout=4 * PATIENCE_SECONDS)
    return (
        process.returncode,
        output,
        "".join(line for line in errors.splitlines(True) if not line.startswith("make: ")),
    )


def has_pip(clone: Path) -> bool:
    return subprocess.call([clone / ".venv/bin/python", "-I", "-c", "import pip"], stderr=subprocess.DEVNULL) == 0


def test_settings_for_other_environments_change_nothing(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "strangers/pip").mkdir(parents=True)
    (tmp_path / "strangers/pip/__init__.py").write_text("raise SystemExit('this is a stranger')\n")
    elsewhere = str(tmp_path / "elsewhere")
    status, output, errors = installed(
        clone,
        PIP_USER="1",
        PIP_TARGET=elsewhere,
        PIP_PREFIX=elsewhere,
        PIP_ROOT=elsewhere,
        PYTHONPATH=str(tmp_path / "strangers"),
        PYTHONHOME="/nonexistent",
    )
    assert (status, errors) == (0, "")
    assert output.count("\n") == 1
    assert has_pip(clone)
    assert installed(clone) == (0, "make: '.venv/run.stamp' is up to date.\n", "")


def test_environment_of_another_python_may_be_in_a_folder_that_is_not_there(clone: Path) -> None:
    with installing(clone, venv="build/python3") as process:
        _, errors = process.communicate(timeout=4 * PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert (clone / "build/python3/run.stamp").exists()


@pytest.mark.long
def test_installation_that_was_broken_off_is_repaired(clone: Path) -> None:
    """As a machine that was switched off leaves it, or a disk that was full."""
    assert installed(clone)[0] == 0
    (clone / ".venv/run.stamp").unlink()
    [pip] = (clone / ".venv/lib").glob("python*/site-packages/pip")
    shutil.rmtree(pip / "_vendor")
    (clone / ".venv.lock").write_text("unfinished\n")
    assert installed(clone)[0] == 0
    assert (pip / "_vendor").is_dir()
    shutil.rmtree(pip)
    (clone / ".venv/run.stamp").unlink()
    assert installed(clone)[0] == 0
    assert has_pip(clone)


@pytest.mark.long
def test_second_of_two_installations_waits(clone: Path) -> None:
    with installing(clone) as first, installing(clone) as second:
        answers = [process.communicate(timeout=4 * PATIENCE_SECONDS) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], answers
    assert sorted("waits" in output for output, _ in answers) == [False, True]
    assert sorted("takes a minute" in output for output, _ in answers) == [False, True]


def test_without_a_network_it_says_so_in_one_line(clone: Path) -> None:
    (clone / "requirements-run.txt").write_text(UNREACHABLE)
    status, _, errors = installed(
        clone, PIP_INDEX_URL="http://127.0.0.1:1/", PIP_RETRIES="0", PIP_CONFIG_FILE="/dev/null"
    )
    assert (status, errors.count("\n")) == (2, 1), errors
    assert "pip reaches no package index" in errors
    (clone / "requirements-run.txt").write_text("")
    assert installed(clone)[0] == 0


@pytest.mark.parametrize("script", ["echo", "exit 1"], ids=["too old", "without venv"])
def test_python_that_cannot_be_used_is_named(clone: Path, tmp_path: Path, script: str) -> None:
    python = tmp_path / "python3.10"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    status, _, errors = installed(clone, str(python))
    assert (status, errors.count("\n")) == (2, 1), errors
    assert f"needs Python 3.11 or newer with its venv module (on Debian: python3-venv). {python} is not." in errors
    assert not (clone / ".venv").exists()
