"""The wheel, installed into a fresh environment and called in a folder with packages that have the same names."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import msgspec
import orjson
import pytest

from deploy.release import packages
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import ROOT, while_running
from leadview.command import main
from schemas.resources import LEAD
from schemas.version import VERSION
from tests.harness.api_server import ApiServer
from tests.harness.commands import Finished
from tests.harness.programs import printed_by
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

COMMANDS = {"run", "status", "doctor", "show", "dead-letters", "rebuild", "verify", "promote", "rollback", "drop"}
COMMANDS |= {"console", "validate", "usage", "api", "completion"}
PACKAGES = ("api", "leadview", "operate", "projector", "runtime", "schemas")


class Installed(NamedTuple):
    """An environment with nothing but the wheel; `strangers` is the folder in which `leadview` is called."""

    wheel: Path
    leadview: Path
    strangers: Path

    def environment(self, **settings: object) -> dict[str, str]:
        """The folder with the strangers is in the path of modules, too."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LEADVIEW_", "PYTHON"))}
        named = {f"LEADVIEW_{name.upper()}": str(value) for name, value in settings.items()}
        return inherited | {"PYTHONPATH": str(self.strangers), "COLUMNS": "160"} | named

    def run(self, *words: str, **settings: object) -> Finished:
        done = subprocess.run(
            [self.leadview, *words],
            cwd=self.strangers,
            env=self.environment(**settings),
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_SECONDS,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)


def pip(*words: str | Path) -> None:
    printed_by([sys.executable, "-m", "pip", "--disable-pip-version-check", *words])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"  # a build leaves files there
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info"))
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source)
    [wheel] = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", wheel)
    paths = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    # The dependencies of this project, of which none has to be fetched again.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    strangers = folder / "strangers"
    for name in set(PACKAGES) - {"leadview"}:
        (strangers / name).mkdir(parents=True)
        (strangers / name / "__init__.py").write_text("raise SystemExit('this is a stranger')\n")
    return Installed(wheel, environment / "bin" / "leadview", strangers)


def test_the_wheel_holds_what_is_needed_to_run(installed: Installed) -> None:
    with ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
    data = f"leadview-{VERSION}.data"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, f"leadview-{VERSION}.dist-info", data}
    deployed = {path for path in (ROOT / "deploy").rglob("*") if path.suffix not in (".py", ".pyc")}
    for needed, folder in (
        ({path for package in PACKAGES for path in (ROOT / package).rglob("*.lua")}, ""),
        ({*(ROOT / "schemas" / "dictionaries").iterdir(), ROOT / "schemas" / "py.typed"}, ""),
        ({*(ROOT / "operate" / "console" / "static").rglob("*")}, ""),
        ({*(ROOT / "docs").glob("*.md")}, f"{data}/data/share/leadview/"),  # the console shows the runbook
        (deployed - {*(ROOT / "deploy/kubernetes").rglob("*")}, f"{data}/data/share/leadview/"),
    ):
        files = {f"{folder}{path.relative_to(ROOT)}" for path in needed if path.is_file()}
        assert files
        assert files <= set(names)


@pytest.mark.parametrize("words", [(), ("nothing",)], ids=" ".join)
def test_leadview_called_wrongly_exits_with_2(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_leadview_lists_its_commands_and_completes_them(installed: Installed) -> None:
    done = installed.run("--help", unknown=1)
    assert (done.status, done.stderr, done.stdout.startswith("usage: leadview")) == (0, "", True)
    assert COMMANDS - set(done.stdout.split()) == set()
    assert installed.run("api", "--version", unknown=1) == (0, f"leadview {VERSION}\n", "")
    printed_by(["bash", "-n"], stdin=installed.run("completion", "bash").ends(0, "dead-letters").stdout)
    installed.run("completion", "fish").ends(2)


def test_events_are_validated_without_the_checkout(installed: Installed) -> None:
    key = f"{LEAD.event_example.organization_id}:{LEAD.event_example.id}"
    event = {"specversion": "1.0", "id": "1", "source": "crm", "type": "crm.lead.changed"}
    value = orjson.dumps(event | {"data": msgspec.to_builtins(LEAD.event_example)}).decode()
    (installed.strangers / "events.tsv").write_text(f"{key}\t{value}\n")
    assert installed.run("validate", "--render", "events.tsv").ends(0).json["id"] == LEAD.event_example.id


@pytest.mark.long
def test_two_builds_are_equal_under_any_umask(installed: Installed, tmp_path: Path) -> None:
    """Of the same commit: the umask of the builder, and the folder in which it is built, are not in the wheel."""
    wheels = []
    for umask in (0o022, 0o077):
        before = os.umask(umask)
        try:
            packages(ROOT, tmp_path / str(umask))
        finally:
            os.umask(before)
        [wheel] = (tmp_path / str(umask)).glob("*.whl")
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]


def test_commands_find_their_own_packages(installed: Installed) -> None:
    away = {"redis_url": "redis://127.0.0.1:1/0", "kafka_bootstrap_servers": "127.0.0.1:1"}
    for words, said in (
        (["status"], "not well: Redis cannot be read; Kafka cannot be read"),
        (["doctor", "--api"], "problem  Redis rights of the API"),
    ):
        assert installed.run(*words, **away).ends(1, said).stderr == ""


def test_advice_names_the_command_as_it_was_called(installed: Installed, redis_server: RedisService) -> None:
    environment = installed.environment(redis_url=redis_server.url, kafka_bootstrap_servers="127.0.0.1:1")
    command = [str(installed.leadview.parent / "python"), "-m", "leadview", "status"]
    told = printed_by(command, status=1, directory=installed.wheel.parent, environment=environment | {"PYTHONPATH": ""})
    assert "start one with `python -m leadview run`" in told


def test_the_api_finds_its_own_packages(installed: Installed, redis_server: RedisService, tmp_path: Path) -> None:
    """With two workers, which are processes of their own."""
    api = ApiServer(free_port())
    settings = {"redis_url": redis_server.url, "api_port": api.port, "api_workers": 2}
    # A child of ours keeps its own folder, so the strangers are in its path of modules only.
    command, environment = [str(installed.leadview), "api"], installed.environment(**settings)
    with Child(command, log=tmp_path / "api.log", environment=environment) as child:
        wait_until(while_running(child, lambda: api.answers("/healthz")), "the API answers")
        assert api.get("/healthz").json == {"status": "ok"}
        assert api.get("/api/v1/ext/openapi.json").status == 200
