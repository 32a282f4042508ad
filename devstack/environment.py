"""The environment of the projector and the API: the user's settings, with the servers and ports of this stack."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.settings import PREFIX

# These settings apply only to the user's own servers: embedded servers have no passwords and no TLS.
_REDIS_ACCESS = ("REDIS_USERNAME", "REDIS_PASSWORD", "REDIS_SENTINEL_", "REDIS_TLS_")
_KAFKA_ACCESS = ("KAFKA_SECURITY_", "KAFKA_SSL_", "KAFKA_SASL_", "KAFKA_OAUTH_")


def of_stack(
    environment: Mapping[str, str], *, redis_url: str | None, kafka: str | None, port: int, scratch: Path
) -> dict[str, str]:
    """Returns the variables of both processes. `redis_url` and `kafka` are the user's own servers, or None."""
    dropped = ("REDIS_URL_FILE", *(() if redis_url else _REDIS_ACCESS), *(() if kafka else _KAFKA_ACCESS))
    prefixes = tuple(PREFIX + name for name in dropped)
    kept = {name: value for name, value in environment.items() if not name.startswith(prefixes)}
    return kept | {
        f"{PREFIX}REDIS_URL": redis_url or "",
        f"{PREFIX}KAFKA_BOOTSTRAP_SERVERS": kafka or "",
        f"{PREFIX}API_PORT": str(port),
        f"{PREFIX}METRICS_HOST": "127.0.0.1",
        "TMPDIR": str(scratch),  # what killed processes leave there is removed with the scratch directory
    }


def unused(environment: Mapping[str, str], *, redis_url: str | None, kafka: str | None) -> Iterator[str]:
    """Yields a note for each server address that is set in the environment but not used."""
    for name, option, chosen in (
        ("REDIS_URL", "--redis-url", redis_url),
        ("REDIS_URL_FILE", "--redis-url", redis_url),
        ("KAFKA_BOOTSTRAP_SERVERS", "--kafka", kafka),
    ):
        if environment.get(PREFIX + name) and not chosen:
            yield f"{PREFIX}{name} is set, but an embedded server is used. To use your own server, add {option}."
