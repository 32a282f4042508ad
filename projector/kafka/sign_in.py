"""Signs in the Kafka clients of this process: each new connection uses the present password or token, and the present
files of TLS. It is kept alive as well (`runtime/keep_alive.py`).

aiokafka takes the password and TLS once, when a client is created. It treats a refused token as accepted, because the
broker refuses it in the reply and not by an error code. And it waits for 40 s for an address that does not answer at
all. `install` replaces its connections with ones that do none of this.

A token for OAUTHBEARER comes from a token endpoint (OIDC, client credentials), or from a function that the settings
name. It serves all connections of the process, and is replaced before it expires, and after a broker has refused it.
Existing connections keep the token that they were opened with, until the broker closes them.
"""

import asyncio
import base64
import functools
import http.client
import logging
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode

import msgspec
from aiokafka import conn
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
from aiokafka.errors import KafkaError, SaslAuthenticationFailed

from runtime.keep_alive import keep_alive
from runtime.tls import Tls
from schemas import secret_files
from schemas.settings import ProjectorSettings, TokenFunction, token_function

CONNECT_SECONDS = 5.0
"""The time that a new connection has to connect and sign in."""


class Password(str):
    """A password as it was when it was read. It knows the settings that say what it is now."""

    settings: ProjectorSettings

    @classmethod
    def of(cls, settings: ProjectorSettings) -> "Password":
        """Returns the password as it is now."""
        password = cls(secret_files.current(settings, "kafka_sasl_password"))
        password.settings = settings
        return password


def options(settings: ProjectorSettings) -> dict[str, Any]:
    """Returns the options of aiokafka's clients for the sign-in that the settings choose."""
    if "SASL" not in settings.kafka_security_protocol:
        return {}
    if settings.kafka_sasl_mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens(settings)}
    return {
        "sasl_mechanism": settings.kafka_sasl_mechanism,
        "sasl_plain_username": settings.kafka_sasl_username,
        "sasl_plain_password": Password.of(settings),
    }


def install() -> None:
    """Let all connections of this process sign in as this module says."""
    conn.AIOKafkaConnection = _Connection


class _Connection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    def __init__(
        self, *address: Any, sasl_plain_password: str | None = None, ssl_context: Any = None, **options: Any
    ) -> None:
        if isinstance(sasl_plain_password, Password):
            sasl_plain_password = Password.of(sasl_plain_password.settings)
        if isinstance(ssl_context, Tls):
            ssl_context = ssl_context.context()
        super().__init__(*address, sasl_plain_password=sasl_plain_password, ssl_context=ssl_context, **options)

    async def connect(self) -> Any:
        """Connect and sign in. Raises TimeoutError soon, because a client opens no other connection meanwhile."""
        async with asyncio.timeout(CONNECT_SECONDS):
            connected = await super().connect()
        keep_alive(self._writer.get_extra_info("socket"))
        return connected

    def authenticator_oauth(self) -> OAuthAuthenticator:
        return _Bearer(sasl_oauth_token_provider=self._sasl_oauth_token_provider)


