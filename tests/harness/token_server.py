"""An identity provider: a token endpoint over TLS (client credentials), and its public key as a JWK Set over HTTP.

Its tokens are JWTs signed with RSA by openssl, so that a real broker checks them as it would check any others.
"""

import base64
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs

import orjson

from tests.harness.certificates import Certificate
from tests.harness.front import Quiet, serving
from tests.harness.programs import installed


class TokenServer:
    """What it accepts and answers may be changed at any time. Created by `token_server`."""

    client_id = "leadview"
    secret = "the-secret"
    audience = "kafka"
    lifetime = 3600.0
    answer: tuple[int, bytes] | None = None
    """In place of a token: a status and a body."""

    def __init__(self, directory: Path) -> None:
        self._key = directory / "signing.pem"
        self._openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self._key))
        self.issued: list[str] = []
        self.asked: list[dict[str, list[str]]] = []
        """The forms of all requests for a token."""
        self.url = ""
        self.keys_url = ""

    def token(self) -> str:
        claims = {
            "iss": "https://identity.test",
            "sub": self.client_id,
            "aud": self.audience,
            "scope": "crm",
            "iat": int(time.time()),
            "exp": int(time.time() + self.lifetime),
            "jti": str(len(self.issued)),
        }
        head = _encoded(orjson.dumps({"alg": "RS256", "typ": "JWT", "kid": "1"}))
        signed = f"{head}.{_encoded(orjson.dumps(claims))}"
        signature = self._openssl("dgst", "-sha256", "-sign", str(self._key), stdin=signed.encode())
        self.issued.append(f"{signed}.{_encoded(signature)}")
        return self.issued[-1]

    def keys(self) -> bytes:
        shown = self._openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode()
        modulus = bytes.fromhex(shown.strip().removeprefix("Modulus="))
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": _encoded(modulus), "e": "AQAB"}
        return orjson.dumps({"keys": [key]})

    def post(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """Returns the status and the body of the answer to a request for a token."""
        self.asked.append(form)
        if self.answer:
            return self.answer
        expected = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, b'{"error": "invalid_client", "error_description": "the secret was wrong"}'
        if form.get("grant_type") != ["client_credentials"]:
            return 400, b'{"error": "unsupported_grant_type"}'
        answer = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime}
        return 200, orjson.dumps(answer)

    def _openssl(self, *words: str, stdin: bytes = b"") -> bytes:
        command = [installed("openssl", "openssl"), *words]
        return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


@contextmanager
def token_server(certificate: Certificate, directory: Path) -> Iterator[TokenServer]:
    identity, headers = TokenServer(directory), {"Content-Type": "application/json"}

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, headers, identity.keys())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, body = identity.post(self.headers.get("Authorization", ""), form)
            location = {"Location": identity.keys_url} if status == 302 else {}
            self.answer(status, headers | location, body)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    with serving(Handler, context) as port, serving(Handler) as port_of_keys:
        identity.url = f"https://127.0.0.1:{port}/token"
        identity.keys_url = f"http://127.0.0.1:{port_of_keys}/keys"
        yield identity


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
