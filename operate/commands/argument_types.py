"""The types of words on the command line. Each raises argparse.ArgumentTypeError, with a message for the operator. And
the one word that is never on it: a key.
"""

import argparse
import getpass
import re
import sys
from collections.abc import Callable
from math import inf
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

from schemas.api_keys import PREFIX as KEY_PREFIX

_MAX_INPUT = 4096
_NO_KEY = (
    "expected the id of an API key or the SHA-256 of a key. Do not write a key itself on the command line, where "
    "others can read it: `show key -` reads it from standard input"
)
_NO_ADDRESS = "write the address that clients are given, such as https://api.example.com"


def uuid(word: str) -> str:
    """Returns a UUID in lower case."""
    try:
        return str(UUID(word))
    except ValueError:
        if word.startswith(KEY_PREFIX):
            raise argparse.ArgumentTypeError(_NO_KEY) from None
        raise argparse.ArgumentTypeError(f"{word!r} is not a UUID") from None


def key(word: str) -> tuple[str, str]:
    """Returns the form (`id`, `hash` or `-`) and the word. No message quotes the word: it may be a key."""
    if word == "-":
        return "-", ""
    if re.fullmatch("[0-9a-fA-F]{64}", word):
        return "hash", word.lower()
    try:
        return "id", str(UUID(word))
    except ValueError:
        raise argparse.ArgumentTypeError(_NO_KEY) from None


def metrics_port(word: str) -> str:
    """Returns the address of a metrics port, without a slash at its end."""
    address = urlsplit(word)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise argparse.ArgumentTypeError(
            f"{word!r}: write the address of a metrics port, such as http://127.0.0.1:9100"
        )
    return word.rstrip("/")


def key_is_read(word: str) -> bool:
    """Returns true for `-`. No message quotes the word: it may be a key."""
    if word != "-":
        raise argparse.ArgumentTypeError("write --key -, which reads the key from standard input: others see arguments")
    return True


def read_key() -> str:
    """Returns the last word of standard input, because `Bearer` before it does not matter; nothing if it has none."""
    try:
        text = getpass.getpass("API key (it is not shown): ") if sys.stdin.isatty() else sys.stdin.read(_MAX_INPUT)
    except EOFError:  # Ctrl-D on a terminal
        return ""
    return text.split()[-1] if text.split() else ""


def url(word: str) -> SplitResult:
    """Returns an address that begins with https or http."""
    try:
        parts = urlsplit(word)
        is_address = parts.scheme in ("https", "http") and parts.hostname and parts.port != 0
    except ValueError:
        raise argparse.ArgumentTypeError(_NO_ADDRESS) from None
    if not is_address or parts.username is not None or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(_NO_ADDRESS)
    return parts


def text(word: str) -> str:
    """Returns a text that is not empty."""
    if not word.strip():
        raise argparse.ArgumentTypeError("the text must not be empty")
    return word


def integer(what: str, most: int) -> Callable[[str], int]:
    """Returns the type of an integer from 1 to `most`. `what` is what it stands for."""

    def parse(word: str) -> int:
        if not re.fullmatch("[1-9][0-9]{0,15}", word) or int(word) > most:
            raise argparse.ArgumentTypeError(f"{word!r} is not {what}: write an integer from 1 to {most}")
        return int(word)

    return parse


processes = integer("a number of processes", 256)
port = integer("a port", 65535)


def milliseconds(word: str) -> float:
    """Returns a time in milliseconds, which is finite and not negative."""
    try:
        found = float(word)
    except ValueError:
        found = -1.0
    if not 0 <= found < inf:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of milliseconds, such as 10")
    return found
