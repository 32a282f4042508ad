"""`make versions`: the tests that depend on the version of Python, Redis or Kafka, on each that is here.

It names those that are not here. With `--expect FILE`, it fails if one of that file is not. `--redis PROGRAM` and
`--kafka VERSION` run the tests of one server alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from devstack.jars import KAFKA
from devstack.programs import ROOT
from devstack.redis_server import installed_redis, redis_program
from docs.generate.versions import VERSIONS, Version
from tests.harness.services import OLDEST_REDIS

OF_SERVERS = {
    "Redis": (
        "tests/service/test_lua_access.py",
        "tests/service/test_lua_checkpoint.py",
        "tests/service/test_lua_documents.py",
        "tests/service/test_api_serve_lua.py",
        "tests/service/test_redis_users.py",
        "tests/service/test_redis_sentinel.py",
    ),
    "Kafka": ("tests/service/test_source.py", "tests/service/test_topic_history.py"),
}
"""The tests about servers. The others do not depend on their versions."""


def main() -> int:
    """Returns the exit status: 1 if tests failed, or an expected version is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("--expect", type=Path, metavar="FILE", help="lines such as `Redis 6.2`")
    parser.add_argument("--redis", type=Path, metavar="PROGRAM", help="the path of a Redis or Valkey")
    parser.add_argument("--kafka", metavar="VERSION", help="such as 4.1.0")
    arguments = parser.parse_args()
    if arguments.redis:
        return _with_redis(arguments.redis)
    if arguments.kafka:
        return _with_kafka(arguments.kafka)
    wanted = arguments.expect.read_text().splitlines() if arguments.expect else []
    failed: list[str] = []
    missing: list[str] = []
    absent: list[str] = []
    for version in VERSIONS:
        started, status = time.monotonic(), _tested(version)
        if status is None:
            (missing if str(version) in wanted else absent).append(str(version))
        elif status:
            failed.append(str(version))
        else:
            print(f"{version}: passed, in {time.monotonic() - started:.0f} s", flush=True)
    print(f"Not here: {', '.join(absent) or 'none'}.")
    for problem, names in (("failed", failed), ("was here before, and is not any more", missing)):
        for name in names:
            print(f"{name} {problem}.", file=sys.stderr)
    return int(bool(failed or missing))


def _tested(version: Version) -> int | None:
    """Returns the status of the tests; None if this version is not here."""
    match version.program:
        case "Python":
            python = next(_pythons(version.number), None)
            venv = f"build/python{version.number}"
            return None if python is None else _call("make", "unit", f"PYTHON={python}", f"VENV={venv}")
        case "Kafka":
            # `make test` is about the version of devstack/apache-kafka.xml.
            return None if KAFKA.why_unavailable() or shutil.which("mvn") is None else _with_kafka(version.exact)
        case _:
            program = next((program for program in _servers() if _is(program, version)), None)
            return None if program is None else _with_redis(program)


def _pythons(number: str) -> Iterator[Path]:
    """Yields the Pythons of this version that can make environments: on PATH, in /usr/bin, and those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = shutil.which(f"python{number}")
    for python in (found, f"/usr/bin/python{number}", *root.glob(f"versions/{number}.*/bin/python{number}")):
        ask = [str(python), "-I", "-c", "import ensurepip"]
        if python and Path(python).exists() and subprocess.run(ask, capture_output=True, check=False).returncode == 0:
            yield Path(python)


def _servers() -> Iterator[Path]:
    yield from (Path(program) for program in (OLDEST_REDIS, redis_program(), installed_redis()) if program)


def _is(program: Path, version: Version) -> bool:
    if not program.is_file():
        return False
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return bool(re.match(rf"{version.program} server v={re.escape(version.number)}\.", told))


def _with_redis(program: Path) -> int:
    return _pytest(OF_SERVERS["Redis"], LEADVIEW_TEST_REDIS_SERVER=str(program.resolve()))


def _with_kafka(version: str) -> int:
    """Runs the tests with the jars of this version, which are taken for those of the repository's POM."""
    jars = ROOT / "build" / f"kafka-{version}"
    if not (jars / KAFKA.pom.name).exists():
        target = f"-DoutputDirectory={jars}"
        fetch = ["mvn", "-q", "-B", "-f", str(KAFKA.pom), f"-Dkafka.version={version}", "dependency:copy-dependencies"]
        subprocess.run([*fetch, target], check=True)
    shutil.copy(KAFKA.pom, jars)
    return _pytest(OF_SERVERS["Kafka"], LEADVIEW_TEST_KAFKA_CACHE=str(jars))


def _pytest(files: Sequence[str], **variables: str) -> int:
    words = ("-m", "not long", "--quiet", "--numprocesses", "3", "--dist", "loadfile")
    return _call(sys.executable, "-m", "pytest", *words, *files, **variables)


def _call(*command: str, **variables: str) -> int:
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
