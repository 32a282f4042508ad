"""`results.json`: the outcome of the latest run of each benchmark."""

from pathlib import Path

import msgspec
from msgspec import Struct, field

from bench.outcome import Outcome


class Results(Struct):
    benchmarks: dict[str, Outcome] = field(default_factory=dict)


def read(path: Path) -> Results:
    """Read results; they are empty if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.is_file() else Results()


def write(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
