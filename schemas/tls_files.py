"""Checks the PEM files of TLS that settings name, before any connection is opened."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct


def problems(settings: Struct, group: str, variable: Callable[[str], str]) -> Iterator[str]:
    """Yields what is wrong with the files that `<group>_ca_file`, `<group>_cert_file` and `<group>_key_file` name, as
    far as there are such settings.

    `variable` returns the environment variable of a field.
    """
    fields = [f"{group}_{kind}_file" for kind in ("ca", "cert", "key")]
    ca, cert, key = [(variable(field), getattr(settings, field, None)) for field in fields]
    unreadable = [problem for name, path in (ca, cert, key) if path and (problem := _unreadable(name, path))]
    yield from unreadable
    if unreadable:
        return
    context = ssl.create_default_context()
    if ca[1]:
        try:
            context.load_verify_locations(ca[1])
        except ssl.SSLError as error:
            yield f"{ca[0]}={ca[1]!r} is not valid: it is not a PEM file with certificates ({error.reason or error})"
    if key[1] and not cert[1]:
        yield f"{key[0]} is of no use without {cert[0]}: set both, or none of them."
    elif cert[1]:
        try:
            context.load_cert_chain(cert[1], key[1], password=lambda: b"")  # otherwise OpenSSL asks on the terminal
        except ssl.SSLError as error:
            yield (
                f"{cert[0]} and {key[0]} are not valid: they have to be PEM files with a certificate and its private "
                f"key, without a passphrase ({error.reason or error})"
            )


def _unreadable(name: str, path: str) -> str | None:
    try:
        with Path(path).open("rb"):
            return None
    except OSError as error:
        return f"{name}={path!r} is not valid: the file cannot be read ({error.strerror})"
