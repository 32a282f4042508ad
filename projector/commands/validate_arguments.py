"""The arguments of `validate`."""

import argparse

from schemas.resources import KINDS


def add(command: argparse.ArgumentParser) -> None:
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


def check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit the process with code 2 if the arguments do not fit together."""
    if arguments.topic is not None and arguments.files:
        parser.error("name files or a --topic, not both")
    if arguments.topic is None and arguments.first is not None:
        parser.error("--from needs a --topic")
