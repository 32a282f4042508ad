"""`python -m bench [names…] [--quick] [--into <directory>]` runs benchmarks, prints tables, and writes the results, the
charts, and the figures in the README and in `docs/capacity.md`."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import chart, pages, results, rounds, table
from bench.benchmark import Benchmark, MeasurementFailed
from bench.catalogue import BENCHMARKS
from bench.lab import Lab
from devstack.child import ServerFailed

_DIRECTORY = Path(__file__).parent
_QUICK_DIRECTORY = _DIRECTORY.parent / "build" / "bench"


def main() -> int:
    """Returns the exit status: 1 if a benchmark could not be run. A missed target is a result, not a failure."""
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    failed = False
    for benchmark in arguments.benchmarks:
        try:
            _run(benchmark, arguments, console)
        except (MeasurementFailed, ServerFailed, TimeoutError) as error:
            console.print(f"[red]{benchmark.name} failed[/red]: {error}", markup=True)
            failed = True
    return int(failed)


def _run(benchmark: Benchmark, arguments: argparse.Namespace, console: Console) -> None:
    with TemporaryDirectory(prefix="leadview-bench-") as directory, console.status("") as status:
        lab = Lab(Path(directory), arguments.quick)
        outcome = rounds.run(benchmark, lab, status.update)
    table.show(outcome, console)
    path = arguments.into / "results.json"
    all_results = results.read(path)
    all_results.benchmarks[outcome.name] = outcome
    results.write(path, all_results)
    chart.write(arguments.into / "charts", outcome)
    if arguments.into == _DIRECTORY:
        pages.write(all_results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measures Leadview beside its peers and limits.")
    names = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of: {', '.join(names)}; without names, all run")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each; the figures mean little")
    parser.add_argument(
        "--into", type=Path, help="directory of results.json and charts (default: bench; if quick: build/bench)"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in names]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are: {', '.join(names)})")
    arguments.benchmarks = [names[name] for name in arguments.names or names]
    arguments.into = arguments.into or (_QUICK_DIRECTORY if arguments.quick else _DIRECTORY)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
