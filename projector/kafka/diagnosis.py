"""Why no broker lets us in. When aiokafka cannot connect, it logs the cause at each broker, and raises none of them."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from projector.kafka.tokens import TokenUnavailable
from schemas.settings import ProjectorSettings

_SECONDS = 5.0


async def why_not(settings: ProjectorSettings, connection: Mapping[str, Any]) -> str:
    """Connect to each broker once more. Returns what happened at the one that came furthest, and what to do.

    `connection` has the options of aiokafka's clients.
    """
    options = {name: value for name, value in connection.items() if name != "bootstrap_servers"}
    causes: list[Exception] = []
    for host, port, _ in collect_hosts(connection["bootstrap_servers"]):
        try:
            async with asyncio.timeout(_SECONDS):
                await _ask(host, port, options)
        except (KafkaError, OSError, TimeoutError) as error:
            causes.append(error)
        else:
            return "Kafka: the brokers were not available a moment ago, and answer now"
    cause = next((error for error in causes if isinstance(error, _REFUSALS)), causes[-1])
    return explain(cause, settings)


async def _ask(host: str, port: int, options: Mapping[str, Any]) -> None:
    connection = await create_conn(host, port, **options)
    try:
        await connection.send(MetadataRequest([]))  # without SASL where it is needed, this is refused first
    finally:
        connection.close()


def _password_setting(settings: ProjectorSettings) -> str:
    path = settings.kafka_sasl_password_file
    return f"LEADVIEW_KAFKA_SASL_PASSWORD_FILE ({path})" if path else "LEADVIEW_KAFKA_SASL_PASSWORD"


_REFUSALS = (
    TokenUnavailable,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
    ssl.SSLError,
)


def explain(cause: Exception, settings: ProjectorSettings) -> str:
    """Returns what an error of a new connection means, and what to do."""
    at = settings.kafka_bootstrap_servers
    protocol = f"LEADVIEW_KAFKA_SECURITY_PROTOCOL ({settings.kafka_security_protocol})"
    match cause:
        case TokenUnavailable():
            return f"there is no token to sign in to Kafka: {cause.args[0]}"
        case SaslAuthenticationFailed() if settings.kafka_sasl_mechanism == "OAUTHBEARER":
            status = f" ({cause.args[0]})" if cause.args[0] else ""
            return (
                f"Kafka refuses the token{status}: correct LEADVIEW_KAFKA_OAUTH_CLIENT_ID, LEADVIEW_KAFKA_OAUTH_SCOPE "
                "or the token provider, or let the brokers accept its issuer and its audience"
            )
        case SaslAuthenticationFailed():
            return (
                f"Kafka refuses the user {settings.kafka_sasl_username!r} or its password: correct "
                f"LEADVIEW_KAFKA_SASL_USERNAME and {_password_setting(settings)}"
            )
        case UnsupportedSaslMechanismError() | IllegalSaslStateError():
            return (
                f"Kafka does not accept LEADVIEW_KAFKA_SASL_MECHANISM ({settings.kafka_sasl_mechanism}) on this port: "
                f"correct it, {protocol}, or the port in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
            )
        case ssl.SSLCertVerificationError():
            return (
                f"the certificate of Kafka at {at} is not accepted ({cause.verify_message}): correct "
                "LEADVIEW_KAFKA_SSL_CA_FILE, or the host in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
            )
        case ssl.SSLError():
            return (
                f"no TLS connection to Kafka at {at} ({cause.reason or cause}): correct {protocol}, the port in "
                "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS, or the client certificate (LEADVIEW_KAFKA_SSL_CERT_FILE)"
            )
        case TimeoutError():
            why = "it does not answer"
        case KafkaConnectionError():
            return (
                f"Kafka at {at} closes the connection: it is starting or stopping, or {protocol} is not that of this "
                "port"
            )
        case _:
            why = str(cause) or type(cause).__name__
    return f"Kafka cannot be reached at {at} ({why}): start it, or correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
