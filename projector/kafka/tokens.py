"""Tokens for OAUTHBEARER: from a token endpoint (OIDC, client credentials), or from a function that the settings name.

A token serves all connections of the process. It is replaced before it expires, and after a broker has refused it.
Existing connections keep the token that they were opened with, until the broker closes them.
"""

import asyncio
import functools
import logging
import re
import threading
import time
from typing import NamedTuple

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from projector.kafka import token_endpoint
from schemas.kafka_access import TokenFunction, token_function
from schemas.settings import ProjectorSettings

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
        """The next connection gets a new token: a broker has refused this one."""
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
    return Tokens(_named(name, token_function(name)) if name else functools.partial(_asked_for, settings))


def _asked_for(settings: ProjectorSettings) -> tuple[str, float]:
    try:
        return token_endpoint.ask(settings)
    except token_endpoint.NoToken as error:
        raise TokenUnavailable(str(error)) from error


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
