"""`python -m tests.mutants`: whether the tests notice small changes of the modules that carry promises.

Each change of a sample is made in a copy of this checkout, and the tests that are about its module are run there. A
change that no test notices is a promise without a guard, or `equivalent.txt` says why no quick test notices it. The
sample depends on the seed: a change of the program leaves most of it as it is.
"""

import argparse
import hashlib
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest

from tests.mutants.areas import AREAS, Area
from tests.mutants.changes import Change, changes

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
ENOUGH = 0.95
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not long", "-W", "ignore::pytest.PytestAssertRewriteWarning")
_LIBRARIES = (
    "aiokafka",
    "anyio.pytest_plugin",
    "confluent_kafka.admin",
    "hypothesis",
    "prometheus_client",
    "psutil",
    "redis.asyncio",
    "starlette.applications",
    "uvicorn",
    "xdist.plugin",
)
"""They are imported once, and not again for each mutant: that takes longer than most tests."""
_PATIENCE_SECONDS = "30"
"""How long a test waits for something that never happens, because of the change."""
_LEAST_SECONDS, _TIMES = 60.0, 3
"""The tests of a mutant may take as many times as long as they take without a change, and at least so long."""


_OUTCOMES = ("killed", "too long", "survived", "equivalent")
Score = Counter[str]
"""How many changes of an area had each outcome. The tests notice one by a failure, or because they take too long."""


def main() -> int:
    """Returns 0 if enough changes were noticed, 1 if not, and 2 if that cannot be said."""
    chosen = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    areas = [area for area in AREAS if not chosen.areas or any(f" {word}" in f" {area.name}" for word in chosen.areas)]
    samples = {area: _sample(area, chosen.seed, chosen.number or area.number, chosen.id) for area in areas}
    if chosen.list:
        for change in (change for sample in samples.values() for change in sample):
            print(_described(change))
        return 0
    for library in _LIBRARIES:
        importlib.import_module(library)
    known = _equivalent()
    scores = {area.name: Score() for area in areas}
    with TemporaryDirectory(prefix="leadview-mutants-") as directory:
        tree = Path(directory)
        _copy(tree)
        try:
            for area in areas:
                if samples[area]:
                    _test_all(area, samples[area], known, tree, scores[area.name])
        except (KeyboardInterrupt, _Red) as error:
            print(str(error) or "interrupted")
            _print(scores)
            return 2
    return _print(scores)


def _sample(area: Area, seed: int, number: int, ids: Sequence[str]) -> list[Change]:
    """Returns changes of an area in an order that only the seed decides; at most one of each line."""
    found = [
        change
        for pattern in area.paths
        for path in sorted(ROOT.glob(pattern))
        for change in changes(str(path.relative_to(ROOT)), path.read_bytes())
    ]
    if ids:
        return [change for change in found if change.id in ids]
    found.sort(key=lambda change: hashlib.sha256(f"{seed} {change.id}".encode()).digest())
    of_lines: dict[tuple[str, int], Change] = {}
    for change in found:
        of_lines.setdefault((change.path, change.line), change)
    return list(of_lines.values())[:number]


def _test_all(area: Area, sample: Sequence[Change], known: Collection[str], tree: Path, score: Score) -> None:
    """Run the tests of an area with each change that is not `known`. Raises _Red if they fail without any."""
    started = time.monotonic()
    red, output = _run(area, tree, None)
    if red is not False:
        raise _Red(f"the tests of {area.name} fail without a change:\n{output}")
    usual = time.monotonic() - started
    print(f"{area.name}: {len(sample)} changes; the tests take {usual:.0f} s without one", flush=True)
    for change in sample:
        if change.id in known:
            score["equivalent"] += 1
            continue
        with _changed(tree, change):
            red, output = _run(area, tree, max(_LEAST_SECONDS, _TIMES * usual))
        outcome = {True: "killed", None: "too long", False: "survived"}[red]
        score[outcome] += 1
        told = {"killed": f"killed by {_first_failure(output)}", "survived": "SURVIVED"}.get(outcome, outcome)
        print(f"{_described(change)}\n    {told}", flush=True)


@contextmanager
def _changed(tree: Path, change: Change) -> Iterator[None]:
    file = tree / change.path
    before = file.read_bytes()
    _write(file, change.apply(before))
    try:
        yield
    finally:
        _write(file, before)


def _write(file: Path, content: bytes) -> None:
    """Python takes compiled code for current if its time, in seconds, and its size are those of the source."""
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    file.write_bytes(content)


def _run(area: Area, tree: Path, seconds: float | None) -> tuple[bool | None, str]:
    """Returns whether a test failed, None if they took longer, and what pytest printed."""
    red, output = None, ""
    for files in area.stages:
        red, output = _run_together(files, area.chosen, tree, seconds)
        if red is not False:
            break
    return red, output


def _run_together(files: list[str], chosen: str, tree: Path, seconds: float | None) -> tuple[bool | None, str]:
    output = tree / "pytest.txt"
    arguments = [*_OPTIONS, *(("-k", chosen) if chosen else ()), *files]
    process = multiprocessing.get_context("fork").Process(target=_test, args=(arguments, tree, output))
    process.start()
    try:
        process.join(seconds)
        return (process.exitcode != 0 if process.exitcode is not None else None), output.read_text()
    finally:
        with suppress(ProcessLookupError):  # and what it has started
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def _test(arguments: list[str], tree: Path, output: Path) -> NoReturn:
    """Run pytest in the copy. Libraries are imported already; everything of this checkout is not."""
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "LEADVIEW_TEST_PATIENCE": _PATIENCE_SECONDS}
    sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    status = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(status)


def _first_failure(output: str) -> str:
    found = (line.split(" ")[1] for line in output.splitlines() if line.startswith(("FAILED tests", "ERROR tests")))
    return next(found, "an error")


def _copy(tree: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def _equivalent() -> dict[str, str]:
    """Returns why a change makes no difference, by the change's id."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def _described(change: Change) -> str:
    return f"{change.id} {change.path}:{change.line} {change.place}\n  - {change.old}\n  + {change.new}"


def _print(scores: dict[str, Score]) -> int:
    whole: Score = sum(scores.values(), Counter())
    print("\n" + " " * 32 + "".join(f"{outcome:>12}" for outcome in _OUTCOMES) + f"{'score':>8}")
    for name, score in [*scores.items(), ("all", whole)]:
        print(f"{name:32}" + "".join(f"{score[outcome]:12}" for outcome in _OUTCOMES) + f"{_share(score):8.0%}")
    return 0 if _share(whole) >= ENOUGH else 1


def _share(score: Score) -> float:
    noticed = score["killed"] + score["too long"]
    return noticed / (noticed + score["survived"]) if noticed + score["survived"] else 1.0


class _Red(Exception):
    """Tests fail without a change."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("areas", nargs="*", help="words in the names of areas (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="changes of each area, instead of its own number")
    parser.add_argument("--id", nargs="+", default=[], help="only these changes")
    parser.add_argument("--list", action="store_true", help="print the sample, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
