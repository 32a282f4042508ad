"""The settings that every process has. `schemas.settings` reads them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.secret_files import SECRET, from_file

Port = Annotated[int, Meta(ge=1, le=65535)]
LogLevel = Literal["debug", "info", "warning", "error"]


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
    metrics_host: Annotated[str, Meta(description="Address that the metrics port listens on")] = "127.0.0.1"
