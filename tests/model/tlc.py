"""Runs TLC on the specifications in `docs/model`. Maven brings it (`devstack/jars.py`)."""

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from devstack.jars import TLC

MODELS = Path(__file__).parents[2] / "docs" / "model"
DEADLOCK = "deadlock"
"""What is violated if TLC finds a state in which nothing can happen although not all is well."""

_JVM_OPTIONS = ("-XX:+UseParallelGC", "-XX:-UsePerfData", "-Xmx3g")
_VIOLATED = re.compile(r"Error: (?:Invariant (\w+) is violated|(Deadlock) reached|(Temporal) properties were violated)")
_STATES = re.compile(r"([\d,]+) states generated.*? ([\d,]+) distinct states found")


class TlcFailed(RuntimeError):
    """TLC could not check the specification: it ends with neither "no error" nor a violation."""


class Outcome(NamedTuple):
    """What TLC found. `violated` is an invariant, a temporal property or `DEADLOCK`; None if there is no error."""

    violated: str | None
    states: int
    seconds: float
    output: str


def module_of(configuration: Path) -> str:
    """Returns the module that a configuration belongs to, which its first line names: `\\* control: ...`."""
    return configuration.read_text("utf-8").partition(":")[0].removeprefix("\\* ")


def check(configuration: Path, *, workers: int, off: Collection[str] = ()) -> Outcome:
    """Check a specification with a configuration of `docs/model`.

    `off` names rules to switch off. Raises JarsMissing, TlcFailed.
    """
    text = variant(configuration.read_text("utf-8"), off)
    with tempfile.TemporaryDirectory(prefix="leadview-tlc-") as scratch:
        chosen = Path(scratch) / configuration.name
        chosen.write_text(text, "utf-8")
        return _run(module_of(configuration), chosen, Path(scratch), workers)


def dump(configuration: Path, **constants: int) -> str:
    """Returns all states of a configuration of `docs/model`, and all steps with the names of their actions, in the
    language of Graphviz. `constants` have other values than in the file. Raises JarsMissing, TlcFailed.
    """
    text = configuration.read_text("utf-8")
    for name, value in constants.items():
        text = _replaced(text, name, str(value))
    with tempfile.TemporaryDirectory(prefix="leadview-tlc-") as scratch:
        graph, chosen = Path(scratch) / "states.dot", Path(scratch) / configuration.name
        chosen.write_text(text, "utf-8")
        _run(module_of(configuration), chosen, Path(scratch), 1, "-dump", "dot,actionlabels", str(graph))
        return graph.read_text("utf-8")


def reached(module: Path, lines: str, configuration: str) -> str:
    """Check a module beside `docs/model` with this module `lines` and this configuration. Returns what TLC has printed.
    Raises JarsMissing, TlcFailed.
    """
    with tempfile.TemporaryDirectory(prefix="leadview-tlc-") as scratch:
        chosen = Path(scratch) / f"{module.stem}.cfg"
        chosen.write_text(configuration, "utf-8")
        (Path(scratch) / "lines.tla").write_text(lines, "utf-8")
        for file in (module, *MODELS.glob("*.tla")):
            shutil.copy(file, scratch)
        return _run(module.stem, chosen, Path(scratch), 1, folder=Path(scratch)).output


def variant(text: str, off: Collection[str]) -> str:
    """Returns the text of a configuration in which these rules are off."""
    names = ", ".join(f'"{rule}"' for rule in sorted(off))
    return _replaced(text, "Off", f"{{{names}}}") if off else text


def _replaced(text: str, constant: str, value: str) -> str:
    text, replaced = re.subn(rf"^  {constant} = .*$", f"  {constant} = {value}", text, flags=re.MULTILINE)
    assert replaced == 1, f"the configuration has no line `{constant} = …`"
    return text


def _run(
    module: str, configuration: Path, scratch: Path, workers: int, *options: str, folder: Path = MODELS
) -> Outcome:
    jars = TLC.fetch()
    java = shutil.which("java") or "java"
    begun = time.monotonic()
    done = subprocess.run(
        [
            # Otherwise all runs of a machine have one copy of the standard modules, and each deletes it at its end.
            java, *_JVM_OPTIONS, f"-Djava.io.tmpdir={scratch}", "-cp", f"{jars}/*", "tlc2.TLC",
            "-workers", str(workers), "-nowarning", "-metadir", str(scratch / "states"), "-config", str(configuration),
            *options, f"{module}.tla",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return _outcome(done.stdout + done.stderr, time.monotonic() - begun)


def _outcome(output: str, seconds: float) -> Outcome:
    found = _VIOLATED.search(output)
    counts = _STATES.findall(output)
    states = int(counts[-1][1].replace(",", "")) if counts else 0
    if found is None and "No error has been found" not in output:
        raise TlcFailed(output[-4000:])
    violated = None
    if found:
        violated = found[1] or (DEADLOCK if found[2] else "Recovers")
    return Outcome(violated, states, seconds, output)
