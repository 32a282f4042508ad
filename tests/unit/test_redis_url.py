"""The forms of LEADVIEW_REDIS_URL."""

import pytest

from schemas.redis_url import RedisUrl, redis_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("redis://r:7/2", RedisUrl("server", "redis://r:7/2", (("r", 7),)), id="one server"),
        pytest.param("rediss://r", RedisUrl("server", "rediss://r", (("r", 6379),)), id="one server, TLS"),
        pytest.param("redis://", RedisUrl("server", "redis://", (("127.0.0.1", 6379),)), id="one server, no host"),
        pytest.param(
            "redis+sentinel://a,b:7/crm",
            RedisUrl("sentinel", "redis://a", (("a", 26379), ("b", 7)), "crm"),
            id="Sentinels",
        ),
        pytest.param(
            "rediss+sentinel://u:p%40@a:1/the%2Fmaster/3?ssl_cert_reqs=none",
            RedisUrl("sentinel", "rediss://u:p%40@a:1/3?ssl_cert_reqs=none", (("a", 1),), "the/master"),
            id="Sentinels with everything",
        ),
        pytest.param(
            "redis+cluster://a:1,[::1]:2",
            RedisUrl("cluster", "redis://a:1", (("a", 1), ("::1", 2))),
            id="a cluster",
        ),
        pytest.param(
            "rediss+cluster://u:p@a/0?ssl_check_hostname=false",
            RedisUrl("cluster", "rediss://u:p@a?ssl_check_hostname=false", (("a", 6379),)),
            id="a cluster with everything",
        ),
    ],
)
def test_url(text: str, expected: RedisUrl) -> None:
    assert redis_url(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("redis://a,b", r"redis\+cluster://", id="several hosts of what?"),
        pytest.param("redis+sentinel://a", "master's name", id="no master's name"),
        pytest.param("redis+sentinel:///crm", "lacks a host", id="no Sentinel"),
        pytest.param("redis+cluster://a,,b", "lacks a host", id="an empty host"),
        pytest.param("redis+cluster://a/1", "database 0", id="a database of a cluster"),
        pytest.param("redis+cluster://a:0", "65535", id="port 0"),
        pytest.param("redis+cluster://a:x", "invalid host or port", id="no port"),
        pytest.param("redis+ring://a", r"redis\+cluster://", id="another form"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        redis_url(text)
