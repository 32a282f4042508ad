"""Programs that tests run until they end: any, and `promtool`, which evaluates alert rules over series. And programs
that stand still.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import orjson

from devstack.child import Child
from devstack.redis_server import RedisServer
from tests.harness.services import not_available
from tests.harness.waiting import PATIENCE_SECONDS

_MOST_SECONDS = 15 * PATIENCE_SECONDS


def installed(program: str, package: str) -> str:
    """Returns where a program is, which is in this package of Debian. Without it, the test is skipped, or it fails."""
    path = shutil.which(program)
    if path is None:
        not_available(f"{program} is not installed: on Debian it is in the package {package}")
    return path


def printed_by(
    command: Sequence[str | Path],
    *,
    status: int = 0,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = _MOST_SECONDS,
) -> str:
    """Run a program, and return its standard output. By default, its directory and its variables are those of this
    process. The test fails with all that it printed if it ends with another status. Raises subprocess.TimeoutExpired.
    """
    ended = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == status, f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@contextmanager
def asleep(*sleepers: Child | RedisServer) -> Iterator[None]:
    """Let these processes stand still until the block ends, and then resume with all that they believed."""
    for process in sleepers:
        process.pause()
    try:
        yield
    finally:
        for process in sleepers:
            process.resume()


Value = float | Literal["gone"]
Expected = tuple[int, str, Sequence[Mapping[str, str]]]
"""Minutes, an expression, and the labels of what it finds then. Each value is 1."""


def named(series: str, labels: Mapping[str, str]) -> str:
    return series[:-1] + "".join(f', {label}="{value}"' for label, value in labels.items()) + "}"


def evaluate(
    folder: Path,
    rules: Path,
    interval: str,
    series: Mapping[str, Sequence[Value]],
    expected: Sequence[Expected],
) -> None:
    """Evaluates expressions over series that the rules see."""
    test = {
        "interval": interval,
        "input_series": [{"series": name, "values": written(values)} for name, values in series.items()],
        "promql_expr_test": [
            {
                "eval_time": f"{minute}m",
                "expr": expression,
                "exp_samples": [{"labels": named("{}", labels).replace("{, ", "{"), "value": 1} for labels in found],
            }
            for minute, expression, found in expected
        ],
    }
    path = folder / "test.yaml"
    path.write_bytes(orjson.dumps({"rule_files": [str(rules)], "evaluation_interval": interval, "tests": [test]}))
    promtool("test", "rules", path)


def promtool(*words: str | Path) -> None:
    """Runs `promtool`, which does not object."""
    printed_by([installed("promtool", "prometheus"), *words])


def written(values: Sequence[Value]) -> str:
    """A series that has gone is `stale` once, as after a scrape that failed, and then nothing."""
    words = ["_" if value == "gone" else str(value) for value in values]
    return " ".join(
        "stale" if word == "_" and number and words[number - 1] != "_" else word for number, word in enumerate(words)
    )
