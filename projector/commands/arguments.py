"""The arguments of `python -m projector`."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from projector.accepted.offset_range import FORMS, OffsetRange
from schemas.resources import AS_SPECIFIED, BY_NOUN, Resource
from schemas.version import VERSION

_TOPICS = [resource.topic for resource in AS_SPECIFIED]
_DEAD_LETTER_ACTIONS = {
    "list": "print a line for each",
    "show": "print each with its key and time",
    "redrive": "read the records from Kafka again and apply them in order (default: all)",
    "drop": "delete them, and never store those of accepted records again",
}
_MAX_NOTE = 200
NO_OTHERS: Mapping[str, str] = MappingProxyType({})


def parse(
    words: Sequence[str] | None = None, program: str = "python -m projector", others: Mapping[str, str] = NO_OTHERS
) -> argparse.Namespace:
    """Parse a command line, by default that of this process. Exits the process with code 2 if it is wrong."""
    parser = parser_of(program, others)
    arguments = parser.parse_args(words)
    if arguments.command == "rebuild" and entity(arguments) and not arguments.organization:
        flags = " and ".join(f"--{noun}" for noun in BY_NOUN)
        parser.error(f"{flags} need their --organization")
    if arguments.command == "dead-letters" and arguments.action == "accept":
        by_filter = arguments.topic is not None or arguments.reason is not None
        if bool(arguments.records) == by_filter:
            parser.error("name the records to accept, or choose dead letters with --topic or --reason or both")
    return arguments


def entity(arguments: argparse.Namespace) -> tuple[Resource, str] | None:
    """Returns the resource and the id of the entity that `rebuild` is to repair in place; None if none is named."""
    named = ((resource, getattr(arguments, resource.noun)) for resource in AS_SPECIFIED)
    return next(((resource, id_) for resource, id_ in named if id_), None)


def parser_of(program: str, others: Mapping[str, str] = NO_OTHERS) -> argparse.ArgumentParser:
    """Returns the parser of all commands. `program` is how its user calls it.

    `others` are further commands of that program, each with its help. They are listed, and parsed elsewhere.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description="Projects change events from Kafka into Redis. All settings are environment variables: the README "
        "lists them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("run", help="project change events into Redis, until SIGTERM")
    about = commands.add_parser(
        "status", help="say whether all is well and what is not: projectors, lag, freshness, generations, dead letters"
    )
    about.add_argument("--json", action="store_true", help="print JSON, with --watch one document per line")
    about.add_argument("--watch", action="store_true", help="keep it on the screen until Ctrl-C")
    doctor = commands.add_parser("doctor", help="check what must be there before a start: Redis, Kafka, rights, topics")
    doctor.add_argument("--api", action="store_true", help="check the rights of the API's user, in its environment")
    doctor.add_argument(
        "--bundle", type=Path, metavar="FILE", help="also write a ZIP file for a ticket, without secrets and payload"
    )
    entity = commands.add_parser("show", help="print a document and the events that wrote it")
    entity.add_argument("kind", choices=list(BY_NOUN))
    entity.add_argument("organization", type=_uuid)
    entity.add_argument("id", type=_uuid)
    entity.add_argument("--json", action="store_true")
    _dead_letters(
        commands.add_parser("dead-letters", help="list, redrive, accept or drop records that could not be applied")
    )
    _rebuild(
        commands.add_parser("rebuild", help="fill the next generation from the topics while the live one is served")
    )
    _verify(commands.add_parser("verify", help="compare the live generation with the topics"))
    _promote(commands.add_parser("promote", help="verify the next generation, then serve it"))
    commands.add_parser("rollback", help="serve the former generation again")
    drop = commands.add_parser("drop", help="free the memory of a generation that is not live")
    drop.add_argument("generation", type=int, nargs="?", help="its number (default: the former one)")
    for name, text in others.items():
        commands.add_parser(name, help=text)
    _add_version(parser)
    return parser


