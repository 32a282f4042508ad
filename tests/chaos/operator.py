"""The operator: rebuilds, promotes, rolls back and drops repeatedly, while the nemesis is active."""

import re
import subprocess
from collections import Counter
from random import Random

from devstack.threads import Repeating
from tests.chaos.history import now
from tests.chaos.world import World

_COMMANDS = ("rebuild", "promote", "rollback", "rollback", "drop")
_KILLED_SHARE = 0.15


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
            if self._random.random() < _KILLED_SHARE:
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
