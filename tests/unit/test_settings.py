"""Settings: what is read, what stops the start and how it is named, and that no secret is ever shown. Every secret may
come from a file. Where Redis is and how to log in, which follows from them; and how commands are packed.
"""

import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.redis.access import Address, Login, access
from runtime.redis.connection import pack, pack_bytes
from runtime.redis.errors import AddressError
from schemas.redis_url import Host, RedisUrl, redis_url
from schemas.secret_files import current, read, secret_fields
from schemas.settings import (
    PROCESSES,
    ApiSettings,
    Limit,
    ProjectorSettings,
    RedisSettings,
    SettingsError,
    effective,
    limit,
    load,
    secrets,
    variable,
)
from tests.harness import certificates


def refused(process: type[RedisSettings], environment: dict[str, str]) -> str:
    """Returns why a process with this environment does not start."""
    with pytest.raises(SettingsError) as error:
        load(process, environment)
    return str(error.value)


@pytest.mark.parametrize(
    ("process", "environment"),
    [
        *(pytest.param(process, {"PATH": "/bin"}, id=f"nothing, {process.__name__}") for process in PROCESSES),
        pytest.param(
            ApiSettings, {"LEADVIEW_GROUP_ID": "other", "LEADVIEW_TEST_ANYTHING": "1"}, id="settings of others"
        ),
    ],
)
def test_environment_without_its_settings_gives_the_defaults(
    process: type[RedisSettings], environment: dict[str, str]
) -> None:
    assert load(process, environment) == process()


@pytest.mark.parametrize(
    ("process", "name", "text", "expected"),
    [
        pytest.param(ApiSettings, "API_PORT", "8080", 8080, id="integer"),
        pytest.param(ApiSettings, "API_REDIS_TIMEOUT", "1", 1.0, id="whole float"),
        pytest.param(ApiSettings, "API_REDIS_TIMEOUT", "0.25", 0.25, id="float"),
        pytest.param(ApiSettings, "KEY_RATE_LIMIT", "5/1m", "5/1m", id="rate limit"),
        pytest.param(ApiSettings, "REDIS_URL", "rediss://h:1/2", "rediss://h:1/2", id="redis over TLS"),
        pytest.param(ApiSettings, "METRICS_PORT", "9100", 9100, id="optional"),
        pytest.param(ApiSettings, "API_PORT", "", 8000, id="empty is not set"),
        pytest.param(ApiSettings, "LOG_LEVEL", "debug", "debug", id="one of several"),
        pytest.param(ProjectorSettings, "REDIS_PASSWORD", "123", "123", id="text of digits"),
        pytest.param(ProjectorSettings, "KAFKA_SASL_PASSWORD", "null", "null", id="text that looks like null"),
        pytest.param(ProjectorSettings, "TOPIC_PREFIX", "eu.crm.", "eu.crm.", id="text"),
        *(
            pytest.param(ProjectorSettings, "KAFKA_BOOTSTRAP_SERVERS", text, text, id=f"brokers: {text}")
            for text in ("h", "h:9092", "a:1,b:2", "a:1, b:2", "[::1]:9092", "10.0.0.1:9092")
        ),
    ],
)
def test_value_is_read(process: type[RedisSettings], name: str, text: str, expected: object) -> None:
    assert getattr(load(process, {f"LEADVIEW_{name}": text}), name.lower()) == expected


