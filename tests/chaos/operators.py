"""Those who operate Leadview: one who rebuilds, promotes, rolls back and drops repeatedly, while the nemesis is active;
and their faults, each of which begins on entry and ends on exit.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import psutil

from devstack.child import Child
from devstack.threads import Repeating
from tests.chaos.history import now
from tests.chaos.stopping import ANY
from tests.chaos.world import RECOVER_SECONDS, World
from tests.harness.projectors import NEXT_MAPPING
from tests.harness.waiting import wait_until

_FIELD = "leads.referrer_length"
_OTHERS = ("drop", "rebuild", "promote --force", "rollback", "verify", "redrive", "accept")
_KILLED_SHARE = 0.2
_FIRST = (ANY, 1)
_MOMENTS = ((ANY, 40), ("EVALSHA", 12))
_MOMENTS_OF_A_DROP = (*_MOMENTS, ("SCAN", 4), ("UNLINK", 2))
"""Before which request a command stands still: its name, and the highest number of it."""
_COMMANDS = ("rebuild", "promote", "rollback", "rollback", "drop")
_BEFORE_SHARE = 0.15
"""Of its commands, the share before which the same command is begun and killed."""


class Operator(Repeating):
    """Runs until `stop`. `done` counts what succeeded; `wrong` says what was refused although there was no fault."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__()
        self._world = world
        self._random = Random(seed)
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def _work(self) -> None:
        for command in _COMMANDS:
            if self._ended.wait(self._random.uniform(0.0, 1.0)):
                return
            if self._random.random() < _BEFORE_SHARE:
                with self._world.operating:
                    self._kill(command)
            with self._world.operating:
                self._run(command)
        with self._world.operating:
            self._world.accept_bad_records()

    def _run(self, command: str) -> None:
        began_at = now()
        try:
            done = self._world.command(*command.split())
        except subprocess.TimeoutExpired:
            return  # because of a fault: every command can be run again
        if done.status == 0:
            self.done[command.partition(" ")[0]] += 1
        elif generations := re.findall(r"`(drop \d+)`", done.stderr):
            self._run(self._random.choice(generations))
        elif " differ" in done.stdout and self._world.history.healthy(began_at, now()):
            self.wrong.append(f"{command}: {done.stdout}{done.stderr[-1000:]}")

    def _kill(self, command: str) -> None:
        child = self._world.start_command(command)
        self._ended.wait(self._random.uniform(0.5, 3.0))
        child.kill()
        self.done[f"{command} killed"] += 1


@contextmanager
def rolled_back(world: World, _: Random) -> Iterator[None]:
    """A program with the next mapping runs beside the present one, its generation is promoted, then all goes back."""
    with world.operating:
        world.drop_all()
        deployed = world.new_projector("projector-next", NEXT_MAPPING)
        world.succeed("rebuild", "--promote", "--allow", _FIELD, program=NEXT_MAPPING)
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
    """Three operators' commands stand still between two requests, while others go on; then they continue or die.

    Whatever happened meanwhile, they must end, with a message, and must not harm what is there by then.
    """
    with world.operating:  # so that there is something to drop, and something to return to
        world.drop_all()
        world.succeed("rebuild", "--promote", "--force")
        chosen = ("drop", *random.sample(_OTHERS, 2))
        children = [_suspended(world, random, each, _FIRST if each is chosen[-1] else None) for each in chosen]
        for child in children:
            wait_until(lambda child=child: _stands_still(child), "it stands still or has ended", RECOVER_SECONDS)  # type: ignore[misc]
    stand_still = sum(child.running for child in children)
    world.suspended += stand_still
    if not stand_still:
        world.wrong.append(
            f"no command stood still, not even before its first request: {children[-1].failure('ended')}"
        )
    yield
    for child in children:
        if random.random() < _KILLED_SHARE:
            child.kill()
        elif child.running:
            child.resume()
    for child in children:
        try:
            child.wait(RECOVER_SECONDS)
        except subprocess.TimeoutExpired:
            world.wrong.append(f"a command that stood still does not end: {child.failure('runs')}")
            child.kill()
        if b"Traceback" in child.log.read_bytes():
            world.wrong.append(f"a command that stood still ended with a traceback: {child.failure('ended')}")


def _suspended(world: World, random: Random, chosen: str, moment: tuple[str, int] | None) -> Child:
    """Start a command that will stand still, at any moment or at this one."""
    request, most = moment or random.choice(_MOMENTS_OF_A_DROP if chosen == "drop" else _MOMENTS)
    words = {"accept": world.accepting, "redrive": ("dead-letters", "redrive")}.get(chosen, tuple(chosen.split()))
    program = (sys.executable, "-m", "tests.chaos.stopping", request, str(random.randint(1, most)))
    return world.start_command(*words, program=program)


def _stands_still(child: Child) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(child.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return True
