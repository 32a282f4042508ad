"""What each command that deletes, replaces or declares something requires: the table in docs/how-it-works.md.

Of scripts, their headers say it (`-- Requires`). What both programs send without a script, and what they write into
Kafka, is listed here. A test looks for commands that are missing.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.generate import tables

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("projector/redis/lua", "api/redis/lua")
READS = "nothing: it only reads"
_REQUIRES = re.compile(r"^-- Requires  (.+(?:\n-- {3,}.+)*)", re.MULTILINE)
_NAMES = re.compile(r"^-- (?:KEYS|ARGV)  ", re.MULTILINE)


class Plain(NamedTuple):
    """A command that is not a script: where it is sent, and what it requires."""

    file: str
    verb: str
    requires: str


PLAIN = (
    Plain("projector/ledger/acts.py", "XADD", "nothing: an entry replaces none"),
    Plain(
        "projector/ledger/sweep.py",
        "UNLINK",
        "a generation in `dropping`, whose identity is in the names; the fence of the session of each batch",
    ),
    Plain("projector/ledger/writers.py", "HDEL", "the program's own heartbeat, whose name is random"),
    Plain(
        "projector/upkeep/jobs.py",
        "SREM",
        "a job that its organization does not have due any more; the member names the event of the job; a fence",
    ),
    Plain("projector/upkeep/passes.py", "HSET", "the locks of the jobs of the pass"),
    Plain("projector/upkeep/passes.py", "HDEL", "the locks of the jobs of the pass"),
    Plain("projector/upkeep/comparison.py", "SET", "the lock of the comparison"),
    Plain("projector/upkeep/comparison.py", "DEL", "the lock of the comparison"),
    Plain("projector/redis/store.py", "PERSIST", "nothing: the key never expires"),
    Plain("projector/redis/store.py", "SADD", "nothing: a job that is not due does nothing"),
    Plain("projector/upkeep/dead_letters.py", "HSET", "a name that is the record's place in Kafka"),
    Plain("projector/ledger/late_versions.py", "HDEL", "a comparison with the topics that has found no difference"),
    Plain("api/metrics.py", "HSET", "the worker's own field"),
    Plain("api/metrics.py", "EXPIRE", "nothing: latencies are measured again every half second"),
)

KAFKA = (
    Plain("projector/kafka/reader.py", "commit", "nothing: no program resumes from these offsets"),
    Plain("projector/kafka/accepted.py", "commit", "a lock, which lasts longer than the change may take"),
)


class Script(NamedTuple):
    """A script, with what it requires: empty if its header does not say it."""

    path: Path
    requires: str


def scripts() -> Iterator[Script]:
    """Yields each script, without the parts that scripts use: only scripts name keys or arguments."""
    for directory in SCRIPTS:
        for path in sorted((ROOT / directory).glob("*.lua")):
            text = path.read_text("utf-8")
            if _NAMES.search(text):
                required = _REQUIRES.search(text)
                yield Script(path, _plain(required[1]) if required else "")


def table() -> str:
    """Returns a table in Markdown with a row for each requirement, and a sentence that names what requires nothing."""
    required = [(f"`{path.relative_to(ROOT)}`", requires) for path, requires in scripts() if requires != READS]
    required += [(f"`{plain.verb}` in `{plain.file}`", plain.requires) for plain in (*PLAIN, *KAFKA)]
    free, rows = list[str](), dict[str, list[str]]()
    for command, requires in required:
        (free if requires.startswith("nothing") else rows.setdefault(requires, [])).append(command)
    listed = tables.table(
        ("command", "what it requires"), [(", ".join(commands), requires) for requires, commands in rows.items()]
    )
    return f"{listed}\n\nNothing is required of {', '.join(free)}."


def _plain(comment: str) -> str:
    """Returns what lines of a comment in Lua say, as one line."""
    return " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
