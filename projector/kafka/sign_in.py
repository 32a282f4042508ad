"""How the Kafka clients of this process sign in: each new connection uses the password or the token as it is now.

aiokafka takes the password once, when a client is created. It also takes a token that the broker refuses for accepted,
because the broker says so in the reply and not by an error code. `install` replaces its connections with ones that do
neither.
"""

from typing import Any

import msgspec
from aiokafka import conn
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
from aiokafka.errors import SaslAuthenticationFailed

from projector.kafka.tokens import Tokens, tokens
from schemas import secret_files
from schemas.settings import ProjectorSettings


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
    def __init__(self, *address: Any, sasl_plain_password: str | None = None, **options: Any) -> None:
        if isinstance(sasl_plain_password, Password):
            sasl_plain_password = Password.of(sasl_plain_password.settings)
        super().__init__(*address, sasl_plain_password=sasl_plain_password, **options)

    def authenticator_oauth(self) -> OAuthAuthenticator:
        return _Bearer(sasl_oauth_token_provider=self._sasl_oauth_token_provider)


class _Bearer(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka has no types
    """Sends a token. A broker that refuses it replies with a JSON object, otherwise with nothing."""

    async def step(self, payload: bytes | None) -> Any:
        if self._token_sent and payload:
            provider: Tokens = self._sasl_oauth_token_provider
            provider.forget()
            raise SaslAuthenticationFailed(_status(payload))
        return await super().step(payload)


class _Refusal(msgspec.Struct):
    status: str = ""


def _status(payload: bytes) -> str:
    """Returns why a broker refuses a token, in the words of RFC 7628, such as invalid_token."""
    try:
        return msgspec.json.decode(payload, type=_Refusal).status
    except msgspec.DecodeError:
        return ""