def _add_version(parser: argparse.ArgumentParser) -> None:
    """Add `--version` to a parser and to all of its commands."""
    parser.add_argument("--version", action="version", version=f"leadview {VERSION}", help="print the version")
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list the commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _add_version(command)


def _dead_letters(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True)
    for action, text in _DEAD_LETTER_ACTIONS.items():
        verb = actions.add_parser(action, help=text)
        verb.add_argument(
            "dead_letters",
            nargs="+" if action == "drop" else "*",
            metavar="topic:partition:offset",
            help="coordinates of a dead letter, or a range of them: topic:partition:first-last",
        )
        if action in ("list", "show"):
            verb.add_argument("--json", action="store_true")
    _accept(actions.add_parser("accept", help="let bad records no longer count against the limits that halt a line"))


def _accept(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Accepts known bad records. They remain dead letters, but they no longer count against the limits that halt a "
        "line: not in the projector, not after Redis was emptied, and not in a rebuild. A line that they have halted "
        "resumes by itself."
    )
    command.add_argument(
        "records",
        nargs="*",
        type=_offset_range,
        metavar="topic:partition:offset",
        help="coordinates of a record, or a range of them: topic:partition:first-last. The records need not be stored "
        "as dead letters yet",
    )
    command.add_argument("--topic", help="accept the dead letters of this topic that are stored now")
    command.add_argument(
        "--reason", type=_text, metavar="TEXT", help="accept the dead letters whose reason contains this text"
    )
    command.add_argument(
        "--note",
        type=_note,
        required=True,
        metavar="TEXT",
        help=f"why they are accepted, in at most {_MAX_NOTE} characters; `list` and `show` print it",
    )


def _rebuild(command: argparse.ArgumentParser) -> None:
    command.add_argument("--check", action="store_true", help="only report what it would cost and what prevents it")
    command.add_argument("--promote", action="store_true", help="verify and serve it as soon as it is complete")
    command.add_argument(
        "--max-latency",
        type=float,
        default=10.0,
        metavar="MS",
        help="pause while the API responds more slowly than this (p99, default: 10); with 0 the replay never yields",
    )
    command.add_argument("--organization", type=_uuid, help="write the documents of one organization again, in place")
    one = command.add_mutually_exclusive_group()
    for noun in BY_NOUN:
        one.add_argument(f"--{noun}", type=_uuid, help=f"only this {noun} of the organization")
    _forced(command)
    _compared(command)


def _verify(command: argparse.ArgumentParser) -> None:
    command.add_argument("--next", action="store_true", help="compare the next generation with the live one")
    command.add_argument("--json", action="store_true")
    _compared(command)


def _promote(command: argparse.ArgumentParser) -> None:
    _forced(command)
    _compared(command)


def _forced(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="continue in spite of problems or differences")


def _compared(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--sample", type=_share, default=1.0, help="share of the documents to compare, such as 0.01 (default: 1, all)"
    )
    command.add_argument("--allow", type=_field, action="append", default=[], metavar="KIND.FIELD",
                         help="a field that may differ, such as leads.quote_total; may be repeated")  # fmt: skip
    command.add_argument(
        "--threshold", type=int, default=0, metavar="COUNT", help="how many documents may differ (default: 0)"
    )


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID") from None


def _offset_range(text: str) -> OffsetRange:
    try:
        return OffsetRange.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write {FORMS}, such as crm.leads:0:120-420") from None


def _text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the text must not be empty")
    return text


def _note(text: str) -> str:
    note = " ".join(_text(text).split())
    if len(note) > _MAX_NOTE:
        raise argparse.ArgumentTypeError(f"a note may have at most {_MAX_NOTE} characters, this one has {len(note)}")
    return note


def _field(text: str) -> str:
    topic, _, field = text.partition(".")
    if topic not in _TOPICS or not re.fullmatch("[a-z_]+", field):
        forms = " or ".join(f"{topic}.FIELD" for topic in _TOPICS)
        raise argparse.ArgumentTypeError(f"{text!r}: write {forms}, such as leads.quote_total")
    return text


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError("a share must be above 0 and at most 1")
    return share
