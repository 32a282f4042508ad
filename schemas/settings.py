"""Settings: environment variables with the prefix `LEADVIEW_`, read once at startup and passed on as an argument.

An invalid or unknown variable prevents the start, with a message that names it (contract section 4). Every process
knows the variables of all processes, so that one environment file can serve them all. Variables that begin with
`LEADVIEW_TEST_` belong to the tests and are ignored.
"""

import difflib
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from schemas import kafka_access, secret_files, tls_files
from schemas.kafka_settings import KafkaSettings
from schemas.limits import MAX_RECORD_BYTES
from schemas.redis_settings import LogLevel, Port, RedisSettings
from schemas.redis_url import redis_url, without_password

__all__ = ["LogLevel", "Port", "RedisSettings"]  # with everything that is defined here

PREFIX = "LEADVIEW_"
IGNORED = "LEADVIEW_TEST_"
_PASSWORDS_IN_URL = (re.compile(r"://[^:@/?#]*:(.+)@"), re.compile(r"[?&][a-z_]*password=([^&#]+)"))
_UNITS = {"s": 1, "m": 60, "h": 3600}

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Compression = Literal["none", "zstd"]
RequestLogMode = Literal["off", "errors", "all"]


class SettingsError(Exception):
    """A setting is invalid or unknown. The message names it and says which values are valid."""


class Limit(Struct, frozen=True):
    """A rate limit: `quota` requests per `window` seconds."""

    quota: int
    window: int


class ApiSettings(RedisSettings, frozen=True, kw_only=True):
    """Settings of `python -m api`."""

    api_host: Annotated[str, Meta(description="Address that the API listens on")] = "127.0.0.1"
    api_port: Annotated[Port, Meta(description="Port that the API listens on")] = 8000
    api_workers: Annotated[int, Meta(ge=1, le=256, description="Worker processes of the API")] = 1
    api_drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="Seconds that the API keeps serving after SIGTERM, with `/readyz` 503")
    ] = 0.0
    api_redis_timeout: Annotated[
        Seconds, Meta(description="Seconds that a request waits for Redis before it is answered with 503")
    ] = 0.5
    api_max_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Requests per worker that may wait for Redis at the same time; more are answered with 503",
        ),
    ] = 2000
    api_unknown_key_limit: Annotated[
        str,
        Meta(
            description="Unknown API keys that one client address may try per worker and window, as in `300/10s`; "
            "clients whose address is not known count as one"
        ),
    ] = "300/10s"
    api_trusted_proxies: Annotated[
        str,
        Meta(
            description="Addresses or networks of the proxies in front of the API, separated by commas, as in "
            "`10.0.0.0/8`; they are trusted to name the client's address in `X-Forwarded-For`"
        ),
    ] = "127.0.0.0/8,::1"
    request_log: Annotated[
        RequestLogMode,
        Meta(
            description="Which responses of the API leave a log line: `off` (none), `errors` (every 5xx, and a few 4xx "
            "a second) or `all`"
        ),
    ] = "errors"
    docs_url: Annotated[
        str | None,
        Meta(description="URL of the published reference (`make docs`); each error body then links to it (`docs_url`)"),
    ] = None
    key_rate_limit: Annotated[
        str, Meta(description="Requests per key per window; the window is in `s`, `m` or `h`, as in `100/10s`")
    ] = "100/10s"
    organization_rate_limit: Annotated[
        str, Meta(description="Requests per organization per window, over all of its keys, as in `300/10s`")
    ] = "300/10s"


class ProjectorSettings(KafkaSettings, frozen=True, kw_only=True):
    """Settings of `python -m projector`, for all commands."""

    topic_prefix: Annotated[str, Meta(description="Prefix of all topics, such as `crm.` in `crm.leads`")] = "crm."
    group_id: Annotated[
        str,
        Meta(
            min_length=1,
            description="Consumer group of all resources; organizations and API keys use it plus `.access`, and "
            "accepted bad records are stored under it plus `.accepted`",
        ),
    ] = "leadview"
    batch_records: Annotated[
        int, Meta(ge=1, le=100_000, description="Maximum number of records read from Kafka per checkpoint")
    ] = 5000
    max_record_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=16_777_216,
            description="Maximum size of the value of a record in bytes, uncompressed; a larger record is bad",
        ),
    ] = MAX_RECORD_BYTES
    compression: Annotated[
        Compression,
        Meta(
            description="How documents are stored from now on: `none` (as JSON) or `zstd`; both are read at any time "
            "([compression](capacity.md#compression))"
        ),
    ] = "none"
    dead_letter_share: Annotated[
        float,
        Meta(gt=0, le=1, description="Share of bad records among the last 1000 records above which the line halts"),
    ] = 0.1
    dead_letter_row: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Number of consecutive bad records that halts the line")
    ] = 100


