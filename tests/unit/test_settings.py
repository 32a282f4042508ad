"""Settings: what is read, what stops the start and how it is named, and that no secret is ever shown. Every secret may
come from a file.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadview.redis.access import Login, access
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


@pytest.mark.parametrize(
    ("process", "environment"),
    [
        *(pytest.param(process, {"PATH": "/bin"}, id=f"nothing, {process.__name__}") for process in PROCESSES),
        pytest.param(
            ApiSettings, {"LEADVIEW_GROUP_ID": "other", "LEADVIEW_TEST_ANYTHING": "1"}, id="settings of others"
        ),
    ],
)
def test_an_environment_without_its_settings_gives_the_defaults(
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
def test_a_value_is_read(process: type[RedisSettings], name: str, text: str, expected: object) -> None:
    settings = load(process, {f"LEADVIEW_{name}": text})
    assert getattr(settings, name.lower()) == expected


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
        pytest.param(ApiSettings, {"XYZZY": "1"}, ["LEADVIEW_XYZZY", "docs/settings.md"], id="unknown"),
        pytest.param(ApiSettings, {"API_PROT": ""}, ["LEADVIEW_API_PROT"], id="unknown and empty"),
        pytest.param(ApiSettings, {"api_port": "1"}, ["LEADVIEW_api_port"], id="lower case"),
        pytest.param(
            ApiSettings,
            {"XYZZY": "1", "API_PORT": "a", "LOG_LEVEL": "b"},
            ["LEADVIEW_XYZZY", "LEADVIEW_API_PORT", "LEADVIEW_LOG_LEVEL"],
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
    with pytest.raises(SettingsError) as error:
        load(process, {f"LEADVIEW_{name}": text for name, text in environment.items()})
    assert [part for part in named if part not in str(error.value)] == []


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
def test_a_secret_is_never_shown(environment: dict[str, str]) -> None:
    settings = load(ProjectorSettings, {f"LEADVIEW_{name}": text for name, text in environment.items()})
    shown = effective(settings)
    assert "***" in str(shown)
    assert not any(part in str(shown) for part in PARTS)


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
def test_a_secret_is_not_shown_in_an_error(url: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(ApiSettings, {"LEADVIEW_REDIS_URL": url})
    assert not any(part in str(error.value) for part in PARTS)


@pytest.mark.parametrize("url", ["redis://h:6379/0", "redis://[::1]:6379/0", "rediss://user@h", "redis://h?db=1"])
def test_a_url_without_a_secret_is_shown_whole(url: str) -> None:
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
def test_limit(text: str, expected: Limit) -> None:
    assert limit(text) == expected


@pytest.mark.parametrize(
    "text", ["", "100", "100/10", "0/10s", "100/0s", "-1/1s", "1.5/1s", "100/10d", " 1/1s", "1/1s\n", "1/1S", "100/s"]
)
def test_a_bad_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="100/10s"):
        limit(text)


@given(st.text())
def test_any_limit_is_read_or_refused(text: str) -> None:
    try:
        found = limit(text)
    except ValueError:
        return
    assert found.quota >= 1
    assert found.window >= 1


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
    assert getattr(settings, field) == value_of(field)
    assert SECRET not in str(effective(settings))
    assert effective(settings)[f"{variable(field)}_FILE"] == str(file)
    file.write_text(value_of(field).replace("Qx", "Ab"))
    assert current(settings, field) == value_of(field).replace("Qx", "Ab")
    assert secrets(settings) == {SECRET, SECRET.replace("Qx", "Ab")}
    file.unlink()
    assert current(settings, field) == value_of(field)


@pytest.mark.parametrize(("process", "field"), SECRETS)
def test_both_is_an_error(process: type[RedisSettings], field: str, tmp_path: Path) -> None:
    name = variable(field)
    with pytest.raises(SettingsError) as error:
        load(process, {name: value_of(field), f"{name}_FILE": str(tmp_path / "secret")})
    assert str(error.value) == f"{name} and {name}_FILE are both set: set only one of them."


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
def test_a_file_without_a_secret_is_named(setting: str, name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(content)
    file = str(tmp_path / name)
    with pytest.raises(SettingsError) as error:
        load(ApiSettings, {f"LEADVIEW_{setting}_FILE": file})
    assert f"LEADVIEW_{setting}_FILE={file!r} is not valid: {said}" in str(error.value)
    assert "QxZv" not in str(error.value)


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
        pytest.param("redis+cluster://u:p@a,b", {}, ("u", "p"), id="cluster"),
        pytest.param("redis://u:p@h", {"redis_username": "v"}, ("v", "p"), id="another user"),
        pytest.param("redis://u:p@h", {"redis_password": "q"}, ("u", "q"), id="another password"),
        pytest.param("not a URL", {}, ("first",), id="as at the start while the file holds nothing valid"),
    ],
)
def test_who_logs_in_to_redis(url: str, settings: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "url"
    loaded = RedisSettings(redis_url="redis://:first@h", redis_url_file=str(file), **settings)
    file.write_text(url)
    assert access(loaded).login.get_credentials() == words


def test_who_logs_in_to_sentinels(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p\n")
    settings = RedisSettings(redis_sentinel_username="s", redis_sentinel_password_file=str(file))
    assert Login(settings, of_sentinels=True).get_credentials() == ("s", "p")


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
def test_a_sign_in_with_tokens_that_is_not_complete_is_named(environment: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(ProjectorSettings, {f"LEADVIEW_KAFKA_{name}": text for name, text in (BEARER | environment).items()})
    assert said in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.skipif(find_spec("aws_msk_iam_sasl_signer") is not None, reason="the extra msk is installed")
def test_the_module_for_msk_names_what_has_to_be_installed() -> None:
    environment = {f"LEADVIEW_KAFKA_{name}": text for name, text in BEARER.items()}
    environment["LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER"] = "projector.kafka.msk_iam:token"
    with pytest.raises(SettingsError, match=r"install leadview\[msk\]"):
        load(ProjectorSettings, environment)
