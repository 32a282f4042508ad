"""compose.yaml, run for real: the images are built from the Dockerfile, and every service of it starts.

`make test-images` runs this. It is skipped where no Docker or Podman with Compose runs, or an image cannot be had; in
CI it fails then. One project serves all tests, in their order.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from deploy.release import context_of, image, version_of
from devstack.child import Child
from devstack.programs import ROOT
from tests.harness.compose import Compose
from tests.harness.programs import printed_by
from tests.harness.services import not_available
from tests.harness.waiting import wait_until
from tests.unit.test_deployment import COMPOSE, mebibytes

pytestmark = pytest.mark.images

PATIENCE_SECONDS = 600.0
OURS = ("api", "projector", "sample")
STAYING = ("kafka", "redis", "front", *OURS)
NET_BIND_SERVICE = 1 << 10

each_service = pytest.mark.parametrize("name", STAYING)


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    with Compose(tmp_path_factory.mktemp("compose")) as compose:
        compose("--profile", "sample", "up", "--build", "--detach")
        yield compose


@pytest.fixture(scope="module")
def curls(compose: Compose, tmp_path_factory: pytest.TempPathFactory) -> "Curls":
    authority = tmp_path_factory.mktemp("front") / "leadview-ca.crt"
    compose("cp", "front:/data/caddy/pki/authorities/local/root.crt", str(authority))
    printed = re.findall(r"^curl .*$", compose("logs", "--no-log-prefix", "sample"), re.MULTILINE)
    return Curls(printed, authority)


class Curls:
    """The printed commands, and what they answer when they are pasted into a shell that trusts `authority`."""

    def __init__(self, lines: list[str], authority: Path) -> None:
        self.lines = lines
        self._authority = authority

    def statuses(self) -> list[int]:
        return [self.answer(line)[0] for line in self.lines]

    def answer(self, line: str) -> tuple[int, dict[str, Any]]:
        """Returns the status, 0 if there was none, and the body."""
        environment = {**os.environ, "CURL_CA_BUNDLE": str(self._authority)}
        ended = subprocess.run(["/bin/bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            return 0, {"curl": ended.stderr}
        head, _, body = ended.stdout.replace("\r\n", "\n").partition("\n\n")
        return int(head.split()[1]), orjson.loads(body)

    def lead(self) -> dict[str, Any]:
        """Waits until the first command is answered with 200, and returns the lead."""
        wait_until(lambda: self.answer(self.lines[0])[0] == 200, "the lead is served", PATIENCE_SECONDS)
        return self.answer(self.lines[0])[1]


def wait_until_healthy(compose: Compose, name: str) -> None:
    def healthy() -> bool:
        return bool(compose.container(name)["State"]["Health"]["Status"] == "healthy")

    wait_until(healthy, f"{name} is healthy", PATIENCE_SECONDS)


@each_service
def test_every_service_becomes_healthy(compose: Compose, name: str) -> None:
    wait_until_healthy(compose, name)


def test_the_topics_were_created_and_nothing_started_twice(compose: Compose) -> None:
    state = compose.container("topics")["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    assert {name: compose.container(name)["RestartCount"] for name in STAYING} == dict.fromkeys(STAYING, 0)


@each_service
def test_the_kernel_enforces_what_compose_says(compose: Compose, name: str) -> None:
    """What the first process of the container may do, as the kernel shows it."""
    status = dict(line.split(":\t", 1) for line in compose.read(name, "/proc/1/status").splitlines())
    assert "0" not in status["Uid"].split()
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapBnd"], 16) == (NET_BIND_SERVICE if name == "front" else 0)
    [root] = [line.split() for line in compose.read(name, "/proc/1/mounts").splitlines() if line.split()[1] == "/"]
    assert "ro" in root[3].split(",")
    service = COMPOSE["services"][name]
    memory = compose.read(name, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    assert int(memory) == mebibytes(service["mem_limit"]) * 1024 * 1024
    processes = compose.read(name, "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
    assert int(processes) == service["pids_limit"]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An address that is reached by way of this machine only: it is in a network namespace beside it."""
    if os.geteuid() or not shutil.which("ip"):
        not_available("root needs ip (iproute2) to make a network namespace")
    holder = Child(["unshare", "--net", "--", "sleep", "infinity"], log=tmp_path_factory.mktemp("outside") / "log")
    try:
        there, own = Path(f"/proc/{holder.pid}/ns/net"), Path("/proc/self/ns/net")
        wait_until(lambda: holder.running and there.readlink() != own.readlink(), "the namespace exists")
        inside = f"nsenter --net={there} ip"
        for command in (
            f"ip link add lv-outside type veth peer name eth0 netns {holder.pid}",
            "ip address add 198.51.100.1/30 dev lv-outside",
            "ip link set lv-outside up",
            f"{inside} address add 198.51.100.2/30 dev eth0",
            f"{inside} link set eth0 up",
            f"{inside} route add default via 198.51.100.1",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
        yield "198.51.100.2"
    finally:
        holder.kill()


def reaches(container: dict[str, Any], address: str) -> bool:
    """Whether a connection is refused there. Otherwise nothing arrives, or nothing comes back."""
    connect = f"import socket; socket.create_connection(({address!r}, 9), timeout=3)"
    command = ["nsenter", "--net", "--target", str(container["State"]["Pid"]), sys.executable, "-c", connect]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return "ConnectionRefusedError" in ended.stderr


@each_service
def test_only_the_front_has_a_way_out_and_in(compose: Compose, outside: str, name: str) -> None:
    assert reaches(compose.container(name), outside) is (name == "front")
    ports = compose.container(name)["NetworkSettings"]["Ports"] or {}
    published = [binding["HostPort"] for bindings in ports.values() for binding in bindings or ()]
    assert published == ([str(compose.port)] if name == "front" else [])


def test_the_volumes_are_those_of_compose_and_no_others(compose: Compose) -> None:
    mounts = [mount for name in (*STAYING, "topics") for mount in compose.container(name)["Mounts"]]
    names = {mount["Name"].partition("_")[2] for mount in mounts if mount["Type"] == "volume"}
    assert names == set(COMPOSE["volumes"])


def test_image_of_a_release_runs_the_command_in_every_folder(compose: Compose, tmp_path: Path) -> None:
    """Built from the context of the release, saved, and loaded again. It has the command in every folder."""
    context, saved = tmp_path / "context.tar.gz", tmp_path / "image.docker.tar"
    name, revision = f"leadview:{version_of(ROOT)}", '{{index .Config.Labels "org.opencontainers.image.revision"}}'
    git("archive", f"--output={context}", "HEAD", "Dockerfile", *context_of(ROOT))
    image(ROOT, context, saved)
    compose.engine("image", "rm", "--force", name)
    compose.engine("load", "--input", str(saved))
    printed = compose.engine("run", "--rm", "--workdir", "/usr", name, "leadview", "--version")
    assert printed == f"leadview {version_of(ROOT)}\n"
    assert compose.engine("image", "inspect", "--format", revision, name) == git("rev-parse", "HEAD")
    compose.engine("image", "rm", "--force", name)


def git(*words: str) -> str:
    return printed_by(("git", *words), directory=ROOT)


def test_image_with_an_extra_has_its_packages(compose: Compose) -> None:
    extra = ("--target", "build", "--build-arg", "EXTRA=msk")
    compose.engine("build", "--tag", "leadview:test-msk", *extra, str(ROOT))
    try:
        imported = ("/opt/leadview/bin/python", "-c", "import aws_msk_iam_sasl_signer, aiokafka")
        compose.engine("run", "--rm", "--network", "none", "leadview:test-msk", *imported)
    finally:
        compose.engine("image", "rm", "--force", "leadview:test-msk")


def test_the_size_is_what_the_guide_says(compose: Compose) -> None:
    limit = re.search(
        r"<!-- from make test-images -->\n.* at most (\d+) MB", (ROOT / "docs/production.md").read_text("utf-8")
    )
    assert limit
    images = compose.base_image, compose.services["api"]["image"]
    base, image = (orjson.loads(compose.engine("image", "inspect", name))[0]["Size"] for name in images)
    assert image - base <= int(limit[1]) * 1_000_000


def test_the_printed_commands_work_when_they_are_pasted(compose: Compose, curls: Curls) -> None:
    curls.lead()
    assert curls.statuses() == [200, 200, 404, 200]


def test_upgrade_replaces_only_the_programs_and_keeps_the_data(compose: Compose, curls: Curls) -> None:
    lead = curls.lead()
    before = {name: compose.container(name)["Id"] for name in STAYING}
    compose.engine("build", "--tag", "leadview:test-next", "-", standard_input="FROM leadview:test\nLABEL next=yes\n")
    compose.use_images("test-next")
    compose("--profile", "sample", "up", "--detach", "--no-build")
    replaced = {name for name in STAYING if compose.container(name)["Id"] != before[name]}
    assert replaced == {"api", "projector"}
    for name in replaced:
        wait_until_healthy(compose, name)
    assert curls.lead()["id"] == lead["id"]


def test_everything_ends_in_order_and_by_itself(compose: Compose) -> None:
    compose("--profile", "sample", "stop")
    states = {name: compose.container(name)["State"] for name in STAYING}
    codes = {name: state["ExitCode"] for name, state in states.items()}
    assert codes == dict.fromkeys(STAYING, 0) | {"kafka": 143}  # a JVM says that SIGTERM ended it
    ended = {name: datetime.fromisoformat(state["FinishedAt"]) for name, state in states.items()}
    assert ended["front"] <= ended["api"] <= ended["redis"]
    assert ended["projector"] <= min(ended["redis"], ended["kafka"])


def test_kept_volumes_serve_without_kafka_and_then_fill_up_again(compose: Compose, curls: Curls) -> None:
    compose("--profile", "sample", "down")
    compose("up", "--detach", "--no-build", "--no-deps", "redis", "api", "front")
    curls.lead()
    assert curls.statuses() == [200, 200, 404, 200]
    compose("up", "--detach", "--no-build")
    for name in ("kafka", "projector", "api", "front"):
        wait_until_healthy(compose, name)
    assert compose.container("topics")["State"]["ExitCode"] == 0
