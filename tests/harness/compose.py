"""compose.yaml, run by Docker or Podman, beside what else runs on the machine."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import orjson
import yaml

from deploy.release import base_image
from devstack.jars import KAFKA, JarsMissing
from devstack.ports import free_port
from devstack.programs import ROOT
from tests.harness.programs import printed_by
from tests.harness.services import not_available

_COMMAND_TIMEOUT_SECONDS = 1800.0  # the first build fetches every dependency
_PROBE_TIMEOUT_SECONDS = 60.0
_COMPOSE = ROOT / "build/compose/docker-compose"
"""Made by `make test-images` where the engine has no Compose."""
_DOCKERFILE = ROOT / "tests/service/images/stand-ins.Dockerfile"
_STAND_IN_BASE = "leadview-stand-in:debian"
# What this machine needs to reach the registries of packages, a build in a container needs as well.
_INHERITED = ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")


class Compose:
    """A project with a port, a network and images of its own. `port` is that of the front.

    Used as a context, it removes its containers, volumes and images at the end.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is for the changed compose.yaml. Without an engine with Compose, or without an image that it
        needs, the test is skipped, or it fails."""
        self._engine, self._compose, self._environment = _engine()
        self.port = free_port()
        self._project = f"leadview-test-{self.port}"
        self._file = directory / "compose.yaml"
        self._images: set[str] = set()
        self.use_images("test")
        self.base_image = base_image(ROOT)
        others = {service["image"] for service in self.services.values() if "build" not in service}
        for image in sorted(others | {self.base_image}):
            if not _succeeds(self._engine, "image", "inspect", image) and not _succeeds(self._engine, "pull", image):
                _make_stand_in(self._engine, image, self._environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self("--profile", "sample", "down", "--volumes", "--timeout", "60")
        for image in self._images:
            self.engine("image", "rm", "--force", image)

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        services: dict[str, dict[str, Any]] = yaml.safe_load(self._file.read_text())["services"]
        return services

    def use_images(self, tag: str) -> None:
        """Name the images of Leadview `leadview:<tag>` and `leadview-sample:test`."""
        text = (ROOT / "compose.yaml").read_text("utf-8")
        for before, after in (
            (r"image: leadview:\S+", f"image: leadview:{tag}"),
            (r"image: leadview-sample:\S+", "image: leadview-sample:test"),
            (r"10\.213\.87\.0/24", "10.213.86.0/24"),
            (r"127\.0\.0\.1:8443:8443", f"127.0.0.1:{self.port}:8443"),
            (r"base-url=https://localhost:8443", f"base-url=https://localhost:{self.port}"),
        ):
            text, found = re.subn(before, after, text)
            assert found, f"compose.yaml does not contain {before}"
        self._file.write_text(text, "utf-8")
        self._images |= {service["image"] for service in self.services.values() if "build" in service}

    def __call__(self, *words: str) -> str:
        """Run a command of Compose, and return its standard output."""
        options = ("--project-name", self._project, "--project-directory", str(ROOT), "--file", str(self._file))
        return printed_by(
            [*self._compose, *options, *words], environment=self._environment, timeout=_COMMAND_TIMEOUT_SECONDS
        )

    def engine(self, *words: str, standard_input: str = "") -> str:
        return printed_by(
            [self._engine, *words],
            environment=self._environment,
            stdin=standard_input,
            timeout=_COMMAND_TIMEOUT_SECONDS,
        )

    def container(self, service: str) -> dict[str, Any]:
        """Returns what the engine says of the container of `service`, which may have ended."""
        [identity] = self("--profile", "sample", "ps", "--all", "--quiet", service).split()
        [container] = orjson.loads(self.engine("inspect", identity))
        assert isinstance(container, dict)
        return container

    def read(self, service: str, *files: str) -> str:
        """Returns the contents of those `files` that exist in the running container of `service`."""
        return self("--profile", "sample", "exec", "-T", service, "sh", "-c", f"cat {' '.join(files)} 2>/dev/null || :")


def _engine() -> tuple[str, list[str], dict[str, str]]:
    """Returns the engine, the command of its Compose, and the environment for both."""
    for name in ("docker", "podman"):
        if not shutil.which(name) or not _succeeds(name, "info"):
            continue
        if _succeeds(name, "compose", "version"):
            return name, [name, "compose"], dict(os.environ)
        if name == "docker" and _COMPOSE.exists():
            # Without plug-ins there is no BuildKit either. What is built at the same time does not share its layers.
            return name, [str(_COMPOSE)], os.environ | {"DOCKER_BUILDKIT": "0", "COMPOSE_PARALLEL_LIMIT": "1"}
    return not_available("neither Docker nor Podman runs here, with Compose (CONTRIBUTING.md)")


def _succeeds(*command: str) -> bool:
    try:
        ended = subprocess.run(command, capture_output=True, check=False, timeout=_PROBE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def _make_stand_in(engine: str, image: str, environment: Mapping[str, str]) -> None:
    """Makes an image of Debian's packages, under the name of one that cannot be pulled (`stand-ins.Dockerfile`).

    Needs root and debootstrap, and Maven for Apache Kafka."""
    missing = f"{engine} has no image {image} and cannot pull it"
    if os.geteuid() or not shutil.which("debootstrap"):
        not_available(f"{missing}: root could make a stand-in for it with debootstrap")
    target = re.split("[/:]", image.removeprefix("apache/"))[0]
    try:
        with TemporaryDirectory(prefix="leadview-stand-in-") as scratch:
            context = Path(scratch)
            if not _succeeds(engine, "image", "inspect", _STAND_IN_BASE):
                _make_base(engine, context / "root", environment)
            context /= "context"
            context.mkdir()
            if target == "kafka":
                _get_kafka(context)
            command = (engine, "build", "--file", str(_DOCKERFILE), "--target", target, "--tag", image, str(context))
            printed_by(command, environment=environment)
    except (AssertionError, subprocess.TimeoutExpired, JarsMissing) as error:
        not_available(f"{missing}: {error}")


def _make_base(engine: str, root: Path, environment: Mapping[str, str]) -> None:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE))
    suite = release["VERSION_CODENAME"] if release["ID"] == "debian" else "stable"
    printed_by(["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, root])
    for name in _INHERITED:
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), root / name)
    archive = root.with_suffix(".tar")
    printed_by(["tar", "--create", "--directory", root, "--file", archive, "."])
    printed_by([engine, "import", archive, _STAND_IN_BASE], environment=environment)


def _get_kafka(context: Path) -> None:
    """The jars of the tests, and that of the commands, which the tests do not need."""
    jars = KAFKA.fetch()
    for jar in jars.glob("*.jar"):
        shutil.copy(jar, context)
    [version] = [jar.stem.removeprefix("kafka-server-") for jar in jars.glob("kafka-server-[0-9]*.jar")]
    tools = f"-Dartifact=org.apache.kafka:kafka-tools:{version}"
    printed_by(["mvn", "-q", "-B", "dependency:copy", tools, f"-DoutputDirectory={context}"], directory=context)
