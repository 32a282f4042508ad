"""`python -m tests.service.clients`: generates and compiles all clients. `make clients` installs what they need."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from tests.service.clients.clients import CLIENTS, DOCUMENT, EXACT, ROOT, Client


def main() -> None:
    """Generates the clients of two languages at a time. Ends with what the commands have printed that failed."""
    [exact] = re.findall(r"`(sed .+) openapi.json > exact.json`", (ROOT / "docs" / "reading.md").read_text("utf-8"))
    with EXACT.open("wb") as file:
        subprocess.run([*shlex.split(exact), DOCUMENT], stdout=file, check=True)
    languages = [list(clients) for _, clients in groupby(CLIENTS.values(), lambda client: client.language)]
    with ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(_generate, languages) if failure]
    if failures:
        sys.exit("\n".join(failures))


def _generate(clients: Iterable[Client]) -> str:
    """Returns what a command has printed that failed."""
    for client in clients:
        client.folder.mkdir(parents=True, exist_ok=True)
        for command in client.generate:
            done = subprocess.run(command, cwd=client.folder, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return ""


main()
