"""A Redis that counts the instructions it executes, under Valgrind's tool callgrind.

Instructions do not depend on what else the machine does, so one short run is enough. They are not time: a copy of a
kilobyte takes few instructions, and a miss of the cache takes one.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from bench.benchmark import MeasurementFailed
from devstack.redis_server import RedisServer, redis_program

# Redis's regular tasks, and entries for calls that are only slow here, would be counted as well.
_QUIET = ("--hz", "1", "--dynamic-hz", "no", "--slowlog-log-slower-than", "-1")
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class Count:
    """What a block has counted: 0 until it has ended."""

    instructions = 0


class CountedRedis:
    """`server` runs about fifty times as slowly as usual while instructions are counted, and ten times otherwise."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    @classmethod
    def start(cls, directory: Path) -> Self:
        """Start a server. The caller stops it."""
        directory.mkdir()
        program = directory / "redis-server"
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory}/%p"]
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*callgrind, str(redis_program())])} "$@"\n')
        program.chmod(0o700)
        return cls(RedisServer.start(directory, options=_QUIET, program=program))

    @contextmanager
    def counting(self) -> Iterator[Count]:
        """Count all instructions from here to the end of the block."""
        count = Count()
        self._tell("instrumentation on")
        yield count
        self._tell("dump")
        self._tell("instrumentation off")
        dump = max(self.server.directory.glob(f"{self.server.pid}.*"), key=lambda path: int(path.suffix[1:]))
        found = _TOTALS.search(dump.read_text())
        if found is None:
            raise MeasurementFailed(f"callgrind has written no total into {dump.name}")
        count.instructions = int(found[1])

    def _tell(self, words: str) -> None:
        command = ["vgdb", f"--pid={self.server.pid}", *words.split()]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise MeasurementFailed(f"{shlex.join(command)}: {ended.stderr or ended.stdout}")


def is_installed() -> bool:
    """Returns whether Valgrind is installed."""
    return shutil.which("valgrind") is not None and shutil.which("vgdb") is not None
