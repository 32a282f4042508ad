"""Where Redis is and how to log in, from the settings; and how commands are packed."""

import ssl
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leadview.redis.access import Address, access
from leadview.redis.connection import pack, pack_bytes
from leadview.redis.errors import AddressError
from schemas.redis_url import Host, RedisUrl, redis_url
from schemas.settings import RedisSettings
from tests.harness import certificates


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
def test_urls_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        redis_url(text)


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


@pytest.mark.parametrize(
    ("settings", "kind", "hosts", "master"),
    [
        pytest.param(RedisSettings(redis_url="redis://r/2"), "server", (("r", 6379),), "", id="one server"),
        pytest.param(
            RedisSettings(redis_url="rediss+sentinel://a:1,b/crm", redis_password="p"),
            "sentinel",
            (("a", 1), ("b", 26379)),
            "crm",
            id="Sentinels",
        ),
        pytest.param(
            RedisSettings(redis_url="redis+cluster://a,b"), "cluster", (("a", 6379), ("b", 6379)), "", id="a cluster"
        ),
    ],
)
def test_access(settings: RedisSettings, kind: str, hosts: tuple[Host, ...], master: str) -> None:
    found = access(settings)
    assert (found.kind, found.hosts, found.master) == (kind, hosts, master)
    assert found.server(("m", 1)).must_be_master == (kind == "sentinel")


def test_tls_files(tmp_path: Path) -> None:
    """They are of no use, and not read, if the connection is not encrypted."""
    certificate, key = map(str, certificates.create(tmp_path))
    settings = RedisSettings(
        redis_url="rediss://r", redis_tls_ca_file=certificate, redis_tls_cert_file=certificate, redis_tls_key_file=key
    )
    assert access(settings).tls == {"ssl_ca_certs": certificate, "ssl_certfile": certificate, "ssl_keyfile": key}
    assert access(RedisSettings(redis_url="redis://r", redis_tls_ca_file="/nothing")).tls is None


def test_tls() -> None:
    secure, insecure = (
        address(RedisSettings(redis_url=f"rediss://:secret@r:7{options}")) for options in ("", "?ssl_cert_reqs=none")
    )
    tls, without_check = secure.ssl_context(), insecure.ssl_context()
    assert tls is not None
    assert without_check is not None
    assert (tls.verify_mode, tls.check_hostname, without_check.verify_mode) == (ssl.CERT_REQUIRED, True, ssl.CERT_NONE)
    assert "secret" not in repr(secure)


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
        pytest.param(RedisSettings(redis_url="http://secret@r"), "it begins with", id="an invalid URL is not shown"),
    ],
)
def test_refused(settings: RedisSettings, named: str) -> None:
    with pytest.raises(AddressError, match=named) as raised:
        address(settings)
    assert "secret" not in str(raised.value)


@given(st.lists(st.binary(max_size=40), min_size=1))
@example([b"SET", *(b"x" * length for length in (0, 9, 10, 4095, 4096, 1_048_576))])
def test_it_packs_as_hiredis_does(words: list[bytes]) -> None:
    assert pack_bytes(words) == pack((*words,))
