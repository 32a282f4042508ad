"""What each command that deletes, replaces or declares something requires: the table in docs/how-it-works.md.

Of scripts, their headers say it (`-- Requires`). What both programs send without a script, and what they write into
Kafka, is listed here. A test looks for commands that are missing.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from schemas.scripts import Header

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("projector/redis/lua", "api/redis/lua")
READS = "nothing: it only reads"
_SENTENCE = re.compile(r"(.+?\.)(?: |$)")


class Plain(NamedTuple):
    """A command that is not a script: where it is sent, what it does, what it requires, and who checks that."""

    file: str
    verb: str
    does: str
    requires: str
    checked_by: str


PLAIN = (
    Plain(
        "projector/rebuild/generations.py",
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
        "projector/redis/store.py",
        "SADD",
        "Adds a job.",
        "nothing: a job that is not due does nothing",
        "the job",
    ),
    Plain(
        "projector/upkeep/jobs.py",
        "SET",
        "Takes the lock of a job (expires).",
        "nobody holds it (`NX`)",
        "Redis",
    ),
    Plain(
        "projector/kafka/accepted.py",
        "SET",
        "Takes the lock of the accepted bad records (expires).",
        "nobody holds it (`NX`)",
        "Redis",
    ),
    Plain(
        "projector/upkeep/dead_letters.py",
        "HSET",
        "Parks records of a recreated organization as dead letters.",
        "nothing: the name is the record's place in Kafka, and a letter that is there describes the same record",
        "identity",
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


def scripts() -> Iterator[tuple[Path, Header]]:
    """Yields each script, without the parts that scripts use, and its header."""
    for directory in SCRIPTS:
        for path in sorted((ROOT / directory).glob("*.lua")):
            header = Header.read(path.read_text("utf-8"))
            if header.keys or header.arguments:
                yield path, header


def table() -> str:
    """Returns the table in Markdown."""
    rows = ["| command | what it does | what it requires | who checks it |", "|---|---|---|---|"]
    for path, header in scripts():
        if header.requires != READS:
            does = _first_sentence(header.text)
            rows.append(f"| `{path.relative_to(ROOT)}` | {does} | {header.requires} | the script |")
    rows += [f"| `{it.verb}` in `{it.file}` | {it.does} | {it.requires} | {it.checked_by} |" for it in (*PLAIN, *KAFKA)]
    return "\n".join(rows)


def _first_sentence(header: str) -> str:
    found = _SENTENCE.match(" ".join(header.split()))
    return found[1] if found else header
