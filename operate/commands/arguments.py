"""The arguments of `python -m projector`."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from operate.commands import dead_letters, show, usage, validate
from operate.commands.argument_types import key_is_read, metrics_port, milliseconds, port, processes, url, uuid
from operate.commands.operator import acting
from schemas.resources import AS_SPECIFIED, BY_NOUN, Resource
from schemas.version import VERSION
from schemas.words import as_called

_TOPICS = [resource.topic for resource in AS_SPECIFIED]
NO_OTHERS: Mapping[str, str] = MappingProxyType({})
_CHECKS = {
    "dead-letters": dead_letters.check_arguments,
    "show": show.check_arguments,
    "validate": validate.check_arguments,
}


def parse(words: Sequence[str] | None = None, others: Mapping[str, str] = NO_OTHERS) -> argparse.Namespace:
    """Parse a command line, by default that of this process. Exits the process with code 2 if it is wrong."""
    parser = parser_of(as_called(), others)
    arguments = parser.parse_args(words)
    if arguments.command == "rebuild" and entity(arguments) and not arguments.organization:
        flags = " and ".join(f"--{noun}" for noun in BY_NOUN)
        parser.error(f"{flags} need their --organization")
    if arguments.command == "rebuild" and arguments.accept_cluster and (arguments.check or arguments.organization):
        parser.error("--accept-cluster begins a whole rebuild: leave out --check and --organization")
    if arguments.command == "doctor" and arguments.key and not arguments.url:
        parser.error("--key needs a --url")
    everything = arguments.command == "verify" and (arguments.access or arguments.continuous)
    if everything and arguments.allow:
        parser.error("--allow only limits the comparison of all documents")
    if check := _CHECKS.get(arguments.command):
        check(arguments, parser)
    return arguments


def entity(arguments: argparse.Namespace) -> tuple[Resource, str] | None:
    """Returns the resource and the id of the entity that `rebuild` is to repair in place; None if none is named."""
    named = ((resource, getattr(arguments, resource.noun)) for resource in AS_SPECIFIED)
    return next(((resource, id_) for resource, id_ in named if id_), None)


def parser_of(program: str, others: Mapping[str, str] = NO_OTHERS) -> argparse.ArgumentParser:
    """Returns the parser of all commands. `program` is how its user calls it.

    `others` are further commands of that program, each with its help. They are listed, and parsed elsewhere.
    """
    parser = _Parser(
        prog=program,
        description="Projects change events from Kafka into Redis. All settings are environment variables: "
        "docs/settings.md lists them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    run = commands.add_parser("run", help="project change events into Redis, until SIGTERM")
    run.add_argument(
        "--processes",
        type=processes,
        default=1,
        metavar="N",
        help="number of projectors to run, one for each core that they may use (default: 1)",
    )
    about = commands.add_parser(
        "status", help="say whether all is well and what is not: projectors, lag, freshness, generations, dead letters"
    )
    about.add_argument("--json", action="store_true", help="print JSON, with --watch one document per line")
    _api_metrics(about, "also to judge whether the API serves")
    way = about.add_mutually_exclusive_group()
    way.add_argument("--watch", action="store_true", help="keep it on the screen until Ctrl-C")
    way.add_argument("--history", action="store_true", help="say who did what instead: the acts of operators")
    _doctor(commands.add_parser("doctor", help="check what must be there before a start: Redis, Kafka, rights, topics"))
    show.add_arguments(
        commands.add_parser("show", help="print a document and the events that wrote it, or why a key has no access")
    )
    dead_letters.add_arguments(
        commands.add_parser("dead-letters", help="list, redrive, accept or drop records that could not be applied")
    )
    _rebuild(
        commands.add_parser("rebuild", help="fill the next generation from the topics while the live one is served")
    )
    _verify(commands.add_parser("verify", help="compare documents, or organizations and API keys, with the topics"))
    validate.add_arguments(commands.add_parser("validate", help="check a producer's records, without Kafka or Redis"))
    _promote(commands.add_parser("promote", help="verify the next generation, then serve it"))
    _console(commands.add_parser("console", help="serve a page that shows the service at work, until SIGTERM"))
    usage.add_arguments(
        commands.add_parser("usage", help="print how often each key of an organization was used, and when last")
    )
    acting(commands.add_parser("rollback", help="serve the former generation again"))
    drop = commands.add_parser("drop", help="free the memory of a generation that is not live")
    drop.add_argument("generation", type=int, nargs="?", help="its number (default: the former one)")
    acting(drop)
    for name, text in others.items():
        commands.add_parser(name, help=text)
    return parser


def _doctor(doctor: argparse.ArgumentParser) -> None:
    what = doctor.add_mutually_exclusive_group()
    what.add_argument("--api", action="store_true", help="check the rights of the API's user, in its environment")
    what.add_argument(
        "--url",
        type=url,
        metavar="URL",
        help="check instead, with requests to this address, what the gateway in front of the API does: https://…",
    )
    doctor.add_argument(
        "--key", type=key_is_read, metavar="-", help="with --url: read an API key from standard input, to see more"
    )
    doctor.add_argument(
        "--bundle", type=Path, metavar="FILE", help="also write a ZIP file for a ticket, without secrets and payload"
    )


class _Parser(argparse.ArgumentParser):
    """The program and each of its commands print the version."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.add_argument("--version", action="version", version=f"leadview {VERSION}", help="print the version")


