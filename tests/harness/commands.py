"""The commands of operators in the process of a test, which saves the start of a Python."""

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any, NamedTuple, Self
from unittest.mock import patch

import orjson

from operate.main import main

_PLAIN = frozenset(
    ("dead-letters", "doctor", "drop", "promote", "rollback", "show", "status", "usage", "validate", "verify")
)


class Finished(NamedTuple):
    """A command that has ended. `text in finished` looks in both outputs."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def json(self) -> Any:
        """What it has printed with `--json`."""
        return orjson.loads(self.stdout)

    def __contains__(self, text: object) -> bool:
        return str(text) in self.output

    def ends(self, status: int, *said: str) -> Self:
        """Fails unless the command has ended with this status, and has said each of these texts. Returns it."""
        missing = [text for text in said if text not in self]
        assert (self.status, missing) == (status, []), self.output
        return self


def is_plain(words: Sequence[str]) -> bool:
    """Returns whether a command ends by itself, and leaves signals and priorities alone."""
    return _PLAIN.issuperset(words[:1]) and {"--continuous", "--watch"}.isdisjoint(words)


def call(*words: str, environment: Mapping[str, str], stdin: str = "") -> Finished:
    """Run `python -m projector <words>` in this process, without the start of a Python: for plain commands, and one at
    a time. They have an event loop of their own, in a thread, because a test may have one, too.
    """
    stdout, stderr = StringIO(), StringIO()
    loggers = [logging.root, logging.getLogger("aiokafka")]
    before = [(logger, logger.level, logger.handlers) for logger in loggers]
    logging.root.handlers = []  # a command closes those that it finds
    try:
        with (
            patch.dict(os.environ, environment, clear=True),
            patch("sys.stdin", TextIOWrapper(BytesIO(stdin.encode()))),
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            ThreadPoolExecutor(1) as thread,
        ):
            status = thread.submit(main, words).result()
    except SystemExit as ended:  # of argparse
        status = int(ended.code or 0)
    finally:
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers = handlers
    return Finished(status, stdout.getvalue(), stderr.getvalue())