class _Bearer(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka has no types
    """Sends a token. A broker that refuses it replies with a JSON object, otherwise with nothing."""

    async def step(self, payload: bytes | None) -> Any:
        if self._token_sent and payload:
            provider: Tokens = self._sasl_oauth_token_provider
            provider.forget()
            raise SaslAuthenticationFailed(_Refusal.of(payload).status)
        return await super().step(payload)


class _Refusal(msgspec.Struct):
    """Why a broker refuses a token, in the words of RFC 7628, such as invalid_token; or why a token endpoint does."""

    status: str = ""
    error: str = ""

    @classmethod
    def of(cls, body: bytes) -> "_Refusal":
        try:
            return msgspec.json.decode(body, type=cls)
        except msgspec.DecodeError:
            return cls()


_RENEWED_AT = 0.8
"""The share of its lifetime after which a token is replaced."""
_TOKEN = re.compile(r"[!-~]+")  # a token is sent in a line of text

logger = logging.getLogger(__name__)


class TokenUnavailable(KafkaError):  # type: ignore[misc]  # aiokafka has no types; it retries after errors of this class
    """There is no token to sign in with. The message says why, and what to do."""


class _Token(NamedTuple):
    text: str
    renewed_at: float
    expires_at: float
    """In seconds since 1970."""


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Returns tokens to aiokafka. `fetch` returns a new one and when it expires, or raises TokenUnavailable."""

    def __init__(self, fetch: TokenFunction) -> None:
        self._fetch = fetch
        self._token: _Token | None = None
        # A lock of threads: `fetch` blocks, and an asyncio.Lock would belong to one event loop.
        self._fetching = threading.Lock()

    async def token(self) -> str:
        """Returns a token that has not expired. Raises TokenUnavailable."""
        token = self._token
        if token and time.time() < token.renewed_at:
            return token.text
        return await asyncio.get_running_loop().run_in_executor(None, self._renewed)

    def forget(self) -> None:
        """Make the next connection get a new token: a broker has refused this one."""
        self._token = None

    def _renewed(self) -> str:
        with self._fetching:
            token = self._token
            if token and time.time() < token.renewed_at:
                return token.text  # another thread was faster
            begun = time.time()
            try:
                text, expires_at = self._fetch()
            except TokenUnavailable as error:
                if token and time.time() < token.expires_at:
                    logger.warning(
                        "no new token for Kafka; the present one is still valid", extra={"error": str(error)}
                    )
                    return token.text
                raise
            if not _TOKEN.fullmatch(text):
                raise TokenUnavailable("the token for Kafka is empty or has characters that no token may have")
            self._token = _Token(text, begun + _RENEWED_AT * (expires_at - begun), expires_at)
            return text


@functools.cache
def tokens(settings: ProjectorSettings) -> Tokens:
    """Returns the tokens that the settings choose: the same ones for all clients of this process."""
    name = settings.kafka_oauth_token_provider
    return Tokens(_named(name, token_function(name)) if name else functools.partial(ask_endpoint, settings))


def _named(name: str, function: TokenFunction) -> TokenFunction:
    def call() -> tuple[str, float]:
        try:
            text, expires_at = function()
            return str(text), float(expires_at)
        except Exception as error:  # noqa: BLE001 - whatever it raises, and without its message, which may hold a secret
            raise TokenUnavailable(
                f"LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER ({name}) returned no token for Kafka "
                f"({type(error).__name__}): call it by hand to see why"
            ) from None

    return call


_SECONDS = 10.0
_LARGEST_BYTES = 1_048_576
_CODE = re.compile(r"[a-z_]{1,40}")
_OF_CLIENT = "LEADVIEW_KAFKA_OAUTH_CLIENT_ID and LEADVIEW_KAFKA_OAUTH_CLIENT_SECRET (or its file)"
_CORRECTED = {
    "invalid_scope": "LEADVIEW_KAFKA_OAUTH_SCOPE",
    "unsupported_grant_type": "LEADVIEW_KAFKA_OAUTH_TOKEN_URL, or let this client use the grant client_credentials",
    "unauthorized_client": "LEADVIEW_KAFKA_OAUTH_CLIENT_ID, or let this client use the grant client_credentials",
}


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float = 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected request would take the secret of the client elsewhere."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def ask_endpoint(settings: ProjectorSettings) -> tuple[str, float]:
    """Asks the token endpoint (RFC 6749, grant `client_credentials`). It blocks for up to some seconds.

    Returns a token and when it expires, in seconds since 1970. Raises TokenUnavailable, whose message has no secret.
    """
    url = str(settings.kafka_oauth_token_url)
    context = ssl.create_default_context(cafile=settings.kafka_oauth_ca_file)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
    asked_at = time.time()
    try:
        with opener.open(_request(settings, url), timeout=_SECONDS) as response:
            answer = msgspec.json.decode(response.read(_LARGEST_BYTES), type=_Answer, strict=False)
    except urllib.error.HTTPError as error:
        with error:
            raise TokenUnavailable(_refusal(url, error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise TokenUnavailable(_unreachable(url, getattr(error, "reason", error))) from None
    except msgspec.DecodeError:  # its message may contain a part of the answer
        raise TokenUnavailable(f"{url} does not answer with a token: correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL") from None
    return answer.access_token, asked_at + answer.expires_in


def _request(settings: ProjectorSettings, url: str) -> urllib.request.Request:
    form = {"grant_type": "client_credentials"}
    if settings.kafka_oauth_scope:
        form["scope"] = settings.kafka_oauth_scope
    secret = secret_files.current(settings, "kafka_oauth_client_secret")
    # RFC 6749, section 2.3.1: both are encoded as in a form, before they are joined.
    client = f"{quote_plus(str(settings.kafka_oauth_client_id))}:{quote_plus(secret)}"
    headers = {
        "Authorization": f"Basic {base64.b64encode(client.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    return urllib.request.Request(url, urlencode(form).encode(), headers, method="POST")  # noqa: S310 - https, checked


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    try:
        code = _Refusal.of(error.read(_LARGEST_BYTES)).error
    except (OSError, http.client.HTTPException):
        code = ""
    status = f"HTTP {error.code}"
    if not _CODE.fullmatch(code):
        if error.code in (401, 403):
            return f"{url} refuses this client ({status}): correct {_OF_CLIENT}"
        return f"{url} does not answer with a token ({status}): correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL, or try later"
    return f"{url} refuses a token ({status}, {code}): correct {_CORRECTED.get(code, _OF_CLIENT)}"


def _unreachable(url: str, reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not accepted ({reason.verify_message}): correct "
            "LEADVIEW_KAFKA_OAUTH_CA_FILE, or the host in LEADVIEW_KAFKA_OAUTH_TOKEN_URL"
        )
    why = "it does not answer" if isinstance(reason, TimeoutError) else str(reason) or type(reason).__name__
    return f"{url} cannot be reached ({why}): start it, or correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL"
