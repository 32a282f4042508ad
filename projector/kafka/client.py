"""What all Kafka clients of the projector share: connection options, errors and the form of records."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.helpers import create_ssl_context

from projector.errors import Unavailable
from projector.kafka import diagnosis, fetching, sign_in, unpacking
from projector.kafka.unpacking import Unpacker
from schemas.kafka_access import brokers
from schemas.resources import Kind
from schemas.settings import ProjectorSettings

unpacking.install()
fetching.install()
sign_in.install()

# The longest time in milliseconds until a consumer notices new topics and partitions.
_METADATA_AGE_MS = 2000
FETCH_BYTES = 8 * 1_048_576
"""What the brokers may return at once, compressed. Only a single batch may exceed it."""


def topic(settings: ProjectorSettings, kind: Kind) -> str:
    """Returns the name of the topic of a kind."""
    return f"{settings.topic_prefix}{kind.topic}"


@asynccontextmanager
async def errors() -> AsyncIterator[None]:
    """Raises every error of Kafka inside the block as Unavailable."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise Unavailable(f"Kafka: {str(error) or type(error).__name__}") from error


async def start(client: Any, settings: ProjectorSettings) -> None:
    """Start a consumer or an admin client. Raises Unavailable, which says what to do if no broker lets it in."""
    try:
        async with errors():
            await client.start()
    except Unavailable as error:
        if isinstance(error.__cause__, KafkaConnectionError):  # aiokafka says only that there is no connection
            raise Unavailable(await diagnosis.why_not(settings, connection(settings))) from error
        raise


def consumer(
    settings: ProjectorSettings, group_id: str | None, unpacker: Unpacker | None = None, fetch_bytes: int = FETCH_BYTES
) -> AIOKafkaConsumer:
    """Returns a consumer of committed records; it is a member of a group if `group_id` is given.

    It returns each record as a `Record`. Without an Unpacker it can only commit. `fetch_bytes` is what the brokers
    may return at once, except that a batch is returned as a whole.
    """
    return AIOKafkaConsumer(
        group_id=group_id,
        value_deserializer=unpacker,
        # The defaults of these two, automatic commits and "latest", would both lose records.
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        metadata_max_age_ms=_METADATA_AGE_MS,
        fetch_max_wait_ms=fetching.LINGER_MS,
        max_partition_fetch_bytes=fetch_bytes // 2,
        fetch_max_bytes=fetch_bytes,
        session_timeout_ms=int(settings.kafka_session_timeout * 1000),
        heartbeat_interval_ms=int(settings.kafka_session_timeout * 1000 / 4),
        client_id="leadview-projector",
        **connection(settings),
    )


def connection(settings: ProjectorSettings) -> dict[str, Any]:
    """Returns the connection options of all clients."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(brokers(settings.kafka_bootstrap_servers)),
        "security_protocol": settings.kafka_security_protocol,
    }
    if "SSL" in settings.kafka_security_protocol:
        options["ssl_context"] = _ssl_context(settings)
    return options | sign_in.options(settings)


def _ssl_context(settings: ProjectorSettings) -> ssl.SSLContext:
    context: ssl.SSLContext = create_ssl_context(
        cafile=settings.kafka_ssl_ca_file,
        certfile=settings.kafka_ssl_cert_file,
        keyfile=settings.kafka_ssl_key_file,
    )
    return context
