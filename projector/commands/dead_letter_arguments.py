"""The arguments of `dead-letters`."""

import argparse

from projector.commands.words import text, uuid
from projector.offsets import FORMS, OffsetRange

_ACTIONS = {
    "list": "print a line for each",
    "show": "print each with its key and time",
    "redrive": "read the records from Kafka again and apply them in order (default: all)",
    "drop": "delete them, and never store those of accepted records again",
}
_MAX_NOTE = 200


def add(command: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = command.add_subparsers(dest="action", required=True)
    for action, about in _ACTIONS.items():
        verb = actions.add_parser(action, help=about)
        verb.add_argument(
            "dead_letters",
            nargs="*",
            metavar="topic:partition:offset",
            help="coordinates of a dead letter, or a range of them: topic:partition:first-last",
        )
        _filters(verb)
        if action == "drop":
            verb.add_argument("--all", action="store_true", help="all that are stored now")
        if action in ("list", "show"):
            verb.add_argument("--json", action="store_true")
    _accept(actions.add_parser("accept", help="let bad records no longer count against the limits that halt a line"))


def check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit with a message if it is not clear which dead letters are meant."""
    named = arguments.records if arguments.action == "accept" else arguments.dead_letters
    filtered = any(each is not None for each in (arguments.topic, arguments.organization, arguments.reason))
    ways = bool(named) + filtered + getattr(arguments, "all", False)
    if ways > 1:
        parser.error("name the dead letters, or choose them with --topic, --organization and --reason, not both")
    if ways == 0 and arguments.action in ("accept", "drop"):
        parser.error(
            f"name the records to {arguments.action}, or choose dead letters with --topic, --organization, --reason "
            "or --all"
        )


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
    _filters(command)
    command.add_argument("--all", action="store_true", help="all dead letters that are stored now")
    command.add_argument(
        "--note",
        type=_note,
        required=True,
        metavar="TEXT",
        help=f"why they are accepted, in at most {_MAX_NOTE} characters; `list` and `show` print it",
    )


def _filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--topic", help="those of this topic that are stored now")
    command.add_argument("--organization", type=uuid, help="those whose message key begins with this organization")
    command.add_argument("--reason", type=text, metavar="TEXT", help="those whose reason contains this text")


def _offset_range(word: str) -> OffsetRange:
    try:
        return OffsetRange.parse(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r}: write {FORMS}, such as crm.leads:0:120-420") from None


def _note(words: str) -> str:
    note = " ".join(text(words).split())
    if len(note) > _MAX_NOTE:
        raise argparse.ArgumentTypeError(f"a note may have at most {_MAX_NOTE} characters, this one has {len(note)}")
    return note
