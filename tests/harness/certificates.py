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


def create(directory: Path) -> Certificate:
    """Returns a new certificate in this directory."""
    subject = ["-subj", "/CN=leadview", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", "key.pem", "-out", "certificate.pem"]
    printed_by([installed("openssl", "openssl"), "req", "-x509", *key, *subject], directory=directory)
    return Certificate(directory / "certificate.pem", directory / "key.pem")
