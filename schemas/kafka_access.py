"""How to reach Kafka and sign in: what has to be right before a client is created."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from schemas.kafka_settings import KafkaSettings

TokenFunction = Callable[[], tuple[str, float]]
"""Returns a token for Kafka, and when it expires, in seconds since 1970."""

_USER: tuple[str, ...] = ("kafka_sasl_username", "kafka_sasl_password")
_CLIENT: tuple[str, ...] = ("kafka_oauth_token_url", "kafka_oauth_client_id", "kafka_oauth_client_secret")


def brokers(text: str) -> tuple[str, ...]:
    """Parses addresses of brokers, separated by commas. Raises ValueError."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if not _is_address(part):
            raise ValueError(f"{part!r} is not an address: write host:port, several of them separated by commas")
    return found


def check_token_url(text: str) -> None:
    """Check the URL of a token endpoint. Raises ValueError."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("write an https URL, such as https://login.example.com/oauth2/token")
    if set("@?#") & set(text):
        raise ValueError("write it without a user, a query and a fragment: the client has settings of its own")


def token_function(text: str) -> TokenFunction:
    """Returns the function that `module:function` names. It imports the module. Raises ValueError."""
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise ValueError("write module:function, such as projector.kafka.msk_iam:token")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"it cannot be imported ({error})") from error
    function: TokenFunction = found
    return function


def problems(settings: KafkaSettings, variable: Callable[[str], str]) -> Iterator[str]:
    """Yields what is missing, or too much, for the sign-in that the settings choose.

    `variable` returns the environment variable of a field.
    """
    protocol, mechanism = settings.kafka_security_protocol, settings.kafka_sasl_mechanism
    if "SASL" not in protocol:
        return
    if mechanism != "OAUTHBEARER":
        chosen, needed = f"{variable('kafka_security_protocol')}={protocol}", _USER
    else:
        chosen, needed = f"{variable('kafka_sasl_mechanism')}={mechanism}", _CLIENT
        if settings.kafka_oauth_token_provider:
            given = [variable(field) for field in _CLIENT if getattr(settings, field)]
            if given:
                yield f"{variable('kafka_oauth_token_provider')} is set, so {' and '.join(given)} must not be set."
            return
    missing = [variable(field) for field in needed if not getattr(settings, field)]
    if missing:
        alternative = f", or {variable('kafka_oauth_token_provider')}" if needed is _CLIENT else ""
        yield f"{chosen} needs {' and '.join(missing)} as well{alternative}."


def _is_address(part: str) -> bool:
    try:
        parts = urlsplit(f"//{part}")
        return bool(parts.hostname) and parts.port != 0 and parts.netloc == part
    except ValueError:
        return False
