"""All settings of Redis together."""

import pytest

from schemas.redis_access import RedisAccess, redis_access
from schemas.settings import RedisSettings

ONE = (("r", 6379),)


def with_files(url: str) -> RedisSettings:
    return RedisSettings(redis_url=url, redis_tls_ca_file="ca", redis_tls_cert_file="cert", redis_tls_key_file="key")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(
            RedisSettings(redis_url="redis://u:p@r/2"),
            RedisAccess("server", ONE, "", "redis://u:p@r/2", False, {}, {}),
            id="a URL alone",
        ),
        pytest.param(
            RedisSettings(redis_url="redis://u:p@r", redis_username="v", redis_password="q"),
            RedisAccess("server", ONE, "", "redis://u:p@r", False, {"username": "v", "password": "q"}, {}),
            id="another user than in the URL",
        ),
        pytest.param(
            with_files("rediss://r"),
            RedisAccess(
                "server",
                ONE,
                "",
                "rediss://r",
                True,
                {"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key"},
                {},
            ),
            id="TLS files",
        ),
        pytest.param(
            with_files("redis://r"),
            RedisAccess("server", ONE, "", "redis://r", False, {}, {}),
            id="TLS files of a connection that is not encrypted",
        ),
        pytest.param(
            RedisSettings(
                redis_url="rediss+sentinel://a:1,b/crm",
                redis_password="p",
                redis_sentinel_username="s",
                redis_sentinel_password="t",
            ),
            RedisAccess(
                "sentinel",
                (("a", 1), ("b", 26379)),
                "crm",
                "rediss://a:1",
                True,
                {"password": "p"},
                {"username": "s", "password": "t"},
            ),
            id="Sentinels have users of their own",
        ),
        pytest.param(
            RedisSettings(redis_url="redis+cluster://a,b"),
            RedisAccess("cluster", (("a", 6379), ("b", 6379)), "", "redis://a", False, {}, {}),
            id="a cluster",
        ),
    ],
)
def test_access(settings: RedisSettings, expected: RedisAccess) -> None:
    assert redis_access(settings) == expected


def test_an_invalid_url_is_not_shown() -> None:
    with pytest.raises(ValueError, match="it begins with") as raised:
        redis_access(RedisSettings(redis_url="http://secret@r"))
    assert "secret" not in str(raised.value)
