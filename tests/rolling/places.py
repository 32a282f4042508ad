"""An address for each part: that of a network namespace of its own, or one of loopback where namespaces are forbidden.

    this program ── bridge 10.213.0.1 ─┬─ kafka-1 10.213.0.11
                                       ├─ kafka-2 10.213.0.12
                                       └─ …

This program runs in a namespace, too, which has the bridge: nothing is left on the machine when it ends.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from devstack.child import Child
from devstack.ports import Place
from tests.harness.waiting import wait_until

INSIDE = "--inside-namespace"
NETWORK = "10.213.0.0/24"
_BRIDGE = "lv-bridge"
_FIRST = 11
# The user namespace permits what follows to users other than root, too, if the machine permits it at all.
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--")
_TRIAL = ("ip", "link", "add", _BRIDGE, "type", "bridge")


def enter_namespace(arguments: Sequence[str]) -> None:
    """Start this program again inside a network namespace, with `INSIDE`. Returns only if that is not possible."""
    installed = all(shutil.which(program) for program in ("unshare", "nsenter", "ip"))
    if installed and subprocess.run([*_UNSHARE, *_TRIAL], capture_output=True, check=False).returncode == 0:
        command = [*_UNSHARE, sys.executable, "-m", "tests.rolling", INSIDE, *arguments]
        os.execvp(command[0], command)  # noqa: S606 - there is nothing that a shell would do


class Places:
    """Hands out a place for each part: with `inside`, which means that `enter_namespace` succeeded, a namespace."""

    def __init__(self, stack: ExitStack, directory: Path, *, inside: bool) -> None:
        self._stack = stack
        self._log = directory / "namespaces.log"
        self._inside = inside
        self._next = _FIRST
        if inside:
            _run("ip", "link", "set", "lo", "up")
            _run(*_TRIAL)
            _run("ip", "address", "add", "10.213.0.1/24", "dev", _BRIDGE)
            _run("ip", "link", "set", _BRIDGE, "up")

    @property
    def description(self) -> str:
        """Says where the parts that have a place by now run."""
        where = "in a network namespace of its own, at 10.213.0" if self._inside else "on loopback, at 127.0.0"
        return f"each part runs {where}.{_FIRST} to .{self._next - 1}"

    def take(self) -> Place:
        number, self._next = self._next, self._next + 1
        return self._namespace(number) if self._inside else Place(f"127.0.0.{number}")

    def several(self, count: int) -> list[Place]:
        return [self.take() for _ in range(count)]

    def _namespace(self, number: int) -> Place:
        """Returns a new namespace. It exists as long as the process that was started in it."""
        holder = Child(["unshare", "--net", "--", "sleep", "infinity"], log=self._log)
        self._stack.callback(holder.kill)
        path, own = Path(f"/proc/{holder.pid}/ns/net"), Path("/proc/self/ns/net")
        wait_until(lambda: holder.running and path.readlink() != own.readlink(), "the namespace exists")
        place = Place(f"10.213.0.{number}", ("nsenter", f"--net={path}", "--"))
        cable = f"lv-{number}"
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", cable, "master", _BRIDGE, "up")
        _run(*place.prefix, "ip", "link", "set", "lo", "up")
        _run(*place.prefix, "ip", "address", "add", f"{place.host}/24", "dev", "eth0")
        _run(*place.prefix, "ip", "link", "set", "eth0", "up")
        return place


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
