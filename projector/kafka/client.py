"""The parts that all Kafka clients of the projector share: connection options, errors, and why no broker lets us in.

When aiokafka cannot connect, it logs the cause at each broker, and raises none of them. Brokers do not say which
version of Kafka they have, but the requests that they know show the oldest version that it can be.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.metadata import MetadataRequest
from msgspec.structs import replace

from projector.errors import Denied, Unavailable
from projector.kafka import brokers as of_process
from projector.kafka import sign_in
from projector.kafka.sign_in import TokenUnavailable
from projector.problem import KafkaDenies
from projector.reason import KafkaKind, KafkaReason
from runtime.tls import Tls
from schemas.heartbeat import KafkaRight
from schemas.resources import Kind
from schemas.settings import ProjectorSettings, brokers

of_process.install()
sign_in.install()

CLIENT_ID = "leadview-projector"
"""What Kafka calls each line of a projector."""
# The longest time in milliseconds until a consumer notices new topics and partitions.
_METADATA_AGE_MS = 2000


def topic(settings: ProjectorSettings, kind: Kind) -> str:
    """Returns the name of the topic of a kind."""
    return f"{settings.topic_prefix}{kind.topic}"


_RIGHTS: dict[type[KafkaError], KafkaRight] = {
    TopicAuthorizationFailedError: KafkaRight("Read", "topic", ()),
    GroupAuthorizationFailedError: KafkaRight("Read", "group", ()),
    ClusterAuthorizationFailedError: KafkaRight("Describe", "cluster", ()),
    TransactionalIdAuthorizationFailed: KafkaRight("Describe", "transactional-id", ()),
}
"""The right that each refusal is about. Read includes all that Leadview asks of topics and groups, except Describe of a
configuration."""


def _right_of(error: KafkaError) -> KafkaRight:
    """Returns what is refused. aiokafka names a topic, a partition or a group, a set of topics, or nothing."""
    about = error.args[0] if error.args else ()
    names = [about] if isinstance(about, str) else [str(name) for name in about]
    right = next(right for kind, right in _RIGHTS.items() if isinstance(error, kind))
    return replace(right, names=tuple(sorted({name.partition(":")[0] for name in names})))


@asynccontextmanager
async def errors() -> AsyncIterator[None]:
    """Raises every error of Kafka inside the block as Unavailable, or as Denied if this user lacks a right."""
    try:
        yield
    except SaslAuthenticationFailed as error:
        raise Denied(KafkaReason("kafka_failed", str(error))) from error
    except tuple(_RIGHTS) as error:
        raise Denied(KafkaDenies((), _right_of(error))) from error
    except (KafkaError, OSError, TimeoutError) as error:
        raise Unavailable(KafkaReason("kafka_failed", str(error) or type(error).__name__)) from error


async def start(client: Any, settings: ProjectorSettings) -> None:
    """Start a consumer or an admin client. Raises Unavailable, which says what to do if no broker lets it in."""
    try:
        async with errors():
            await client.start()
    except Unavailable as error:
        if isinstance(error.__cause__, KafkaConnectionError):  # aiokafka says only that there is no connection
            raise await why_not(settings, connection(settings)) from error
        raise


def consumer(settings: ProjectorSettings, group_id: str | None) -> AIOKafkaConsumer:
    """Returns a consumer of committed records; it is a member of a group if `group_id` is given.

    Its partitions have to be paused: a Fetcher fetches the records.
    """
    return AIOKafkaConsumer(
        group_id=group_id,
        # The defaults of these two, automatic commits and "latest", would both lose records.
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        metadata_max_age_ms=_METADATA_AGE_MS,
        max_partition_fetch_bytes=1,
        fetch_max_bytes=1,
        session_timeout_ms=int(settings.kafka_session_timeout * 1000),
        heartbeat_interval_ms=int(settings.kafka_session_timeout * 1000 / 4),
        client_id=CLIENT_ID,
        **connection(settings),
    )


def principal(settings: ProjectorSettings) -> str:
    """Returns the user as Kafka's rights name it; nothing if only the brokers know that."""
    if not settings.kafka_security_protocol.startswith("SASL"):
        return "" if settings.kafka_security_protocol == "SSL" else "User:ANONYMOUS"
    return f"User:{settings.kafka_sasl_username}" if settings.kafka_sasl_username else ""


def client_of(of: Any) -> Any:
    """Returns the AIOKafkaClient of a consumer or of an admin client, for requests that these do not offer."""
    return of._client  # noqa: SLF001