@pytest.mark.parametrize(
    ("process", "environment", "named"),
    [
        pytest.param(ApiSettings, {"API_PORT": "70000"}, ["LEADVIEW_API_PORT='70000'", "<= 65535"], id="too large"),
        pytest.param(ApiSettings, {"API_PORT": "0"}, ["LEADVIEW_API_PORT='0'"], id="too small"),
        pytest.param(ApiSettings, {"API_PORT": "http"}, ["LEADVIEW_API_PORT='http'", "int"], id="no number"),
        pytest.param(ApiSettings, {"API_WORKERS": "0"}, ["LEADVIEW_API_WORKERS"], id="no worker"),
        pytest.param(
            ApiSettings, {"API_REDIS_TIMEOUT": "nan"}, ["LEADVIEW_API_REDIS_TIMEOUT"], id="not a number at all"
        ),
        pytest.param(
            ApiSettings,
            {"LOG_LEVEL": "loud"},
            ["LEADVIEW_LOG_LEVEL='loud'", "debug, info, warning, error"],
            id="none of several",
        ),
        pytest.param(
            ApiSettings, {"KEY_RATE_LIMIT": "fast"}, ["LEADVIEW_KEY_RATE_LIMIT='fast'", "100/10s"], id="rate limit"
        ),
        pytest.param(
            ApiSettings, {"DOCS_URL": "docs.example"}, ["LEADVIEW_DOCS_URL='docs.example'", "https://"], id="no scheme"
        ),
        pytest.param(
            ApiSettings, {"REDIS_URL": "http://h"}, ["LEADVIEW_REDIS_URL='http://h'", "redis://"], id="scheme"
        ),
        pytest.param(
            ApiSettings, {"REDIS_URL": "redis://[::1"}, ["LEADVIEW_REDIS_URL", "invalid host or port"], id="broken URL"
        ),
        pytest.param(
            ApiSettings,
            {"REDIS_URL": "redis://h:99999"},
            ["LEADVIEW_REDIS_URL", "invalid host or port"],
            id="port of a URL",
        ),
        pytest.param(ApiSettings, {"REDIS_URL": "redis://h:0"}, ["LEADVIEW_REDIS_URL", "65535"], id="port 0 of a URL"),
        pytest.param(
            ApiSettings, {"API_PROT": "1"}, ["LEADVIEW_API_PROT", "did you mean LEADVIEW_API_PORT?"], id="typing error"
        ),
        pytest.param(ApiSettings, {"QQQQQQQQQQQQ": "1"}, ["LEADVIEW_QQQQQQQQQQQQ", "docs/settings.md"], id="unknown"),
        pytest.param(ApiSettings, {"API_PROT": ""}, ["LEADVIEW_API_PROT"], id="unknown and empty"),
        pytest.param(ApiSettings, {"api_port": "1"}, ["LEADVIEW_api_port"], id="lower case"),
        pytest.param(
            ApiSettings,
            {"QQQQQQQQQQQQ": "1", "API_PORT": "a", "LOG_LEVEL": "b"},
            ["LEADVIEW_QQQQQQQQQQQQ", "LEADVIEW_API_PORT", "LEADVIEW_LOG_LEVEL"],
            id="all at once",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_BOOTSTRAP_SERVERS": "a:b"},
            ["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS='a:b'", "host:port"],
            id="port",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_BOOTSTRAP_SERVERS": "a:1,,b:2"},
            ["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"],
            id="no host",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_BOOTSTRAP_SERVERS": "kafka://a:1"},
            ["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"],
            id="a URL",
        ),
        pytest.param(
            ProjectorSettings, {"KAFKA_BOOTSTRAP_SERVERS": "a:0"}, ["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"], id="port 0"
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_SECURITY_PROTOCOL": "TLS"},
            ["PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"],
            id="protocol",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL"},
            ["LEADVIEW_KAFKA_SASL_USERNAME and LEADVIEW_KAFKA_SASL_PASSWORD"],
            id="SASL without a user",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "KAFKA_SASL_USERNAME": "u"},
            ["SASL_PLAINTEXT needs LEADVIEW_KAFKA_SASL_PASSWORD as well"],
            id="SASL without a password",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_SSL_CA_FILE": "/nothing"},
            ["LEADVIEW_KAFKA_SSL_CA_FILE='/nothing'", "No such file"],
            id="no CA file",
        ),
        pytest.param(
            ProjectorSettings, {"KAFKA_SSL_CA_FILE": __file__}, ["LEADVIEW_KAFKA_SSL_CA_FILE", "PEM"], id="no PEM file"
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_SSL_CERT_FILE": __file__, "KAFKA_SSL_KEY_FILE": __file__},
            ["LEADVIEW_KAFKA_SSL_CERT_FILE and LEADVIEW_KAFKA_SSL_KEY_FILE"],
            id="no certificate",
        ),
        pytest.param(
            ProjectorSettings,
            {"KAFKA_SSL_KEY_FILE": __file__},
            ["without LEADVIEW_KAFKA_SSL_CERT_FILE"],
            id="a key alone",
        ),
        *(
            pytest.param(
                process,
                {"REDIS_TLS_CA_FILE": "/nothing"},
                ["LEADVIEW_REDIS_TLS_CA_FILE='/nothing' is not valid: the file cannot be"],
                id=f"no CA of Redis, {process.__name__}",
            )
            for process in PROCESSES
        ),
    ],
)
def test_what_is_bad_or_unknown_is_named(
    process: type[RedisSettings], environment: dict[str, str], named: list[str]
) -> None:
    """Also what would end in a traceback later."""
    said = refused(process, {f"LEADVIEW_{name}": text for name, text in environment.items()})
    assert [part for part in named if part not in said] == []


