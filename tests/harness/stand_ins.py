"""Images made here, of Debian's packages, under the names of those that cannot be pulled (`stand-ins.Dockerfile`)."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from devstack.jars import KAFKA, JarsMissing
from tests.harness.processes import ROOT

_DOCKERFILE = ROOT / "tests/service/images/stand-ins.Dockerfile"
_BASE = "leadview-stand-in:debian"
_TIMEOUT_SECONDS = 900.0
# What this machine needs to reach the registries of packages, a build in a container needs as well.
_INHERITED = ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")


class StandInFailed(Exception):
    """The message says what is missing or went wrong."""


def make(engine: str, image: str, environment: Mapping[str, str]) -> None:
    """Needs root and debootstrap, and Maven for Apache Kafka. Raises StandInFailed."""
    if os.geteuid() or not shutil.which("debootstrap"):
        raise StandInFailed("root could make a stand-in for it with debootstrap")
    target = re.split("[/:]", image.removeprefix("apache/"))[0]
    try:
        with TemporaryDirectory(prefix="leadview-stand-in-") as scratch:
            context = Path(scratch)
            if not _succeeds(engine, "image", "inspect", _BASE, environment=environment):
                _make_base(engine, context / "root", environment)
            context /= "context"
            context.mkdir()
            if target == "kafka":
                _get_kafka(context)
            command = (engine, "build", "--file", str(_DOCKERFILE), "--target", target, "--tag", image, str(context))
            _run(*command, environment=environment)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, JarsMissing) as error:
        output = getattr(error, "output", None) or b""
        raise StandInFailed(f"{error}\n{output.decode(errors='replace')[-2000:]}") from error


def _make_base(engine: str, root: Path, environment: Mapping[str, str]) -> None:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE))
    suite = release["VERSION_CODENAME"] if release["ID"] == "debian" else "stable"
    _run("debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(root))
    for name in _INHERITED:
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), root / name)
    archive = root.with_suffix(".tar")
    _run("tar", "--create", "--directory", str(root), "--file", str(archive), ".")
    _run(engine, "import", str(archive), _BASE, environment=environment)


def _get_kafka(context: Path) -> None:
    """The jars of the tests, and that of the commands, which the tests do not need."""
    jars = KAFKA.fetch()
    for jar in jars.glob("*.jar"):
        shutil.copy(jar, context)
    [version] = [jar.stem.removeprefix("kafka-server-") for jar in jars.glob("kafka-server-[0-9]*.jar")]
    tools = f"-Dartifact=org.apache.kafka:kafka-tools:{version}"
    _run("mvn", "-q", "-B", "dependency:copy", tools, f"-DoutputDirectory={context}", directory=context)


def _succeeds(*command: str, environment: Mapping[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def _run(*command: str, environment: Mapping[str, str] | None = None, directory: Path | None = None) -> None:
    subprocess.run(
        command,
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        timeout=_TIMEOUT_SECONDS,
    )
