"""What the commands of `python -m projector` take."""

import argparse
import re
from collections.abc import Sequence
from uuid import UUID

_LETTER_ACTIONS = {
    "list": "one line each",
    "show": "with key and time",
    "redrive": "read the records from Kafka again and apply them, in order; all where none is named",
    "drop": "forget them",
}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line, by default the process's own. Ends the process where it is wrong."""
    whole = _parser()
    arguments = whole.parse_args(words)
    if arguments.command == "rebuild" and (arguments.lead or arguments.contact) and not arguments.organization:
        whole.error("--lead and --contact are rebuilt in place, and need their --organization")
    return arguments


def _parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m projector", description="Projects change events from Kafka into Redis. Settings: README."
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("run", help="project change events into Redis, until SIGTERM")
    about = commands.add_parser("status", help="lag of each partition, freshness, generations, dead letters")
    about.add_argument("--json", action="store_true")
    entity = commands.add_parser("show", help="a document and the events that made it")
    entity.add_argument("kind", choices=["lead", "contact"])
    entity.add_argument("organization", type=_uuid)
    entity.add_argument("id", type=_uuid)
    entity.add_argument("--json", action="store_true")
    _dead_letters(commands.add_parser("dead-letters", help="records that could not be applied"))
    _rebuild(commands.add_parser("rebuild", help="fill the next generation from the topics, beside the live one"))
    _verify(commands.add_parser("verify", help="compare the live generation with the topics"))
    _promote(commands.add_parser("promote", help="verify the next generation, then serve it"))
    commands.add_parser("rollback", help="serve the former generation again")
    drop = commands.add_parser("drop", help="free the memory of a generation that is not live")
    drop.add_argument("generation", type=int, nargs="?", help="the former one where it is not named")
    return whole


def _dead_letters(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True)
    for action, text in _LETTER_ACTIONS.items():
        verb = actions.add_parser(action, help=text)
        verb.add_argument("letters", nargs="+" if action == "drop" else "*", metavar="topic:partition:offset")
        if action in ("list", "show"):
            verb.add_argument("--json", action="store_true")


def _rebuild(command: argparse.ArgumentParser) -> None:
    command.add_argument("--check", action="store_true", help="only look what it would cost")
    command.add_argument("--promote", action="store_true", help="verify and serve it when it is complete")
    command.add_argument("--max-latency", type=float, default=10.0, metavar="MS",
                         help="wait while the API waits longer than this for Redis (p99); 0 never yields")  # fmt: skip
    command.add_argument("--organization", type=_uuid, help="write one organization's documents again, in place")
    one = command.add_mutually_exclusive_group()
    one.add_argument("--lead", type=_uuid, help="only this lead of the organization")
    one.add_argument("--contact", type=_uuid, help="only this contact of the organization")
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
    command.add_argument("--force", action="store_true", help="go on in spite of what was found")


def _compared(command: argparse.ArgumentParser) -> None:
    command.add_argument("--sample", type=_share, default=1.0, help="share of the documents, such as 0.01; all: 1")
    command.add_argument("--allow", type=_field, action="append", default=[], metavar="KIND.FIELD",
                         help="a field that may differ, such as leads.quote_total; any number of times")  # fmt: skip
    command.add_argument("--threshold", type=int, default=0, metavar="COUNT", help="how many documents may differ (0)")


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no UUID") from None


def _field(text: str) -> str:
    if not re.fullmatch(r"(leads|contacts)\.[a-z_]+", text):
        raise argparse.ArgumentTypeError(f"{text!r}: write leads.FIELD or contacts.FIELD, such as leads.quote_total")
    return text


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError("a share lies above 0 and is 1 at most")
    return share