PARTS = ("Qx", "Zv", "Jk", "Wy")
HARD_SECRET = "Qx/Zv:Jk@Wy"


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"REDIS_PASSWORD": HARD_SECRET}, id="Redis password"),
        pytest.param({"KAFKA_SASL_PASSWORD": HARD_SECRET}, id="Kafka password"),
        pytest.param({"REDIS_URL": "redis://:Qx%2FZv:Jk@h:6379/0"}, id="URL"),
        pytest.param({"REDIS_URL": "rediss://user:Qx%2FZv:Jk@h"}, id="URL with a user"),
        pytest.param({"REDIS_URL": f"redis://h/0?password={HARD_SECRET}&x=1"}, id="query"),
    ],
)
def test_secret_is_never_shown(environment: dict[str, str]) -> None:
    settings = load(ProjectorSettings, {f"LEADVIEW_{name}": text for name, text in environment.items()})
    assert [part for part in ("***", *PARTS) if part in str(effective(settings))] == ["***"]


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"http://u:{HARD_SECRET}@h", id="another scheme"),
        pytest.param(f"u:{HARD_SECRET}@h", id="no scheme"),
        pytest.param(f"redis://u:{HARD_SECRET}@h", id="not escaped"),
        pytest.param("redis://u:Qx@[::1", id="broken host"),
        pytest.param("redis://u:Qx℀@h", id="refused by urlsplit, with the password in its message"),
        pytest.param(f"http://h/?password={HARD_SECRET}", id="query"),
    ],
)
def test_secret_is_not_shown_in_an_error(url: str) -> None:
    said = refused(ApiSettings, {"LEADVIEW_REDIS_URL": url})
    assert not any(part in said for part in PARTS)


@pytest.mark.parametrize("url", ["redis://h:6379/0", "redis://[::1]:6379/0", "rediss://user@h", "redis://h?db=1"])
def test_url_without_a_secret_is_shown_whole(url: str) -> None:
    assert effective(RedisSettings(redis_url=url))["LEADVIEW_REDIS_URL"] == url


@pytest.mark.parametrize("process", PROCESSES)
def test_everything_in_force_is_shown(process: type[RedisSettings]) -> None:
    assert effective(process()).keys() == {variable(field) for field in process.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("100/10s", Limit(100, 10), id="seconds"),
        pytest.param("1000/1m", Limit(1000, 60), id="minutes"),
        pytest.param("5000/2h", Limit(5000, 7200), id="hours"),
        pytest.param("1/1s", Limit(1, 1), id="smallest"),
        pytest.param("999999999/1s", Limit(999_999_999, 1), id="largest quota"),
    ],
)
def test_text_of_a_limit_is_parsed(text: str, expected: Limit) -> None:
    assert limit(text) == expected


@pytest.mark.parametrize(
    "text", ["", "100", "100/10", "0/10s", "100/0s", "-1/1s", "1.5/1s", "100/10d", " 1/1s", "1/1s\n", "1/1S", "100/s"]
)
def test_bad_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="100/10s"):
        limit(text)


@given(st.text())
def test_any_redis_url_is_read_or_named(text: str) -> None:
    try:
        load(ApiSettings, {"LEADVIEW_REDIS_URL": text})
    except SettingsError as error:
        assert str(error).startswith("LEADVIEW_REDIS_URL=")  # noqa: PT017 - both ends are fine


