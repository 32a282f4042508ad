"""What each command that deletes, replaces or declares something requires: the table in docs/how-it-works.md.

Of scripts, their headers say it (`-- Requires`). What both programs send without a script, and what they write into
Kafka, is listed here. A test looks for commands that are missing.
"""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from docs.generate import tables

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("projector/redis/lua", "api/redis/lua")
READS = "nothing: it only reads"
_SENTENCE = re.compile(r"(.+?\.)(?: |$)")
_REQUIRES = re.compile(r"^-- Requires  (.+(?:\n-- {3,}.+)*)", re.MULTILINE)
_NAMES = re.compile(r"^-- (?:KEYS|ARGV)  ", re.MULTILINE)


class Plain(NamedTuple):
    """A command that is not a script: where it is sent, what it does, what it requires, and who checks that."""

    file: str
    verb: str
    does: str
    requires: str
    checked_by: str


PLAIN = (
    Plain(
        "projector/ledger/history.py",
        "XADD",
        "Adds an act of an operator to the history, and deletes the oldest one if there are more than 1000.",
        "nothing: an entry replaces none, and the oldest ones are not needed for anything",
        "none needed",
    ),
    Plain(
        "projector/ledger/sweep.py",
        "UNLINK",
        "Deletes the keys of a generation that is being dropped.",
        "the generation is in `dropping`. A name holds the identity of its generation, which is never used again",
        "fence (a session for each batch), identity",
    ),
    Plain(
        "projector/ledger/writers.py",
        "HDEL",
        "Deletes the heartbeat of a program that ends.",
        "it is the program's own: its name is random",
        "identity",
    ),
    Plain(
        "projector/upkeep/jobs.py",
        "SREM",
        "Declares a job done.",
        "its organization does not have it due any more. A member names the event of the job",
        "fence, identity",
    ),
    Plain(
        "projector/upkeep/passes.py",
        "HSET",
        "Stores how far a pass over the keys has come that looks for those of deleted organizations.",
        "the locks of its jobs. Whoever continues it has the same deletions, and the same run of the server",
        "identity",
    ),
    Plain(
        "projector/upkeep/passes.py",
        "HDEL",
        "Deletes that, when the pass has ended.",
        "the locks of its jobs. If it is missing, a pass begins at the first key",
        "none needed",
    ),
    Plain(
        "projector/upkeep/comparison.py",
        "SET",
        "Stores which parts of the organizations are still to be compared with the topics.",
        "the lock of the comparison. If two projectors compare at once, parts are compared twice",
        "none needed",
    ),
    Plain(
        "projector/upkeep/comparison.py",
        "DEL",
        "Deletes that, when the breaks are confirmed.",
        "the lock of the comparison. If it is missing, a comparison begins with all parts",
        "none needed",
    ),
    Plain(
        "projector/redis/store.py",
        "PERSIST",
        "Asks whether Redis accepts writes.",
        "nothing: a copy of the control record never expires, so that nothing changes",
        "none needed",
    ),
    Plain(
        "projector/redis/store.py",
        "SADD",
        "Adds a job.",
        "nothing: a job that is not due does nothing",
        "the job",
    ),
    Plain(
        "projector/upkeep/dead_letters.py",
        "HSET",
        "Parks records of a recreated organization as dead letters.",
        "nothing: the name is the record's place in Kafka, and a letter that is there describes the same record",
        "identity",
    ),
    Plain(
        "projector/ledger/late_versions.py",
        "HDEL",
        "Ends the count of late versions that are not named.",
        "nothing: a comparison with the topics has found no difference",
        "-",
    ),
    Plain(
        "api/metrics.py",
        "HSET",
        "Stores the latency that a worker of the API has measured.",
        "it is the worker's own: host and process",
        "identity",
    ),
    Plain(
        "api/metrics.py",
        "EXPIRE",
        "Lets the latencies expire if no worker measures any more.",
        "nothing: they are measured again every half second",
        "-",
    ),
)

KAFKA = (
    Plain(
        "projector/kafka/reader.py",
        "commit",
        "Commits offsets to Kafka.",
        "nothing: they are for lag tools, and nothing resumes from them",
        "-",
    ),
    Plain(
        "projector/kafka/accepted.py",
        "commit",
        "Replaces which bad records are accepted.",
        "the lock of the accepted bad records; the change ends before the lock expires",
        "lock, deadline",
    ),
)


class Script(NamedTuple):
    """A script, with what its header says."""

    path: Path
    does: str
    requires: str
    """Empty if the header does not say it."""


def scripts() -> Iterator[Script]:
    """Yields each script, without the parts that scripts use: only scripts name keys or arguments."""
    for directory in SCRIPTS:
        for path in sorted((ROOT / directory).glob("*.lua")):
            text = path.read_text("utf-8")
            if _NAMES.search(text):
                required = _REQUIRES.search(text)
                yield Script(path, _first_sentence(text), _plain(required[1]) if required else "")


def table() -> str:
    """Returns the table in Markdown."""
    rows = [
        (f"`{path.relative_to(ROOT)}`", does, requires, "the script")
        for path, does, requires in scripts()
        if requires != READS
    ]
    rows += [(f"`{it.verb}` in `{it.file}`", it.does, it.requires, it.checked_by) for it in (*PLAIN, *KAFKA)]
    return tables.table(("command", "what it does", "what it requires", "who checks it"), rows)


def _plain(comment: str) -> str:
    """Returns what lines of a comment in Lua say, as one line."""
    return " ".join(line.removeprefix("--").strip() for line in comment.splitlines())


def _first_sentence(text: str) -> str:
    comment = "\n".join(takewhile(lambda line: line.startswith("--"), text.splitlines()))
    found = _SENTENCE.match(_plain(comment))
    return found[1] if found else _plain(comment)
