"""Settings: environment variables with the prefix `LEADVIEW_`, read once at startup and passed on as an argument.

An invalid or unknown variable prevents the start, with a message that names it (docs/settings.md). Every process
knows the variables of all processes, so that one environment file can serve them all. Variables that begin with
`LEADVIEW_TEST_` belong to the tests and are ignored.
"""

import difflib
import importlib
import re
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from schemas import secret_files
from schemas.limits import MAX_RECORD_BYTES
from schemas.redis_url import redis_url, without_password
from schemas.secret_files import SECRET, from_file

PREFIX = "LEADVIEW_"
IGNORED = "LEADVIEW_TEST_"
_PASSWORDS_IN_URL = (re.compile(r"://[^:@/?#]*:(.+)@"), re.compile(r"[?&][a-z_]*password=([^&#]+)"))
_UNITS = {"s": 1, "m": 60, "h": 3600}

Port = Annotated[int, Meta(ge=1, le=65535)]
LogLevel = Literal["debug", "info", "warning", "error"]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Compression = Literal["none", "zstd"]
RequestLogMode = Literal["off", "errors", "all"]
TokenFunction = Callable[[], tuple[str, float]]
"""Returns a token for Kafka, and when it expires, in seconds since 1970."""

_USER: tuple[str, ...] = ("kafka_sasl_username", "kafka_sasl_password")
_CLIENT: tuple[str, ...] = ("kafka_oauth_token_url", "kafka_oauth_client_id", "kafka_oauth_client_secret")


class SettingsError(Exception):
    """A setting is invalid or unknown. The message names it and says which values are valid."""