def _console(command: argparse.ArgumentParser) -> None:
    command.add_argument("--port", type=port, default=8001, help="port of the page (default: 8001)")
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1); others need --token-file"
    )
    command.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with a line <name>:<token> for each person who may look"
    )
    _api_metrics(command, "for its figures, and to judge whether it serves")
    command.add_argument(
        "--show-documents", action="store_true", help="let the page show documents, which are personal"
    )


def _api_metrics(command: argparse.ArgumentParser, why: str) -> None:
    command.add_argument(
        "--api-metrics",
        type=metrics_port,
        action="append",
        default=[],
        metavar="URL",
        help=f"metrics port of the API, such as http://127.0.0.1:9100, {why}; may be repeated",
    )


def _rebuild(command: argparse.ArgumentParser) -> None:
    acting(command)
    command.add_argument("--check", action="store_true", help="only report what it would cost and what prevents it")
    command.add_argument("--promote", action="store_true", help="verify and serve it as soon as it is complete")
    command.add_argument(
        "--max-latency",
        type=milliseconds,
        default=10.0,
        metavar="MS",
        help="pause while the API responds more slowly than this (p99, default: 10); with 0 the replay never yields",
    )
    command.add_argument(
        "--accept-cluster",
        metavar="ID",
        help="first let the Kafka cluster with this id replace the one whose records were applied",
    )
    command.add_argument("--organization", type=uuid, help="write the documents of one organization again, in place")
    one = command.add_mutually_exclusive_group()
    for noun in BY_NOUN:
        one.add_argument(f"--{noun}", type=uuid, help=f"only this {noun} of the organization")
    _forced(command)
    _compared(command)


def _verify(command: argparse.ArgumentParser) -> None:
    what = command.add_mutually_exclusive_group()
    what.add_argument("--next", action="store_true", help="compare the next generation with the live one")
    what.add_argument("--access", action="store_true", help="compare organizations and API keys with the topics")
    what.add_argument(
        "--continuous",
        action="store_true",
        help="compare everything again and again, a few records at a time, with at most 1%% of a core, until SIGTERM",
    )
    command.add_argument("--json", action="store_true")
    _compared(command)


def _promote(command: argparse.ArgumentParser) -> None:
    acting(command)
    _forced(command)
    _compared(command)


def _forced(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="continue in spite of problems or differences")


def _compared(command: argparse.ArgumentParser) -> None:
    command.add_argument("--allow", type=_field, action="append", default=[], metavar="KIND.FIELD",
                         help="a field that may differ, such as leads.quote_total; may be repeated")  # fmt: skip
    command.add_argument(
        "--threshold", type=int, default=0, metavar="COUNT", help="how many documents may differ (default: 0)"
    )


def _field(text: str) -> str:
    topic, _, field = text.partition(".")
    if topic not in _TOPICS or not re.fullmatch("[a-z_]+", field):
        forms = " or ".join(f"{topic}.FIELD" for topic in _TOPICS)
        raise argparse.ArgumentTypeError(f"{text!r}: write {forms}, such as leads.quote_total")
    return text