SECRETS = sorted({(process, field) for process in PROCESSES for field in secret_fields(process)}, key=str)
SECRET = "QxZv-JkWy"


def value_of(field: str) -> str:
    return f"redis://user:{SECRET}@h" if field == "redis_url" else SECRET


def test_all_secrets_are_known() -> None:
    """A setting with such a name is a secret, or the name of a file."""
    for process in PROCESSES:
        named = {field for field in process.__struct_fields__ if field.endswith(("password", "secret", "url"))}
        assert named - {"kafka_oauth_token_url", "docs_url"} == secret_fields(process)


@pytest.mark.parametrize(("process", "field"), SECRETS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_every_secret_comes_from_a_file(process: type[RedisSettings], field: str, end: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(f"{value_of(field)}{end}".encode())
    settings = load(process, {f"{variable(field)}_FILE": str(file)})
    shown = effective(settings)
    assert (getattr(settings, field), shown[f"{variable(field)}_FILE"]) == (value_of(field), str(file))
    assert SECRET not in str(shown)
    file.write_text(value_of(field).replace("Qx", "Ab"))
    assert current(settings, field) == value_of(field).replace("Qx", "Ab")
    assert secrets(settings) == {SECRET, SECRET.replace("Qx", "Ab")}
    file.unlink()
    assert current(settings, field) == value_of(field)


@pytest.mark.parametrize(("process", "field"), SECRETS)
def test_setting_given_as_value_and_as_file_is_refused(
    process: type[RedisSettings], field: str, tmp_path: Path
) -> None:
    name = variable(field)
    said = refused(process, {name: value_of(field), f"{name}_FILE": str(tmp_path / "secret")})
    assert said == f"{name} and {name}_FILE are both set: set only one of them."


@pytest.mark.parametrize(
    ("setting", "name", "content", "said"),
    [
        pytest.param(
            "REDIS_PASSWORD", "missing", b"", "the file cannot be read (No such file or directory)", id="missing"
        ),
        pytest.param("REDIS_PASSWORD", "", b"", "the file cannot be read (Is a directory)", id="a directory"),
        pytest.param("REDIS_PASSWORD", "secret", b"", "the file is empty", id="empty"),
        pytest.param("REDIS_PASSWORD", "secret", b"\n", "the file is empty", id="a newline alone"),
        pytest.param("REDIS_PASSWORD", "secret", b"QxZv\xff", "the file is not UTF-8 text", id="not UTF-8"),
        pytest.param(
            "REDIS_PASSWORD", "secret", b"QxZv" * 100_000, "the file is larger than 65536 bytes", id="another file"
        ),
        pytest.param("REDIS_URL", "secret", b"http://u:QxZv@h", "it begins with", id="no URL of Redis"),
    ],
)
def test_file_without_a_secret_is_named(setting: str, name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(content)
    file = str(tmp_path / name)
    found = refused(ApiSettings, {f"LEADVIEW_{setting}_FILE": file})
    assert f"LEADVIEW_{setting}_FILE={file!r} is not valid: {said}" in found
    assert "QxZv" not in found


def test_only_one_newline_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b" a\r \n\n")
    assert read(str(file)) == " a\r \n"


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        pytest.param("redis://h", {}, (), id="nobody"),
        pytest.param("redis://u:p%40@h", {}, ("u", "p@"), id="user and password"),
        pytest.param("redis://:p@h", {}, ("p",), id="password alone"),
        pytest.param("redis://h?username=u&password=p%40", {}, ("u", "p@"), id="options"),
        pytest.param("redis://u@h", {}, ("u", ""), id="user without a password"),
        pytest.param("redis://u:@h", {}, ("u", ""), id="user with an empty password"),
        pytest.param("redis://h?username=u", {}, ("u", ""), id="user as option, without a password"),
        pytest.param("redis://h", {"redis_username": "u"}, ("u", ""), id="user of the settings, without a password"),
        pytest.param("redis+cluster://u@a,b", {}, ("u", ""), id="cluster, user without a password"),
        pytest.param("redis://default@h", {}, ("default", ""), id="the default user, named"),
        pytest.param("redis+cluster://u:p@a,b", {}, ("u", "p"), id="cluster"),
        pytest.param("redis://u:p@h", {"redis_username": "v"}, ("v", "p"), id="another user"),
        pytest.param("redis://u:p@h", {"redis_password": "q"}, ("u", "q"), id="another password"),
        pytest.param("not a URL", {}, ("first",), id="as at the start while the file holds nothing valid"),
    ],
)
def test_login_to_redis_follows_from_the_settings(
    url: str, settings: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "url"
    loaded = RedisSettings(redis_url="redis://:first@h", redis_url_file=str(file), **settings)
    file.write_text(url)
    assert access(loaded).login.get_credentials() == words


def test_login_to_sentinels_has_its_own_settings(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p\n")
    settings = RedisSettings(redis_sentinel_username="s", redis_sentinel_password_file=str(file))
    assert Login(settings, of_sentinels=True).get_credentials() == ("s", "p")
    assert Login(RedisSettings(redis_sentinel_username="s"), of_sentinels=True).get_credentials() == ("s", "")
    assert Login(RedisSettings(redis_url="redis://u:p@h"), of_sentinels=True).get_credentials() == ()


NO_TLS = "LEADVIEW_REDIS_URL does not begin with rediss, and nothing is encrypted, so {} must not be set"
NO_KAFKA_TLS = "LEADVIEW_KAFKA_SECURITY_PROTOCOL={} encrypts nothing, so LEADVIEW_KAFKA_SSL_CA_FILE must not be set"
NO_SASL = "LEADVIEW_KAFKA_SECURITY_PROTOCOL=SSL signs nobody in, so {} must not be set"
OTHER_MECHANISM = "LEADVIEW_KAFKA_SASL_MECHANISM={} has no use for it, so {} must not be set"
USER_AND_PASSWORD = "LEADVIEW_KAFKA_SASL_USERNAME and LEADVIEW_KAFKA_SASL_PASSWORD"
SIGNED_IN = {"KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "KAFKA_SASL_USERNAME": "u", "KAFKA_SASL_PASSWORD": "p"}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        *(
            pytest.param(
                {"REDIS_URL": url, "REDIS_TLS_CA_FILE": "ca"},
                NO_TLS.format("LEADVIEW_REDIS_TLS_CA_FILE"),
                id=f"CA, {url}",
            )
            for url in ("redis://h", "redis+sentinel://h/crm", "redis+cluster://h", "")
        ),
        pytest.param(
            {"REDIS_TLS_CERT_FILE": "ca", "REDIS_TLS_KEY_FILE": "key"},
            NO_TLS.format("LEADVIEW_REDIS_TLS_CERT_FILE and LEADVIEW_REDIS_TLS_KEY_FILE"),
            id="a client certificate for Redis without TLS",
        ),
        pytest.param(
            {"REDIS_URL": "rediss://h", "REDIS_TLS_CERT_FILE": "ca"},
            "LEADVIEW_REDIS_TLS_CERT_FILE and LEADVIEW_REDIS_TLS_KEY_FILE are not valid",
            id="a certificate without a key",
        ),
        pytest.param(
            {"REDIS_URL": "rediss://h", "REDIS_TLS_CA_FILE": "empty"},
            "it is not a PEM file with certificates",
            id="an empty CA file",
        ),
        pytest.param(
            {"REDIS_URL": "rediss://h", "REDIS_TLS_CA_FILE": "key"},
            "it is not a PEM file with certificates",
            id="a key as CA file",
        ),
        pytest.param(
            {"KAFKA_SSL_CA_FILE": "ca"},
            NO_KAFKA_TLS.format("PLAINTEXT"),
            id="a CA of Kafka without TLS",
        ),
        pytest.param(
            SIGNED_IN | {"KAFKA_SSL_CA_FILE": "ca"},
            NO_KAFKA_TLS.format("SASL_PLAINTEXT"),
            id="a CA of Kafka with SASL and without TLS",
        ),
        pytest.param(
            SIGNED_IN | {"KAFKA_SECURITY_PROTOCOL": "SSL"},
            NO_SASL.format(USER_AND_PASSWORD),
            id="a user of Kafka without SASL",
        ),
        pytest.param(
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SASL_MECHANISM": "PLAIN"},
            NO_SASL.format("LEADVIEW_KAFKA_SASL_MECHANISM"),
            id="a mechanism without SASL",
        ),
        pytest.param(
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_OAUTH_SCOPE": "s"},
            NO_SASL.format("LEADVIEW_KAFKA_OAUTH_SCOPE"),
            id="tokens without SASL",
        ),
        pytest.param(
            SIGNED_IN | {"KAFKA_OAUTH_CLIENT_ID": "c"},
            OTHER_MECHANISM.format("PLAIN", "LEADVIEW_KAFKA_OAUTH_CLIENT_ID"),
            id="tokens with another mechanism",
        ),
        pytest.param(
            SIGNED_IN
            | {"KAFKA_SASL_MECHANISM": "OAUTHBEARER", "KAFKA_OAUTH_TOKEN_PROVIDER": "tests.harness.projectors:token"},
            OTHER_MECHANISM.format("OAUTHBEARER", USER_AND_PASSWORD),
            id="a user with tokens",
        ),
        pytest.param(
            {"REDIS_PASSWORD": "p", "REDIS_USERNAME": "", "REDIS_URL": "redis://h"}, "", id="a password alone"
        ),
        pytest.param(SIGNED_IN, "", id="signed in"),
        pytest.param({"REDIS_URL": "rediss://h", "REDIS_TLS_CA_FILE": "ca"}, "", id="a CA with TLS"),
        pytest.param({"REDIS_URL_FILE": "url", "REDIS_TLS_CA_FILE": "ca"}, "", id="a CA with TLS in a file"),
    ],
)
def test_nothing_that_protects_a_connection_is_silently_without_effect(
    environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    certificate, key = certificates.create(tmp_path)
    files = {"ca": certificate, "key": key, "empty": tmp_path / "empty", "url": tmp_path / "url"}
    files["empty"].write_bytes(b"")
    files["url"].write_text("rediss://h/0\n")
    given = {f"LEADVIEW_{name}": str(files.get(text, text)) for name, text in environment.items()}
    if not said:
        load(ProjectorSettings, given)
        return
    assert said in refused(ProjectorSettings, given)


BEARER = {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        pytest.param(
            {},
            "LEADVIEW_KAFKA_SASL_MECHANISM=OAUTHBEARER needs LEADVIEW_KAFKA_OAUTH_TOKEN_URL and "
            "LEADVIEW_KAFKA_OAUTH_CLIENT_ID and LEADVIEW_KAFKA_OAUTH_CLIENT_SECRET as well, or "
            "LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER.",
            id="nothing",
        ),
        pytest.param(
            {"OAUTH_TOKEN_PROVIDER": "tests.harness.projectors:token", "OAUTH_CLIENT_ID": "c"},
            "LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER is set, so LEADVIEW_KAFKA_OAUTH_CLIENT_ID must not be set.",
            id="both",
        ),
        pytest.param({"OAUTH_TOKEN_PROVIDER": "token"}, "write module:function", id="no module"),
        pytest.param(
            {"OAUTH_TOKEN_PROVIDER": "nothing.here:token"}, "(No module named 'nothing')", id="another module"
        ),
        pytest.param(
            {"OAUTH_TOKEN_PROVIDER": "tests.harness.projectors:none"}, "has no attribute 'none'", id="no function"
        ),
        pytest.param({"OAUTH_TOKEN_URL": "http://h/token"}, "write an https URL", id="without TLS"),
        pytest.param({"OAUTH_TOKEN_URL": f"https://u:{SECRET}@h/t"}, "write it without a user", id="a user in the URL"),
        pytest.param({"OAUTH_TOKEN_URL": f"https://h/t?secret={SECRET}"}, "a query", id="a query"),
        pytest.param({"OAUTH_CA_FILE": "/nothing"}, "LEADVIEW_KAFKA_OAUTH_CA_FILE='/nothing' is not valid", id="no CA"),
    ],
)
def test_sign_in_with_tokens_that_is_not_complete_is_named(environment: dict[str, str], said: str) -> None:
    found = refused(
        ProjectorSettings, {f"LEADVIEW_KAFKA_{name}": text for name, text in (BEARER | environment).items()}
    )
    assert said in found
    assert SECRET not in found


