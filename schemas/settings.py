"""Settings: environment variables with the prefix `LEADVIEW_`, read once at start, passed on as an argument.

A bad or unknown one stops the start with a message that names it (contract section 4). The variables of all
processes are known here, so that one environment file can serve them all. `LEADVIEW_TEST_*` is left to tests.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from schemas.redis_url import redis_url

PREFIX = "LEADVIEW_"
IGNORED = "LEADVIEW_TEST_"
_UNITS = {"s": 1, "m": 60, "h": 3600}

Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(Exception):
    """A setting is bad or unknown. The message names it and says what it takes."""


class Limit(Struct, frozen=True):
    """A rate limit: `quota` requests in `window` seconds."""

    quota: int
    window: int


class RedisSettings(Struct, frozen=True, kw_only=True):
    """What every process needs to reach Redis."""

    redis_url: Annotated[
        str, Meta(description="Redis: `redis://`, `redis+sentinel://`, `redis+cluster://`; with TLS `rediss…`")
    ] = "redis://127.0.0.1:6379/0"
    redis_username: Annotated[str | None, Meta(description="Redis ACL user; wins over the URL's")] = None
    redis_password: Annotated[str | None, Meta(description="Password of the Redis user")] = None
    redis_sentinel_username: Annotated[str | None, Meta(description="ACL user of the Sentinels themselves")] = None
    redis_sentinel_password: Annotated[str | None, Meta(description="Password of the Sentinels themselves")] = None
    redis_tls_ca_file: Annotated[str | None, Meta(description="CA that signed Redis's certificate (PEM)")] = None
    redis_tls_cert_file: Annotated[str | None, Meta(description="Client certificate for Redis (PEM)")] = None
    redis_tls_key_file: Annotated[str | None, Meta(description="Key of the client certificate (PEM)")] = None
    log_level: Annotated[LogLevel, Meta(description="Least severe log lines that are written")] = "info"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of `/metrics` and `/healthz`; no such port where it is not set")
    ] = None
    metrics_host: Annotated[str, Meta(description="Address that the metrics port listens on")] = "127.0.0.1"


class ApiSettings(RedisSettings, frozen=True, kw_only=True):
    """Settings of `python -m api`."""

    api_host: Annotated[str, Meta(description="Address that the API listens on")] = "127.0.0.1"
    api_port: Annotated[Port, Meta(description="Port of the API")] = 8000
    api_workers: Annotated[int, Meta(ge=1, le=256, description="Processes that serve the API")] = 1
    api_redis_timeout: Annotated[
        Seconds, Meta(description="Seconds that a request waits for Redis before it answers 503")
    ] = 0.5
    api_max_in_flight: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Requests of a worker that may wait for Redis at once")
    ] = 2000
    key_rate_limit: Annotated[str, Meta(description="Requests of a key in a time: `100/10s`")] = "100/10s"
    organization_rate_limit: Annotated[str, Meta(description="Requests of an organization in a time: `300/10s`")] = (
        "300/10s"
    )


class ProjectorSettings(RedisSettings, frozen=True, kw_only=True):
    """Settings of `python -m projector`, all commands."""

    kafka_bootstrap_servers: Annotated[str, Meta(description="Kafka brokers, `host:port`, comma-separated")] = (
        "127.0.0.1:9092"
    )
    topic_prefix: Annotated[str, Meta(description="Stands before `leads`, `contacts` …")] = "crm."
    group_id: Annotated[str, Meta(min_length=1, description="Consumer group; `.access` is added for access")] = (
        "leadview"
    )
    kafka_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Meta(description="How to talk to Kafka")
    ] = "PLAINTEXT"
    kafka_ssl_ca_file: Annotated[str | None, Meta(description="CA that signed Kafka's certificate (PEM)")] = None
    kafka_ssl_cert_file: Annotated[str | None, Meta(description="Client certificate for Kafka (PEM)")] = None
    kafka_ssl_key_file: Annotated[str | None, Meta(description="Key of the client certificate (PEM)")] = None
    kafka_sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], Meta(description="SASL mechanism for Kafka")
    ] = "PLAIN"
    kafka_sasl_username: Annotated[str | None, Meta(description="SASL user for Kafka")] = None
    kafka_sasl_password: Annotated[str | None, Meta(description="SASL password for Kafka")] = None
    kafka_session_timeout: Annotated[
        float,
        Meta(
            ge=1,
            le=300,
            description="Seconds after which Kafka gives the partitions of a projector that died to others",
        ),
    ] = 6.0
    batch_records: Annotated[
        int, Meta(ge=1, le=100_000, description="Records read from Kafka before a checkpoint, at most")
    ] = 5000
    dead_letter_share: Annotated[
        float,
        Meta(gt=0, le=1, description="Share of bad records among the last 1000 that stops the line"),
    ] = 0.1
    dead_letter_row: Annotated[int, Meta(ge=1, le=1_000_000, description="Bad records in a row that stop the line")] = (
        100
    )


PROCESSES: tuple[type[RedisSettings], ...] = (ApiSettings, ProjectorSettings)
_SECRETS = {"redis_password", "redis_sentinel_password", "kafka_sasl_password"}

S = TypeVar("S", bound=RedisSettings)


def load(process: type[S], environment: Mapping[str, str]) -> S:
    """The settings of a process. Raises SettingsError, naming every setting that is wrong."""
    ours = {name: value for name, value in environment.items() if _is_ours(name)}
    known = {variable(field) for settings in PROCESSES for field in settings.__struct_fields__}
    problems = [_unknown(name, known) for name in sorted(ours.keys() - known)]
    values = {}
    for field, kind in get_type_hints(process, include_extras=True).items():
        text = ours.get(variable(field), "")
        if text == "":  # `NAME=` in an environment file means "not set"
            continue
        try:
            values[field] = msgspec.convert(text, kind, strict=False)
            _check(field, text)
        except (msgspec.ValidationError, ValueError) as error:
            problems.append(f"{variable(field)}={_shown(field, text)!r} is not valid: {error}")
    if problems:
        raise SettingsError("\n".join(problems))
    return process(**values)


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def limit(text: str) -> Limit:
    """Read a rate limit such as `100/10s` (also `m` and `h`). Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,5})([smh])", text)
    if not match:
        raise ValueError("write a rate limit as requests/time: 100/10s, 1000/1m or 5000/1h")
    return Limit(int(match[1]), int(match[2]) * _UNITS[match[3]])


def effective(settings: RedisSettings) -> dict[str, object]:
    """Every setting as it is in force, secrets hidden: for the log at start."""
    return {variable(field): _shown(field, getattr(settings, field)) for field in settings.__struct_fields__}


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and not name.startswith(IGNORED)


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "the README lists all settings."
    return f"{name} is no setting of Leadview: {hint}"


def _check(field: str, text: str) -> None:
    """What a type cannot say."""
    if field.endswith("_rate_limit"):
        limit(text)
    if field == "redis_url":
        redis_url(text)


def _shown(field: str, value: object) -> object:
    if field in _SECRETS and value is not None:
        return "***"
    if field == "redis_url":
        return _without_password(str(value))
    return value


def _without_password(url: str) -> str:
    """By pattern, not by parsing: a URL too broken to be parsed is shown in a message as well."""
    url = re.sub(r"^([^:@/?#]*://)?([^:@/?#]*):(?!//).*@", r"\1\2:***@", url)
    return re.sub(r"([?&][a-z_]*password=)[^&#]*", r"\1***", url)
