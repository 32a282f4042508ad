"""`python -m bench [names…] [--quick] [--into <directory>]` runs benchmarks, prints tables, and writes the results
and the figures in the README and in `docs`."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import (
    api,
    cold_start,
    documents,
    fan_out,
    freshness,
    growth,
    interpreter,
    memory,
    outcome,
    pages,
    projector,
    rebuild,
    redis_work,
    rounds,
    waiting,
)
from bench.benchmark import Benchmark, Lab, MeasurementFailed
from devstack.child import ServerFailed

_MODULES = (api, memory, projector, redis_work, freshness, rebuild, cold_start, fan_out, documents, waiting, growth)
_BENCHMARKS = {module.BENCHMARK.name: module.BENCHMARK for module in _MODULES}
_DIRECTORY = Path(__file__).parent
_QUICK_DIRECTORY = _DIRECTORY.parent / "build" / "bench"


def main() -> int:
    """Returns the exit status: 1 if a benchmark could not be run. A missed target is a result, not a failure."""
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    failed = False
    for name in arguments.names or _BENCHMARKS:
        try:
            _run(_BENCHMARKS[name], arguments, console)
        except (MeasurementFailed, ServerFailed, TimeoutError) as error:
            console.print(f"[red]{name} failed[/red]: {error}", markup=True)
            failed = True
    return int(failed)


def _run(benchmark: Benchmark, arguments: argparse.Namespace, console: Console) -> None:
    with TemporaryDirectory(prefix="leadview-bench-") as directory, console.status("") as status:
        lab = Lab(Path(directory), arguments.quick)
        found = rounds.run(benchmark, lab, status.update)
    pages.show(found, console)
    path = arguments.into / "results.json"
    results = outcome.read(path)
    results.benchmarks[found.name] = found
    outcome.write(path, results)
    if arguments.into == _DIRECTORY:
        pages.write(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measures Leadview beside its peers and limits.")
    names = ", ".join(_BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of: {names}; without names, all run")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each; the figures mean little")
    parser.add_argument("--into", type=Path, help="directory of results.json (default: bench; if quick: build/bench)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in _BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are: {names})")
    if not arguments.quick and (reason := interpreter.why_not()):
        parser.error(f"{reason}. Its figures would be too low: run `make bench`, which looks for another one.")
    arguments.into = arguments.into or (_QUICK_DIRECTORY if arguments.quick else _DIRECTORY)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