@pytest.mark.skipif(find_spec("aws_msk_iam_sasl_signer") is not None, reason="the extra msk is installed")
def test_the_module_for_msk_names_what_has_to_be_installed() -> None:
    environment = {f"LEADVIEW_KAFKA_{name}": text for name, text in BEARER.items()}
    environment["LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER"] = "projector.kafka.msk_iam:token"
    assert "install leadview[msk]" in refused(ProjectorSettings, environment)


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
def test_redis_url_is_parsed(text: str, expected: RedisUrl) -> None:
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
def test_wrong_redis_url_is_refused(text: str, said: str) -> None:
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
def test_address_follows_from_the_settings(
    settings: RedisSettings, host: str, port: int, db: int, credentials: tuple[str, ...]
) -> None:
    found = address(settings)
    assert (found.host, found.port, found.db, found.tls, found.credentials()) == (host, port, db, None, credentials)


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
def test_access_has_the_kind_and_the_hosts_of_the_url(
    settings: RedisSettings, kind: str, hosts: tuple[Host, ...], master: str
) -> None:
    found = access(settings)
    assert (found.kind, found.hosts, found.master) == (kind, hosts, master)
    assert found.server(("m", 1)).must_be_master == (kind == "sentinel")


def test_tls_files_are_read_only_for_an_encrypted_connection(tmp_path: Path) -> None:
    """They are of no use, and not read, if the connection is not encrypted."""
    certificate, key = map(str, certificates.create(tmp_path))
    settings = RedisSettings(
        redis_url="rediss://r", redis_tls_ca_file=certificate, redis_tls_cert_file=certificate, redis_tls_key_file=key
    )
    tls = access(settings).tls
    assert tls
    assert tls.options == {"ssl_ca_certs": certificate, "ssl_certfile": certificate, "ssl_keyfile": key}
    assert access(RedisSettings(redis_url="redis://r", redis_tls_ca_file="/nothing")).tls is None


