"""The address of Redis, from the settings."""

import ssl

import pytest

from api.errors import AddressError
from api.redis.address import Address, address
from schemas.settings import ApiSettings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(ApiSettings(), Address("127.0.0.1", 6379, 0), id="default"),
        pytest.param(ApiSettings(redis_url="redis://r"), Address("r"), id="host alone"),
        pytest.param(ApiSettings(redis_url="redis://r:7/2"), Address("r", 7, 2), id="port and database"),
        pytest.param(ApiSettings(redis_url="redis://r?db=3"), Address("r", 6379, 3), id="database as option"),
        pytest.param(ApiSettings(redis_url="redis://[::1]:7"), Address("::1", 7), id="IPv6"),
        pytest.param(ApiSettings(redis_url="redis://u:p%40@r"), Address("r", username="u", password="p@"), id="user"),
        pytest.param(
            ApiSettings(redis_url="redis://u:p@r", redis_username="v", redis_password="q"),
            Address("r", username="v", password="q"),
            id="settings win over the URL",
        ),
    ],
)
def test_address(settings: ApiSettings, expected: Address) -> None:
    assert address(settings) == expected


def test_tls() -> None:
    tls = address(ApiSettings(redis_url="rediss://r:7")).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_tls_options_of_the_url() -> None:
    tls = address(ApiSettings(redis_url="rediss://r:7?ssl_cert_reqs=none")).tls
    assert tls is not None
    assert tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param(ApiSettings(redis_url="redis://r?socket_timeout=1"), "socket_timeout", id="unknown option"),
        pytest.param(ApiSettings(redis_url="redis://r?tls=x"), "tls", id="an attribute that is not an option"),
        pytest.param(ApiSettings(redis_url="redis://r?ssl_ca_certs=x"), "ssl_ca_certs", id="TLS without rediss"),
        pytest.param(ApiSettings(redis_url="rediss://r?ssl_nonsense=x"), "ssl_nonsense", id="unknown TLS option"),
        pytest.param(
            ApiSettings(redis_url="rediss://r", redis_tls_ca_file="/nothing"), "LEADVIEW_REDIS_TLS", id="no file"
        ),
        pytest.param(ApiSettings(redis_url="redis://r?db=x"), "LEADVIEW_REDIS_URL", id="not a number"),
        pytest.param(ApiSettings(redis_url="redis://r/leads"), "LEADVIEW_REDIS_URL", id="a name as database"),
        pytest.param(ApiSettings(redis_url="redis://r:99999"), "LEADVIEW_REDIS_URL", id="not a port"),
    ],
)
def test_refused(settings: ApiSettings, named: str) -> None:
    with pytest.raises(AddressError, match=named):
        address(settings)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(Address("r", password="secret"))
