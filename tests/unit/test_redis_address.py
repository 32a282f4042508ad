"""The address of Redis, from the settings."""

import ssl

import pytest

from leadview.redis.access import Address, access
from leadview.redis.errors import AddressError
from schemas.settings import RedisSettings


def address(settings: RedisSettings) -> Address:
    found = access(settings)
    return found.server(found.hosts[0])


@pytest.mark.parametrize(
    ("settings", "host", "port", "db", "credentials"),
    [
        pytest.param(RedisSettings(), "127.0.0.1", 6379, 0, (), id="default"),
        pytest.param(RedisSettings(redis_url="redis://r"), "r", 6379, 0, (), id="host alone"),
        pytest.param(RedisSettings(redis_url="redis://r:7/2"), "r", 7, 2, (), id="port and database"),
        pytest.param(RedisSettings(redis_url="redis://r?db=3"), "r", 6379, 3, (), id="database as option"),
        pytest.param(RedisSettings(redis_url="redis://[::1]:7"), "::1", 7, 0, (), id="IPv6"),
        pytest.param(RedisSettings(redis_url="redis://u:p%40@r"), "r", 6379, 0, ("u", "p@"), id="user"),
        pytest.param(
            RedisSettings(redis_url="redis://r?password=p"), "r", 6379, 0, ("p",), id="password as option, no user"
        ),
        pytest.param(
            RedisSettings(redis_url="redis://u:p@r", redis_username="v", redis_password="q"),
            "r",
            6379,
            0,
            ("v", "q"),
            id="settings win over the URL",
        ),
    ],
)
def test_address(settings: RedisSettings, host: str, port: int, db: int, credentials: tuple[str, ...]) -> None:
    found = address(settings)
    assert (found.host, found.port, found.db, found.tls) == (host, port, db, None)
    assert found.credentials() == credentials


def test_tls() -> None:
    tls = address(RedisSettings(redis_url="rediss://r:7")).ssl_context()
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_tls_options_of_the_url() -> None:
    tls = address(RedisSettings(redis_url="rediss://r:7?ssl_cert_reqs=none")).ssl_context()
    assert tls is not None
    assert tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param(RedisSettings(redis_url="redis://r?socket_timeout=1"), "socket_timeout", id="unknown option"),
        pytest.param(RedisSettings(redis_url="redis://r?tls=x"), "tls", id="an attribute that is not an option"),
        pytest.param(RedisSettings(redis_url="redis://r?ssl_ca_certs=x"), "ssl_ca_certs", id="TLS without rediss"),
        pytest.param(RedisSettings(redis_url="rediss://r?ssl_nonsense=x"), "ssl_nonsense", id="unknown TLS option"),
        pytest.param(
            RedisSettings(redis_url="rediss://r", redis_tls_ca_file="/nothing"), "LEADVIEW_REDIS_TLS", id="no file"
        ),
        pytest.param(RedisSettings(redis_url="redis://r?db=x"), "LEADVIEW_REDIS_URL", id="not a number"),
        pytest.param(RedisSettings(redis_url="redis://r/leads"), "LEADVIEW_REDIS_URL", id="a name as database"),
        pytest.param(RedisSettings(redis_url="redis://r:99999"), "LEADVIEW_REDIS_URL", id="not a port"),
    ],
)
def test_refused(settings: RedisSettings, named: str) -> None:
    with pytest.raises(AddressError, match=named):
        address(settings)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(address(RedisSettings(redis_url="redis://:secret@r")))