def connection(settings: ProjectorSettings) -> dict[str, Any]:
    """Returns the connection options of all clients."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(brokers(settings.kafka_bootstrap_servers)),
        "security_protocol": settings.kafka_security_protocol,
    }
    if "SSL" in settings.kafka_security_protocol:
        options["ssl_context"] = _tls(
            settings.kafka_ssl_ca_file, settings.kafka_ssl_cert_file, settings.kafka_ssl_key_file
        )
    return options | sign_in.options(settings)


@cache
def _tls(ca: str | None, certificate: str | None, key: str | None) -> Tls:
    """Returns what each connection takes its context from (`sign_in.py`)."""
    return Tls((ca, certificate, key), partial(create_ssl_context, cafile=ca, certfile=certificate, keyfile=key))


_CONNECT_SECONDS = 5.0


async def why_not(settings: ProjectorSettings, connection: Mapping[str, Any]) -> Unavailable:
    """Tries each broker once more. Returns the error of the attempt that came furthest, and what to do.

    `connection` has the options of aiokafka's clients.
    """
    options = {name: value for name, value in connection.items() if name != "bootstrap_servers"}
    causes: list[Exception] = []
    for host, port, _ in collect_hosts(connection["bootstrap_servers"]):
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await _ask(host, port, options)
        except (KafkaError, OSError, TimeoutError) as error:
            causes.append(error)
        else:
            return Unavailable(KafkaReason("kafka_back"))
    cause = next((error for error in causes if isinstance(error, _REFUSALS)), causes[-1])
    return (Denied if isinstance(cause, SaslAuthenticationFailed) else Unavailable)(_reason(cause, settings))


async def _ask(host: str, port: int, options: Mapping[str, Any]) -> None:
    connection = await create_conn(host, port, **options)
    try:
        await connection.send(MetadataRequest([]))  # without SASL where it is needed, this is refused first
    finally:
        connection.close()


_REFUSALS = (
    TokenUnavailable,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    ssl.SSLError,
)


def _reason(cause: Exception, settings: ProjectorSettings) -> KafkaReason:
    """Returns what an error of a new connection means."""
    kind: KafkaKind
    match cause:
        case TokenUnavailable():
            kind, detail = "no_token", cause.args[0]
        case SaslAuthenticationFailed() if settings.kafka_sasl_mechanism == "OAUTHBEARER":
            kind, detail = "token_refused", cause.args[0] or settings.kafka_sasl_mechanism
        case SaslAuthenticationFailed():
            file = f"_FILE ({path})" if (path := settings.kafka_sasl_password_file) else ""
            kind, detail = "user_refused", f"LEADVIEW_KAFKA_SASL_PASSWORD{file}"
        case UnsupportedSaslMechanismError() | IllegalSaslStateError():
            kind, detail = "mechanism_not_accepted", settings.kafka_sasl_mechanism
        case ssl.SSLCertVerificationError():
            kind, detail = "certificate_not_accepted", cause.verify_message
        case ssl.SSLError():
            kind, detail = "tls_failed", cause.reason or str(cause)
        case IncompatibleBrokerVersion():
            kind, detail = "not_kafka", ""
        case TimeoutError():
            kind, detail = "kafka_silent", ""
        case KafkaConnectionError():
            kind, detail = "kafka_closes", ""
        case _:
            kind, detail = "kafka_unreachable", str(cause) or type(cause).__name__
    return KafkaReason(
        kind,
        detail,
        settings.kafka_bootstrap_servers,
        settings.kafka_security_protocol,
        settings.kafka_sasl_username,
    )


_ACCEPT_SECONDS = 1.0
T = TypeVar("T")


async def answered(settings: ProjectorSettings, asking: Awaitable[T], seconds: float) -> T:
    """Returns the answer of the brokers. Raises Unavailable; if they do not answer in time, its reason names those
    that accept connections nevertheless.
    """
    try:
        async with asyncio.timeout(seconds):
            return await asking
    except TimeoutError:
        hosts = [(host, port) for host, port, _ in collect_hosts(settings.kafka_bootstrap_servers)]
        accepts = await asyncio.gather(*(_accepts(host, port) for host, port in hosts))
    at = ", ".join(f"{host}:{port}" for (host, port), accepted in zip(hosts, accepts, strict=True) if accepted)
    if not at:
        raise Unavailable(KafkaReason("kafka_silent", at=settings.kafka_bootstrap_servers))
    raise Unavailable(KafkaReason("kafka_hangs", at=at, seconds=seconds))


async def _accepts(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_ACCEPT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


_FETCH = 1
_SINCE = {4: "0.11", 7: "1.1", 8: "2.0", 11: "2.3", 12: "2.7", 13: "3.1", 15: "3.5", 16: "3.7", 17: "3.9"}
"""The version of the Fetch request that each version of Kafka brought."""
OLDEST_FETCH = 4


async def newest_fetch(settings: ProjectorSettings) -> int:
    """Returns the newest version of the Fetch request that the first broker that answers knows. Raises Unavailable."""
    options = connection(settings)
    for host, port, _ in collect_hosts(options.pop("bootstrap_servers")):
        try:
            opened = await create_conn(host, port, **options)
        except (KafkaError, OSError, TimeoutError):
            continue
        try:
            answer = await opened.send(ApiVersionRequest())
        finally:
            opened.close()
        return max((newest for key, _, newest in answer.api_versions if key == _FETCH), default=0)
    raise Unavailable(KafkaReason("kafka_away"))


def release(fetch: int) -> str:
    """Returns the release of Kafka that brought this version of the Fetch request."""
    return max((since for since in _SINCE.items() if since[0] <= fetch), default=(0, "0.10"))[1]