class Limit(Struct, frozen=True):
    """A rate limit: `quota` requests per `window` seconds."""

    quota: int
    window: int


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Settings that every process has: the connection to Redis, logs and metrics."""

    redis_url: Annotated[
        str,
        SECRET,
        Meta(
            description="Redis URL: `redis://`, `redis+sentinel://` or `redis+cluster://`; "
            "with TLS `rediss://`, `rediss+sentinel://` or `rediss+cluster://`"
        ),
    ] = "redis://127.0.0.1:6379/0"
    redis_url_file: Annotated[str | None, Meta(description=from_file("redis_url"))] = None
    redis_username: Annotated[str | None, Meta(description="Redis ACL user; overrides the user in the URL")] = None
    redis_password: Annotated[
        str | None, SECRET, Meta(description="Password of the Redis user; overrides the password in the URL")
    ] = None
    redis_password_file: Annotated[str | None, Meta(description=from_file("redis_password"))] = None
    redis_sentinel_username: Annotated[str | None, Meta(description="ACL user for the Sentinels")] = None
    redis_sentinel_password: Annotated[str | None, SECRET, Meta(description="Password for the Sentinels")] = None
    redis_sentinel_password_file: Annotated[str | None, Meta(description=from_file("redis_sentinel_password"))] = None
    redis_tls_ca_file: Annotated[
        str | None, Meta(description="PEM file with the CA that signed the certificate of Redis")
    ] = None
    redis_tls_cert_file: Annotated[str | None, Meta(description="PEM file with the client certificate for Redis")] = (
        None
    )
    redis_tls_key_file: Annotated[
        str | None, Meta(description="PEM file with the private key of the client certificate for Redis")
    ] = None
    log_level: Annotated[
        LogLevel, Meta(description="Lowest level that is logged: `debug`, `info`, `warning` or `error`")
    ] = "info"
    metrics_port: Annotated[
        Port | None,
        Meta(description="Port that serves `/metrics`, `/livez` and `/healthz`; if it is unset, no port is opened"),
    ] = None
    metrics_host: Annotated[str, Meta(description="Address of the metrics port; `::` is every one")] = "127.0.0.1"


class KafkaSettings(RedisSettings, frozen=True, kw_only=True):
    """The connection to Kafka, together with what every process has."""

    kafka_bootstrap_servers: Annotated[str, Meta(description="Kafka brokers as `host:port`, separated by commas")] = (
        "127.0.0.1:9092"
    )
    kafka_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="Protocol for Kafka: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`"),
    ] = "PLAINTEXT"
    kafka_ssl_ca_file: Annotated[
        str | None, Meta(description="PEM file with the CA that signed the certificates of Kafka")
    ] = None
    kafka_ssl_cert_file: Annotated[str | None, Meta(description="PEM file with the client certificate for Kafka")] = (
        None
    )
    kafka_ssl_key_file: Annotated[
        str | None, Meta(description="PEM file with the private key of the client certificate for Kafka")
    ] = None
    kafka_sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
        Meta(description="SASL mechanism for Kafka: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`"),
    ] = "PLAIN"
    kafka_sasl_username: Annotated[str | None, Meta(description="SASL user for Kafka")] = None
    kafka_sasl_password: Annotated[str | None, SECRET, Meta(description="SASL password for Kafka")] = None
    kafka_sasl_password_file: Annotated[str | None, Meta(description=from_file("kafka_sasl_password"))] = None
    kafka_oauth_token_url: Annotated[
        str | None,
        Meta(description="`OAUTHBEARER`: https URL of the token endpoint (OIDC, grant `client_credentials`)"),
    ] = None
    kafka_oauth_client_id: Annotated[str | None, Meta(description="`OAUTHBEARER`: id of the client")] = None
    kafka_oauth_client_secret: Annotated[
        str | None, SECRET, Meta(description="`OAUTHBEARER`: secret of the client")
    ] = None
    kafka_oauth_client_secret_file: Annotated[str | None, Meta(description=from_file("kafka_oauth_client_secret"))] = (
        None
    )
    kafka_oauth_scope: Annotated[
        str | None, Meta(description="`OAUTHBEARER`: scopes to ask for, separated by spaces")
    ] = None
    kafka_oauth_ca_file: Annotated[
        str | None, Meta(description="PEM file with the CA that signed the certificate of the token endpoint")
    ] = None
    kafka_oauth_token_provider: Annotated[
        str | None,
        Meta(
            description="`OAUTHBEARER`, in place of a token endpoint: `module:function` that returns a token and when "
            "it expires ([secrets](production.md#tokens-of-a-cloud))"
        ),
    ] = None
    kafka_client_rack: Annotated[
        str | None,
        Meta(
            description="Rack of this projector, as in `broker.rack`: records are fetched from a replica in it "
            "([zones](production.md#zones))"
        ),
    ] = None
    kafka_session_timeout: Annotated[
        float,
        Meta(
            ge=1,
            le=300,
            description="Seconds without a heartbeat after which Kafka reassigns the partitions of a projector",
        ),
    ] = 6.0


class ApiSettings(RedisSettings, frozen=True, kw_only=True):
    """Settings of `python -m api`."""

    api_host: Annotated[str, Meta(description="Address of the API; `::` is every one")] = "127.0.0.1"
    api_port: Annotated[Port, Meta(description="Port that the API listens on")] = 8000
    api_workers: Annotated[int, Meta(ge=1, le=256, description="Worker processes of the API")] = 1
    api_drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="Seconds that the API keeps serving after SIGTERM, with `/readyz` 503")
    ] = 0.0
    api_keep_alive: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="Seconds for which the API keeps an idle connection: more than the proxy in front of it does "
            "(docs/production.md)",
        ),
    ] = 620.0
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
            description="Addresses or networks of proxies that are trusted to name the client's address in "
            "`X-Forwarded-For`, separated by commas, as in `10.0.0.0/8`"
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
    expected_projectors: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Projectors that should be alive; fewer are a problem (0: any number). The largest number that "
            "a living projector or `status` itself has counts",
        ),
    ] = 0
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
    verify_memory: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Memory for a comparison with the topics, in megabytes: with less, it reads the topics more "
            "often ([verify](rebuild.md#verify-what-is-served))",
        ),
    ] = 256


PROCESSES: tuple[type[RedisSettings], ...] = (ApiSettings, ProjectorSettings)
_SECRETS = {field for process in PROCESSES for field in secret_files.secret_fields(process)}

Network = IPv4Network | IPv6Network
S = TypeVar("S", bound=RedisSettings)


def load(process: type[S], environment: Mapping[str, str]) -> S:
    """Returns the settings of a process. Raises SettingsError, which names every setting that is wrong."""
    given = {
        name: value for name, value in environment.items() if name.startswith(PREFIX) and not name.startswith(IGNORED)
    }
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
            _CHECKS.get(field, str)(text)
        except (msgspec.ValidationError, ValueError) as error:
            problems.append(f"{named}={shown!r} is not valid: {_allowed(kind) or error}")
    problems += [] if problems else _problems_together(process(**values), values.keys())
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


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings."
    return f"{name} is not a setting of Leadview: {hint}"


def _web_address(text: str) -> None:
    """Raises ValueError."""
    if not re.fullmatch(r"https?://[^\s?#]+", text):
        raise ValueError("write a URL that begins with https:// or http://, without `?` and `#`")


def _allowed(kind: Any) -> str:
    """Returns the values that a setting may have, if there are only a few."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return f"write one of {', '.join(get_args(inner))}" if get_origin(inner) is Literal else ""


