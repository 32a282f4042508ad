"""Secrets that come from a file: `LEADVIEW_REDIS_PASSWORD_FILE` in place of `LEADVIEW_REDIS_PASSWORD`.

The declaration of a setting marks it as a secret with `SECRET`, and has the setting `<name>_file` beside it. A process
reads the file at its start, and again for each new connection, so that a secret can be replaced while it runs.
"""

from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct

SECRET = Meta(extra={"secret": True})
"""Marks a setting whose value is never shown, and may come from a file."""

_LARGEST_BYTES = 65_536


def from_file(field: str) -> str:
    """Returns the description of the setting that names the file of this secret."""
    return f"File with the value of `LEADVIEW_{field.upper()}`"


def secret_fields(process: type[Any]) -> set[str]:
    """Returns the fields of a Struct of settings that are marked as secrets."""
    hints = get_type_hints(process, include_extras=True)
    return {field for field, hint in hints.items() if get_origin(hint) is Annotated and SECRET in get_args(hint)[1:]}


def file_of(field: str) -> str:
    """Returns the field that names the file of a secret."""
    return f"{field}_file"


def read(path: str) -> str:
    """Returns the secret in a file, without one newline at its end. Raises ValueError, which contains nothing of it."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read ({error.strerror})") from error
    if len(content) > _LARGEST_BYTES:
        raise ValueError(f"the file is larger than {_LARGEST_BYTES} bytes, so it does not hold a secret alone")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    if not text:
        raise ValueError("the file is empty: write the secret into it")
    return text


def current(settings: Struct, field: str) -> Any:
    """Returns a secret as its file has it now, or as it was at the start if it has no file.

    A file that cannot be read at this moment changes nothing: it may just be being replaced.
    """
    at_start, path = getattr(settings, field), getattr(settings, file_of(field))
    if path:
        try:
            return read(path)
        except ValueError:
            pass
    return at_start
