"""A certificate for 127.0.0.1 that is its own CA, made by openssl."""

from pathlib import Path
from typing import NamedTuple

from tests.harness.programs import installed, printed_by


class Certificate(NamedTuple):
    """PEM files. A client that trusts `certificate` accepts a server that has both."""

    certificate: Path
    key: Path

    def both(self) -> Path:
        """Returns a file with the key and the certificate, as Kafka wants it."""
        path = self.certificate.with_name("both.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path


# Not every version of `openssl req` makes a certificate that has expired.
_AUTHORITY = """\
[ca]
default_ca = own
[own]
new_certs_dir = .
database = index
serial = serial
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


def create(directory: Path) -> Certificate:
    """Returns a new certificate in this directory."""
    _openssl(directory, "req", "-x509", "-days", "2", "-out", "certificate.pem", *_NEW)
    return Certificate(directory / "certificate.pem", directory / "key.pem")


def create_expired(directory: Path) -> Certificate:
    """Returns a new certificate in this directory, which has expired in 2020."""
    for name, text in (("authority", _AUTHORITY), ("index", ""), ("serial", "01\n")):
        (directory / name).write_text(text)
    _openssl(directory, "req", "-new", "-out", "request.pem", *_NEW)
    dates = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]
    files = ["-config", "authority", "-in", "request.pem", "-keyfile", "key.pem", "-out", "certificate.pem"]
    _openssl(directory, "ca", "-selfsign", "-batch", "-notext", *dates, *files)
    return Certificate(directory / "certificate.pem", directory / "key.pem")


_NEW = (
    *("-subj", "/CN=leadview", "-addext", "subjectAltName=IP:127.0.0.1", "-nodes"),
    *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", "key.pem"),
)


def _openssl(directory: Path, *words: str) -> None:
    printed_by([installed("openssl", "openssl"), *words], directory=directory)
