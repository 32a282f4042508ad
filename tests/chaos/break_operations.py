"""Faults of those who operate Leadview. Each begins on entry and ends on exit."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import psutil

from devstack.child import Child
from tests.chaos.stopping import ANY
from tests.chaos.world import RECOVER_SECONDS, World
from tests.harness import next_mapping
from tests.harness.waiting import wait_until

_FIELD = "leads.referrer_length"
_COMMANDS = ("drop", "drop", "drop", "rebuild", "promote --force", "rollback", "verify", "redrive", "accept")
_KILLED_SHARE = 0.25
_MOMENTS = ((ANY, 50), (ANY, 50), ("EVALSHA", 20), ("SCAN", 4), ("UNLINK", 2), ("DEL", 1))
"""Before which request a command stands still: its name, and the highest number of it."""


@contextmanager
def rolled_back(world: World, _: Random) -> Iterator[None]:
    """A program with the next mapping runs beside the present one, its generation is promoted, then all goes back."""
    with world.operating:
        world.drop_all()
        deployed = world.new_projector("projector-next", next_mapping.PROGRAM)
        world.succeed("rebuild", "--promote", "--allow", _FIELD, program=next_mapping.PROGRAM)
        yield
        world.command("rollback")  # fails if Redis was emptied meanwhile, and filled by the newer program
        world.drop_all()
        # As docs/upgrading.md describes it: the second time, only the present program writes the new generation.
        for stopping in (deployed.stop, world.drop_all):
            world.succeed("rebuild", "--promote", "--force")
            world.drop_all()
            stopping()


@contextmanager
def dropped_asleep(world: World, random: Random) -> Iterator[None]:
    """A generation is dropped while a projector stands still in the middle of its batch, which then continues."""
    with world.operating:
        world.drop_all()
        world.succeed("rebuild", "--promote", "--force")
        with world.asleep(world.projectors[random.choice([*world.projectors])]):
            world.succeed("drop")
            world.wrong += world.unexplained_keys()
            yield


@contextmanager
def command_suspended(world: World, random: Random) -> Iterator[None]:
    """An operator's command stands still between two of its requests, while others go on; then it continues, or dies.

    Whatever happened meanwhile, it must end, with a message, and must not harm what is there by then.
    """
    chosen = random.choice(_COMMANDS)
    others = {"accept": world.accepting, "redrive": ("dead-letters", "redrive")}
    words = others.get(chosen, tuple(chosen.split()))
    if chosen in ("drop", "rollback"):
        with world.operating:  # so that there is something to drop, or to return to
            world.command("rebuild")
            world.command("promote", "--force")
    request, most = random.choice(_MOMENTS)
    program = (sys.executable, "-m", "tests.chaos.stopping", request, str(random.randint(1, most)))
    child = world.start_command(*words, program=program)
    wait_until(lambda: _stands_still(child), f"{chosen} stands still or has ended", RECOVER_SECONDS)
    world.suspended += child.running
    yield
    if random.random() < _KILLED_SHARE:
        child.kill()
        return
    if child.running:
        child.resume()
    try:
        child.wait(RECOVER_SECONDS)
    except subprocess.TimeoutExpired:
        world.wrong.append(f"{chosen}, which stood still, does not end: {child.failure('runs')}")
        child.kill()
    if b"Traceback" in child.log.read_bytes():
        world.wrong.append(f"{chosen}, which stood still, ended with a traceback: {child.failure('ended')}")


def _stands_still(child: Child) -> bool:
    return not child.running or psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
