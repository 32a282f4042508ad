"""`validate`: feeds a producer's records to the decoder of the projector, and says why it would refuse them. With
`--render` it prints the documents that readers would get.

Neither Redis nor Kafka is needed, except to read a topic: then no group is joined, and nothing is committed.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from projector.commands.record_lines import Lines, NotARecord
from projector.errors import BadRecord, Refused, Unavailable
from projector.interpret import interpret
from projector.kafka.batches import Headers
from projector.kafka.reader import open_reader
from projector.record import Record
from projector.reference import Reference
from projector.unknown_fields import unknown_fields, unknown_headers
from schemas import words
from schemas.faults import Fault
from schemas.resources import BY_TOPIC, KINDS
from schemas.settings import ProjectorSettings

Place = Mapping[str, str | int]
"""Where a record is: its file and line, or its topic, partition and offset."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments to the parser of the command."""
    command.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="lines of JSON objects with key, headers and value, or of a key, a tab and a value; - (the default) is "
        "standard input",
    )
    command.add_argument(
        "--strict", action="store_true", help="also refuse unknown fields, and a file or topic without any record"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--render",
        action="store_true",
        help="print the document that readers would get of each good record, one JSON object a line; a lead with its "
        "contact if that is among the records. What is wrong is printed to standard error",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--kind",
        choices=[kind.noun for kind in KINDS],
        help="what the records are about (default: what the type of each event says)",
    )
    source.add_argument("--topic", help="check the records that this topic of Kafka has now, instead of files")
    command.add_argument(
        "--from",
        dest="first",
        type=int,
        metavar="OFFSET",
        help="with --topic: the first offset in each partition; -100 is a hundred before the end",
    )


def check_arguments(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit the process with code 2 if the arguments do not fit together."""
    if arguments.topic is not None and arguments.files:
        parser.error("name files or a --topic, not both")
    if arguments.topic is None and arguments.first is not None:
        parser.error("--from needs a --topic")


class Report:
    """What was found. Without `json`, each fault is printed when it is found; with `render`, to standard error, because
    the documents are the output.
    """

    def __init__(self, *, strict: bool, json: bool, render: bool) -> None:
        self._strict = strict
        self._json = json
        self._render = render
        self._output = sys.stderr if render else sys.stdout
        self._good: list[Record] = []
        self._contacts = Reference()
        self._faults: list[dict[str, object]] = []
        self.records = 0
        self._bad = 0
        self.good = True
        """Whether there was no fault."""

    def add(self, place: Place, record: Record, headers: Headers = ()) -> None:
        """Judge a record. `headers` are all that it has: those that are not read are not in the record."""
        faults = _faults(record)
        if self._strict:
            faults += [*unknown_headers(name for name, _ in headers), *unknown_fields(record)]
        self.judged(place, faults)
        if self._render and not faults:
            self._good.append(record)
            self._contacts.add(record)

    def judged(self, place: Place, faults: Sequence[Fault]) -> None:
        """Count a record, and print what is wrong with it."""
        self.records += 1
        self._bad += bool(faults)
        for fault in faults:
            self._add(place, fault)

    def _add(self, place: Place, fault: Fault) -> None:
        self.good = False
        if self._json:
            found = {"path": fault.path, "expected": fault.expected, "allowed": fault.allowed}
            self._faults.append({**place, **found, "reason": words.fault(fault)})
        else:
            self._output.write(f"{':'.join(map(str, place.values()))}: {words.fault(fault)}\n")

    def empty(self, place: Place) -> None:
        """Note that a file or a topic has no record. With `strict` that is a fault: whoever checks it expects some."""
        if self._strict:
            self._add(place, Fault("no_record", "line", "a record in each line"))

    def end(self) -> None:
        """Print the documents, then how many records were judged, or everything as JSON."""
        # A contact may come after its leads, so this is the first moment at which all documents are known.
        for record in self._good:
            if document := self._contacts.document_of(record):
                sys.stdout.write(document.decode() + "\n")
        if self._json:
            found = {"records": self.records, "bad": self._bad, "faults": self._faults}
            self._output.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
        else:
            verdict = f"{self._bad:,} bad" if self._bad else "all good" if self.records else "nothing to check"
            self._output.write(f"{self.records:,} record{'' if self.records == 1 else 's'}: {verdict}\n")


def _faults(record: Record) -> list[Fault]:
    try:
        interpret(record)
    except BadRecord as error:
        return [error.fault]
    return []


async def run_validate(arguments: argparse.Namespace, settings: ProjectorSettings) -> int:
    """`validate`: returns 0 if all records are good, 1 if some are bad, and 2 if they cannot be read.

    With `--strict`, a file or a topic without any record counts as bad.
    """
    report = Report(strict=arguments.strict, json=arguments.json, render=arguments.render)
    try:
        if arguments.topic is None:
            kind = next((kind for kind in KINDS if kind.noun == arguments.kind), None)
            _read_files(arguments.files or ["-"], Lines(settings, kind), report)
        else:
            async for place, record in _of_topic(settings, arguments.topic, arguments.first):
                report.add(place, record)
            if not report.records:
                report.empty({"topic": arguments.topic})
    except OSError as error:
        sys.stderr.write(f"{error.filename} cannot be read: {error.strerror}\n")
        return 2
    except (Refused, Unavailable) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    report.end()
    return 0 if report.good else 1


def _read_files(names: Sequence[str], lines: Lines, report: Report) -> None:
    """Raises OSError if a file cannot be read."""
    for name in names:
        before = report.records
        for number, line in _lines(name):
            place: Place = {"file": name, "line": number}
            try:
                record, headers = lines.record(line)
            except NotARecord as error:
                report.judged(place, [error.fault])
            else:
                report.add(place, record, headers)
        if report.records == before:
            report.empty({"file": name})


def _lines(name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not empty, with their numbers."""
    with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip(b"\r\n")


async def _of_topic(settings: ProjectorSettings, topic: str, first: int | None) -> AsyncIterator[tuple[Place, Record]]:
    """Yields the records that a topic has now. `first` is an offset; if it is negative, it counts from the end.

    Raises Refused and Unavailable.
    """
    kind = BY_TOPIC.get(topic.removeprefix(settings.topic_prefix))
    if kind is None or not topic.startswith(settings.topic_prefix):
        topics = ", ".join(f"{settings.topic_prefix}{kind.topic}" for kind in KINDS)
        raise Refused(f"{topic} is not a topic that Leadview reads: name one of {topics}")
    async with open_reader(settings, [kind]) as reader:
        ranges = await reader.range(await reader.existing_partitions())
        if first is not None:
            ranges = {at: (max(begin, end + first if first < 0 else first), end) for at, (begin, end) in ranges.items()}
        async for records in reader.read(ranges):
            for record in records:
                yield {"topic": topic, "partition": record.partition, "offset": record.offset}, record
