"""The command `doctor`: checks what must be there before a start, and writes a bundle for a ticket."""

import argparse
import os
import platform
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version as version_of
from io import BytesIO
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from projector.commands import checkup, status
from projector.commands.checkup import Check
from projector.commands.operator import Operator
from projector.errors import Refused
from projector.mapping import VERSION as MAPPING_VERSION
from schemas.control import LAYOUT
from schemas.settings import ApiSettings, RedisSettings, effective, load, secrets
from schemas.version import VERSION

_STYLES = {"ok": "green", "problem": "bold red", "unknown": "yellow"}
_LIBRARIES = ("aiokafka", "redis", "hiredis", "msgspec", "orjson", "starlette", "uvicorn", "uvloop")


async def run_doctor(arguments: argparse.Namespace, operator: Operator) -> int:
    """Check everything, print a line for each check. Returns 0 if there is no problem, otherwise 1."""
    if arguments.api:
        settings: RedisSettings = load(ApiSettings, os.environ)
        checks = await checkup.of_api(load(ApiSettings, os.environ))
    else:
        settings = operator.settings
        checks = await checkup.of_projector(operator.settings)
    _show(checks, operator.console)
    if arguments.bundle:
        found = None if arguments.api else await status.read(operator.store, operator.settings)
        write(arguments.bundle, _contents(checks, settings, found), secrets(settings))
        operator.console.print(f"written: {arguments.bundle}. It contains no secret, key or payload.", markup=False)
    return 1 if any(check.result == "problem" for check in checks) else 0


def _show(checks: Iterable[Check], console: Console) -> None:
    for check in checks:
        console.print(Text.assemble((f"{check.result:<9}", _STYLES[check.result]), f"{check.name}: {check.text}"))


def _contents(checks: list[Check], settings: RedisSettings, found: status.Status | None) -> dict[str, object]:
    return {
        "doctor.json": [check._asdict() for check in checks],
        "settings.json": effective(settings),
        "status.json": found,
        "versions.json": {
            "leadview": VERSION,
            "mapping": MAPPING_VERSION,
            "layout": LAYOUT,
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: version_of(name) for name in _LIBRARIES},
        },
    }


def write(path: Path, contents: Mapping[str, object], hidden: Iterable[str]) -> None:
    """Write a ZIP file that only this user may read. `hidden` texts are replaced, wherever they are. Raises Refused."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in contents.items():
            if content is None:
                continue
            # With msgspec: the status is a Struct.
            text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
            for secret in sorted(hidden, key=len, reverse=True):
                text = text.replace(secret, "***")
            bundle.writestr(name, text)
    try:
        path.touch(0o600)
        path.write_bytes(archive.getvalue())
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}. Choose another file with --bundle.") from error
