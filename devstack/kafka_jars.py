"""The jars of Apache Kafka. Maven fetches them once into a cache directory.

The cache is `~/.cache/leadview/kafka-<version>` or `LEADVIEW_TEST_KAFKA_CACHE`. It contains a copy of the POM
that it was made from. If the POM in the repository differs, the jars are fetched again.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

POM = Path(__file__).with_name("apache-kafka.xml")
OLDEST_JAVA = 17
_FETCH_TIMEOUT_SECONDS = 300
_JAVA_TIMEOUT_SECONDS = 30


class KafkaJarsMissing(RuntimeError):
    """Java is missing, or the jars are missing and cannot be fetched."""


def cache_directory() -> Path:
    """Returns the directory in which the jars are or will be."""
    chosen = os.environ.get("LEADVIEW_TEST_KAFKA_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "leadview" / f"kafka-{_version()}"


def why_unavailable() -> str | None:
    """Returns why this machine cannot run Apache Kafka; None if it can. Fetches nothing."""
    java = shutil.which("java")
    if java is None or _java_version(java) < OLDEST_JAVA:
        return f"Apache Kafka needs Java {OLDEST_JAVA} or newer on PATH"
    if not _is_complete(cache_directory()) and shutil.which("mvn") is None:
        return "Apache Kafka's jars are fetched with Maven, and mvn is not on PATH"
    return None


def kafka_jars() -> Path:
    """Returns the directory of the jars. Fetches them if necessary. Raises KafkaJarsMissing."""
    reason = why_unavailable()
    if reason is not None:
        raise KafkaJarsMissing(reason)
    cache = cache_directory()
    if not _is_complete(cache):
        _fetch(cache)
    return cache


def _version() -> str:
    found = re.search(r"<kafka\.version>(.+?)</kafka\.version>", POM.read_text())
    if found is None:
        raise KafkaJarsMissing(f"{POM} does not contain kafka.version")
    return found[1]


def _java_version(java: str) -> int:
    answer = subprocess.run(  # java -version prints to standard error
        [java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_TIMEOUT_SECONDS
    )
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else 0


def _is_complete(cache: Path) -> bool:
    copy = cache / POM.name
    return copy.is_file() and copy.read_bytes() == POM.read_bytes()


def _fetch(cache: Path) -> None:
    """Fill a directory next to `cache` and rename it, so that no other process sees an incomplete cache."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=cache.parent) as scratch:
        jars = Path(scratch) / "jars"
        _copy_dependencies(jars)
        shutil.copyfile(POM, jars / POM.name)
        shutil.rmtree(cache, ignore_errors=True)
        try:
            jars.rename(cache)
        except OSError:
            if not _is_complete(cache):  # otherwise another process was first
                raise


def _copy_dependencies(jars: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_SECONDS,
            cwd=jars.parent,
        )
    except subprocess.CalledProcessError as error:
        raise KafkaJarsMissing(f"Maven could not fetch Apache Kafka: {error.stdout[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise KafkaJarsMissing(f"Maven took more than {_FETCH_TIMEOUT_SECONDS} s") from error