def test_tls_verifies_unless_the_url_says_otherwise() -> None:
    for options, verify_mode in (("", ssl.CERT_REQUIRED), ("?ssl_cert_reqs=none", ssl.CERT_NONE)):
        found = address(RedisSettings(redis_url=f"rediss://:secret@r:7{options}"))
        tls = found.ssl_context()
        assert tls
        assert (tls.verify_mode, tls.check_hostname) == (verify_mode, not options)
        assert "secret" not in repr(found)


def test_tls_is_set_up_again_only_when_a_file_has_changed(tmp_path: Path) -> None:
    """It takes 50 ms with the certificates of a system, for which the event loop would stand still at each attempt."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        folder.mkdir()
        certificates.create(folder)
    files = tmp_path / "mounted"  # as Kubernetes mounts a Secret: a link to a directory takes the place of another one
    files.symlink_to(first)
    found = address(
        RedisSettings(
            redis_url="rediss://r",
            redis_tls_ca_file=str(files / "certificate.pem"),
            redis_tls_cert_file=str(files / "certificate.pem"),
            redis_tls_key_file=str(files / "key.pem"),
        )
    )
    before = found.ssl_context()
    assert before
    assert found.ssl_context() is before
    (tmp_path / "next").symlink_to(second)
    (tmp_path / "next").rename(files)
    after = found.ssl_context()
    assert after
    assert after is not before
    (second / "key.pem").unlink()
    with pytest.raises(AddressError, match="LEADVIEW_REDIS_TLS"):
        found.ssl_context()
    assert after.get_ca_certs() != before.get_ca_certs()


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
def test_address_that_cannot_be_used_is_refused(settings: RedisSettings, named: str) -> None:
    with pytest.raises(AddressError, match=named) as raised:
        address(settings)
    assert "secret" not in str(raised.value)


@given(st.lists(st.binary(max_size=40), min_size=1))
@example([b"SET", *(b"x" * length for length in (0, 9, 10, 4095, 4096, 1_048_576))])
def test_pack_bytes_packs_as_hiredis_does(words: list[bytes]) -> None:
    assert pack_bytes(words) == pack((*words,))