def _problems_together(settings: RedisSettings, given: Collection[str]) -> list[str]:
    """Returns what is wrong with settings that are valid alone: TLS files, an incomplete sign-in, and what protects a
    connection elsewhere and has no effect. `given` are the fields that have been set.
    """
    found = list(_tls_problems(settings, "redis_tls"))
    if isinstance(settings, KafkaSettings):
        found += _tls_problems(settings, "kafka_ssl")
        found += _tls_problems(settings, "kafka_oauth")
        found += _sign_in_problems(settings)
    return found + list(_without_effect(settings, given))


def _without_effect(settings: RedisSettings, given: Collection[str]) -> Iterator[str]:
    """Yields which settings look as if a connection were encrypted or signed in, although it is not. A secret alone
    does not: all programs of an installation may be given the same secrets.
    """
    secrets_ = _SECRETS | {secret_files.file_of(field) for field in _SECRETS}

    def names_of(*beginnings: str) -> str:
        fields = [field for field in settings.__struct_fields__ if field in given and field.startswith(beginnings)]
        named = [field for field in fields if not field.endswith("_file") or field not in secrets_]
        return " and ".join(map(variable, named)) if set(fields) - secrets_ else ""

    if not settings.redis_url.startswith("rediss") and (names := names_of("redis_tls_")):
        url = variable("redis_url")
        yield (
            f"{url} does not begin with rediss, and nothing is encrypted, so {names} must not be set: write rediss in "
            "place of redis, or remove it."
        )
    if not isinstance(settings, KafkaSettings):
        return
    protocol, mechanism = settings.kafka_security_protocol, settings.kafka_sasl_mechanism
    chosen = f"{variable('kafka_security_protocol')}={protocol}"
    if "SSL" not in protocol and (names := names_of("kafka_ssl_")):
        encrypted = "SSL" if protocol == "PLAINTEXT" else "SASL_SSL"
        yield f"{chosen} encrypts nothing, so {names} must not be set: choose {encrypted}, or remove it."
    if "SASL" not in protocol:
        if names := names_of("kafka_sasl_", "kafka_oauth_"):
            signed_in = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT or SASL_SSL"
            yield f"{chosen} signs nobody in, so {names} must not be set: choose {signed_in}, or remove it."
        return
    others = ("kafka_sasl_username", "kafka_sasl_password") if mechanism == "OAUTHBEARER" else ("kafka_oauth_",)
    if names := names_of(*others):
        yield f"{variable('kafka_sasl_mechanism')}={mechanism} has no use for it, so {names} must not be set."


def _shown(field: str, value: object) -> object:
    if field == "redis_url":
        return without_password(str(value))
    if field == "kafka_oauth_token_url" and value is not None:
        return without_password(str(value)).partition("?")[0]
    if field in _SECRETS and value is not None:
        return "***"
    return value


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


def _sign_in_problems(settings: KafkaSettings) -> Iterator[str]:
    """Yields what is missing, or too much, for the sign-in that the settings choose."""
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


def _tls_problems(settings: Struct, group: str) -> Iterator[str]:
    """Yields what is wrong with the files that `<group>_ca_file`, `<group>_cert_file` and `<group>_key_file` name, as
    far as there are such settings.
    """
    fields = [f"{group}_{kind}_file" for kind in ("ca", "cert", "key")]
    ca, cert, key = [(variable(field), getattr(settings, field, None)) for field in fields]
    unreadable = [problem for name, path in (ca, cert, key) if path and (problem := _unreadable(name, path))]
    yield from unreadable
    if unreadable:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the certificates of the system, which take long to load
    if ca[1]:
        try:
            context.load_verify_locations(ca[1])
        except ssl.SSLError as error:
            yield f"{ca[0]}={ca[1]!r} is not valid: it is not a PEM file with certificates ({error.reason or error})"
    if key[1] and not cert[1]:
        yield f"{key[0]} is of no use without {cert[0]}: set both, or none of them."
    elif cert[1]:
        try:
            context.load_cert_chain(cert[1], key[1], password=lambda: b"")  # otherwise OpenSSL asks on the terminal
        except ssl.SSLError as error:
            yield (
                f"{cert[0]} and {key[0]} are not valid: they have to be PEM files with a certificate and its private "
                f"key, without a passphrase ({error.reason or error})"
            )


def _unreadable(name: str, path: str) -> str | None:
    try:
        with Path(path).open("rb"):
            return None
    except OSError as error:
        return f"{name}={path!r} is not valid: the file cannot be read ({error.strerror})"


_CHECKS: dict[str, Callable[[str], object]] = {
    "api_trusted_proxies": networks,
    "api_unknown_key_limit": limit,
    "docs_url": _web_address,
    "kafka_bootstrap_servers": brokers,
    "kafka_oauth_token_provider": token_function,
    "kafka_oauth_token_url": check_token_url,
    "key_rate_limit": limit,
    "organization_rate_limit": limit,
    "redis_url": redis_url,
}
"""What the type of a setting cannot express. Each raises ValueError."""