PROCESSES: tuple[type[RedisSettings], ...] = (ApiSettings, ProjectorSettings)
_SECRETS = {field for process in PROCESSES for field in secret_files.secret_fields(process)}

Network = IPv4Network | IPv6Network
S = TypeVar("S", bound=RedisSettings)


def load(process: type[S], environment: Mapping[str, str]) -> S:
    """Returns the settings of a process. Raises SettingsError, which names every setting that is wrong."""
    given = {name: value for name, value in environment.items() if _is_setting(name)}
    known = {variable(field) for settings in PROCESSES for field in settings.__struct_fields__}
    problems = [_unknown(name, known) for name in sorted(given.keys() - known)]
    values = {}
    for field, kind in get_type_hints(process, include_extras=True).items():
        named, text = variable(field), given.get(variable(field), "")
        shown = _shown(field, text)
        try:
            if field in _SECRETS and (path := given.get(variable(secret_files.file_of(field)))):
                if text:
                    problems.append(f"{named} and {named}_FILE are both set: set only one of them.")
                    continue
                named, shown = f"{named}_FILE", path
                text = secret_files.read(path)
            if text == "":  # `NAME=` in an environment file means "not set"
                continue
            values[field] = msgspec.convert(text, kind, strict=False)
            _check(field, text)
        except (msgspec.ValidationError, ValueError) as error:
            problems.append(f"{named}={shown!r} is not valid: {_allowed(kind) or error}")
    problems += [] if problems else _problems_together(process(**values))
    if problems:
        raise SettingsError("\n".join(problems))
    return process(**values)


def variable(field: str) -> str:
    """Returns the name of a field's environment variable."""
    return PREFIX + field.upper()


def limit(text: str) -> Limit:
    """Parses a rate limit such as `100/10s`, `1000/1m` or `5000/1h`. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,5})([smh])", text)
    if not match:
        raise ValueError("write a rate limit as requests/time: 100/10s, 1000/1m or 5000/1h")
    return Limit(int(match[1]), int(match[2]) * _UNITS[match[3]])


def networks(text: str) -> tuple[Network, ...]:
    """Parses addresses and networks, separated by commas. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def effective(settings: RedisSettings) -> dict[str, object]:
    """Returns the effective value of every setting, with secrets hidden, for the log at startup."""
    return {variable(field): _shown(field, getattr(settings, field)) for field in settings.__struct_fields__}


def secrets(settings: RedisSettings) -> set[str]:
    """Returns all secrets in these settings, at the start and now, so that they can be removed from a text."""
    found: set[str | None] = set()
    for field in secret_files.secret_fields(type(settings)):
        for text in (getattr(settings, field), secret_files.current(settings, field)):
            in_url = (password for pattern in _PASSWORDS_IN_URL for password in pattern.findall(text or ""))
            found |= set(in_url) if field == "redis_url" else {text}
    return {text for text in found if text}


def _is_setting(name: str) -> bool:
    return name.startswith(PREFIX) and not name.startswith(IGNORED)


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings."
    return f"{name} is not a setting of Leadview: {hint}"


def _check(field: str, text: str) -> None:
    """Checks what the type of a field cannot express. Raises ValueError."""
    if field.endswith("_limit"):
        limit(text)
    if field == "api_trusted_proxies":
        networks(text)
    if field == "docs_url" and not re.fullmatch(r"https?://[^\s?#]+", text):
        raise ValueError("write a URL that begins with https:// or http://, without `?` and `#`")
    if field == "redis_url":
        redis_url(text)
    if field == "kafka_bootstrap_servers":
        kafka_access.brokers(text)
    if field == "kafka_oauth_token_url":
        kafka_access.check_token_url(text)
    if field == "kafka_oauth_token_provider":
        kafka_access.token_function(text)


def _allowed(kind: Any) -> str:
    """Returns the values that a setting may have, if there are only a few."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return f"write one of {', '.join(get_args(inner))}" if get_origin(inner) is Literal else ""


def _problems_together(settings: RedisSettings) -> list[str]:
    """Returns what is wrong with settings that are valid alone: TLS files, and an incomplete sign-in."""
    found = list(tls_files.problems(settings, "redis_tls", variable))
    if isinstance(settings, KafkaSettings):
        found += tls_files.problems(settings, "kafka_ssl", variable)
        found += tls_files.problems(settings, "kafka_oauth", variable)
        found += kafka_access.problems(settings, variable)
    return found


def _shown(field: str, value: object) -> object:
    if field == "redis_url":
        return without_password(str(value))
    if field == "kafka_oauth_token_url" and value is not None:
        return without_password(str(value)).partition("?")[0]
    if field in _SECRETS and value is not None:
        return "***"
    return value
