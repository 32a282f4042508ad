"""What every Kafka client of the projector shares: connection options, the mapping of errors, and records."""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from projector.errors import Unavailable
from projector.record import Kind, Record
from schemas.settings import ProjectorSettings

# The longest time, in milliseconds, until new topics and partitions are noticed.
_METADATA_AGE_MS = 2000


def topic(settings: ProjectorSettings, kind: Kind) -> str:
    """The name of the topic of a kind."""
    return f"{settings.topic_prefix}{kind.value}"


def records(messages: Iterable[Any], kind: Kind) -> list[Record]:
    """aiokafka's records of one topic as ours."""
    return [
        Record(
            message.topic,
            message.partition,
            message.offset,
            message.timestamp,
            message.key,
            message.value,
            message.headers,
            kind,
        )
        for message in messages
    ]


@asynccontextmanager
async def errors() -> AsyncIterator[None]:
    """Whatever goes wrong with Kafka inside comes out as Unavailable."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise Unavailable(f"Kafka: {str(error) or type(error).__name__}") from error


def consumer(settings: ProjectorSettings, group_id: str | None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        group_id=group_id,
        # Its defaults, auto-commit and "latest", would both lose records.
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        metadata_max_age_ms=_METADATA_AGE_MS,
        fetch_max_wait_ms=200,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        session_timeout_ms=int(settings.kafka_session_timeout * 1000),
        heartbeat_interval_ms=int(settings.kafka_session_timeout * 1000 / 4),
        client_id="leadview-projector",
        **connection(settings),
    )


def connection(settings: ProjectorSettings) -> dict[str, Any]:
    """What every client of Kafka needs, from the settings."""
    wanted: dict[str, Any] = {
        "bootstrap_servers": settings.kafka_bootstrap_servers,
        "security_protocol": settings.kafka_security_protocol,
    }
    if "SSL" in settings.kafka_security_protocol:
        wanted["ssl_context"] = _ssl_context(settings)
    if "SASL" in settings.kafka_security_protocol:
        wanted["sasl_mechanism"] = settings.kafka_sasl_mechanism
        wanted["sasl_plain_username"] = settings.kafka_sasl_username
        wanted["sasl_plain_password"] = settings.kafka_sasl_password
    return wanted


def _ssl_context(settings: ProjectorSettings) -> ssl.SSLContext:
    context: ssl.SSLContext = create_ssl_context(
        cafile=settings.kafka_ssl_ca_file,
        certfile=settings.kafka_ssl_cert_file,
        keyfile=settings.kafka_ssl_key_file,
    )
    return context
