"""`python -m tests.fuzz [names] [--seconds N] [--seed S]`: see `tests/fuzz/__init__.py`. Exit status 1 on a finding."""

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

BORDERS = ("kafka", "events", "http")

Fuzz = Callable[[int, float], str]
"""Takes a seed and a time in seconds. Returns a line of the report. Raises AssertionError on a finding."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the borders of Leadview.")
    parser.add_argument("names", nargs="*", choices=[*BORDERS, []], help="borders to fuzz (default: all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all of them together (default: 60)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="repeats a run")
    arguments = parser.parse_args(words)
    names = arguments.names or BORDERS
    print(f"seed {arguments.seed}", flush=True)
    status = 0
    for name in names:
        fuzz: Fuzz = import_module(f"tests.fuzz.{name}").fuzz
        try:
            report = fuzz(arguments.seed, arguments.seconds / len(names))
        except Exception:  # noqa: BLE001 - an error of the fuzzer is to be looked at as well
            report, status = f"FOUND with --seed {arguments.seed}\n{traceback.format_exc()}", 1
        print(f"{name}: {report}", flush=True)
    return status


if __name__ == "__main__":
    logging.disable()  # what the programs say about each bad record
    sys.exit(main(sys.argv[1:]))
