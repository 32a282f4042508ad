"""The arguments of `python -m projector`."""

import argparse
import re
from collections.abc import Sequence
from uuid import UUID

from projector.accepted.offset_range import FORMS, OffsetRange
from schemas.api_keys import PREFIX as KEY_PREFIX
from schemas.resources import AS_SPECIFIED, BY_NOUN, Resource

_TOPICS = [resource.topic for resource in AS_SPECIFIED]
_DEAD_LETTER_ACTIONS = {
    "list": "print a line for each",
    "show": "print each with its key and time",
    "redrive": "read the records from Kafka again and apply them in order (default: all)",
    "drop": "delete them, and never store those of accepted records again",
}
_MAX_NOTE = 200
_NO_KEY = (
    "expected the id of an API key or the SHA-256 of a key. Do not write a key itself on the command line, where "
    "others can read it: `show key -` reads it from standard input"
)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line, by default that of this process. Exits the process with code 2 if it is wrong."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.command == "rebuild" and entity(arguments) and not arguments.organization:
        flags = " and ".join(f"--{noun}" for noun in BY_NOUN)
        parser.error(f"{flags} need their --organization")
    if arguments.command == "show" and arguments.kind == "key" and len(arguments.key) > 1:
        parser.error("name one key")
    if _compares_everything(arguments) and (arguments.allow or arguments.sample < 1):
        parser.error("--sample and --allow only limit the comparison of all documents")
    if arguments.command == "dead-letters" and arguments.action == "accept":
        by_filter = arguments.topic is not None or arguments.reason is not None
        if bool(arguments.records) == by_filter:
            parser.error("name the records to accept, or choose dead letters with --topic or --reason or both")
    return arguments


def _compares_everything(arguments: argparse.Namespace) -> bool:
    return arguments.command == "verify" and bool(arguments.access or arguments.continuous)


def entity(arguments: argparse.Namespace) -> tuple[Resource, str] | None:
    """Returns the resource and the id of the entity that `rebuild` is to repair in place; None if none is named."""
    named = ((resource, getattr(arguments, resource.noun)) for resource in AS_SPECIFIED)
    return next(((resource, id_) for resource, id_ in named if id_), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m projector", description="Projects change events from Kafka into Redis. Settings: README."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("run", help="project change events into Redis, until SIGTERM")
    about = commands.add_parser(
        "status", help="print the lag of each partition, freshness, generations and dead letters"
    )
    about.add_argument("--json", action="store_true")
    _show(commands.add_parser("show", help="print a document and the events that wrote it, or why a key has no access"))
    _dead_letters(
        commands.add_parser("dead-letters", help="list, redrive, accept or drop records that could not be applied")
    )
    _rebuild(
        commands.add_parser("rebuild", help="fill the next generation from the topics while the live one is served")
    )
    _verify(commands.add_parser("verify", help="compare documents, or organizations and API keys, with the topics"))
    _promote(commands.add_parser("promote", help="verify the next generation, then serve it"))
    commands.add_parser("rollback", help="serve the former generation again")
    drop = commands.add_parser("drop", help="free the memory of a generation that is not live")
    drop.add_argument("generation", type=int, nargs="?", help="its number (default: the former one)")
    return parser


def _show(command: argparse.ArgumentParser) -> None:
    kinds = command.add_subparsers(dest="kind", required=True, metavar="kind")
    for noun in BY_NOUN:
        entity = kinds.add_parser(noun, help=f"the document of a {noun}, and the events that wrote it")
        entity.add_argument("organization", type=_uuid)
        entity.add_argument("id", type=_uuid)
        entity.add_argument("--json", action="store_true")
    organization = kinds.add_parser("organization", help="its API access, and why its keys would be refused")
    organization.add_argument("organization", type=_uuid)
    organization.add_argument("--json", action="store_true")
    key = kinds.add_parser("key", help="what a key may read, and why it would be refused; no key is ever printed")
    # A list, so that no further word, which may be a key, is quoted in a message of argparse.
    key.add_argument(
        "key",
        nargs="+",
        type=_key,
        metavar="id | hash | -",
        help="the id of the API key, the SHA-256 of the key in hex, or - to read the key from standard input",
    )
    key.add_argument("--json", action="store_true")


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
    what = command.add_mutually_exclusive_group()
    what.add_argument("--next", action="store_true", help="compare the next generation with the live one")
    what.add_argument("--access", action="store_true", help="compare organizations and API keys with the topics")
    what.add_argument(
        "--continuous",
        action="store_true",
        help="compare a few records after the other, all the time, with at most 1%% of a core, until SIGTERM",
    )
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


def _key(text: str) -> tuple[str, str]:
    """Returns the form (`id`, `hash` or `-`) and the text. No message quotes the text: it may be a key."""
    if text == "-":
        return "-", ""
    if re.fullmatch("[0-9a-fA-F]{64}", text):
        return "hash", text.lower()
    try:
        return "id", str(UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(_NO_KEY) from None


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        if text.startswith(KEY_PREFIX):
            raise argparse.ArgumentTypeError(_NO_KEY) from None
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
