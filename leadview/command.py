"""The command `leadview`: `leadview api` is `python -m api`, and every other command is one of `python -m projector`.

The packages of Leadview have common names. So their home comes first in the path of modules: a folder with the name of
one of them, in which somebody calls `leadview`, is never imported instead. Worker processes inherit this path.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

_HOME = Path(__file__).resolve().parent.parent
_SHELLS = ("bash", "zsh", "tcsh")
_OTHERS = {
    "api": "serve the HTTP API, until SIGTERM",
    "completion": f"print the completion of this command for a shell: {', '.join(_SHELLS)}",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command, by default that of this process. Returns its exit code."""
    sys.path.insert(0, str(_HOME))
    words = sys.argv[1:] if words is None else words
    # Only what the command needs is imported: the API needs no Kafka, the projector no HTTP server.
    match words:
        case ["api", *rest]:
            code: int = import_module("api.__main__").main(rest, _as_called("api"))
        case ["completion", *rest]:
            code = _complete(rest)
        case _:
            code = import_module("operate.main").main(words, _OTHERS)
    return code


def _as_called(words: str) -> str:
    called: str = import_module("schemas.words").as_called(words)
    return called


def _complete(words: Sequence[str]) -> int:
    """Print what a shell needs to complete the words of the command."""
    parser = argparse.ArgumentParser(
        prog=_as_called("completion"),
        description="Prints the completion of `leadview` for a shell. For bash, put this line into ~/.bashrc: "
        'eval "$(leadview completion bash)"',
    )
    parser.add_argument("shell", choices=_SHELLS)
    parser.add_argument("--version", action="version", version=f"leadview {import_module('schemas.version').VERSION}")
    shell = parser.parse_args(words).shell
    commands = import_module("operate.commands.arguments").parser_of("leadview", _OTHERS)
    sys.stdout.write(import_module("shtab").complete(commands, shell) + "\n")
    return 0
