"""Secrets from files: every secret has one, what is wrong is named, and no message shows a part of a secret."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from leadview.redis.access import Login, access
from schemas.secret_files import current, read, secret_fields
from schemas.settings import (
    PROCESSES,
    ApiSettings,
    ProjectorSettings,
    RedisSettings,
    SettingsError,
    effective,
    load,
    secrets,
    variable,
)

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
    ("content", "said"),
    [
        pytest.param(None, "the file cannot be read (No such file or directory)", id="missing"),
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"\n", "the file is empty", id="a newline alone"),
        pytest.param(b"QxZv\xff", "the file is not UTF-8 text", id="not UTF-8"),
        pytest.param(b"QxZv" * 100_000, "the file is larger than 65536 bytes", id="another file"),
    ],
)
def test_a_file_without_a_secret_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        load(ApiSettings, {"LEADVIEW_REDIS_PASSWORD_FILE": str(file)})
    assert f"LEADVIEW_REDIS_PASSWORD_FILE={str(file)!r} is not valid: {said}" in str(error.value)
    assert "QxZv" not in str(error.value)


def test_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"LEADVIEW_REDIS_PASSWORD_FILE=.* \(Is a directory\)"):
        load(ApiSettings, {"LEADVIEW_REDIS_PASSWORD_FILE": str(tmp_path)})


def test_only_one_newline_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b" a\r \n\n")
    assert read(str(file)) == " a\r \n"


def test_a_url_in_a_file_that_is_not_one(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"http://u:{SECRET}@h")
    with pytest.raises(SettingsError, match=r"LEADVIEW_REDIS_URL_FILE=.* is not valid: it begins with") as error:
        load(ApiSettings, {"LEADVIEW_REDIS_URL_FILE": str(file)})
    assert SECRET not in str(error.value)


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
            {"OAUTH_TOKEN_PROVIDER": "tests.harness.token_function:token", "OAUTH_CLIENT_ID": "c"},
            "LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER is set, so LEADVIEW_KAFKA_OAUTH_CLIENT_ID must not be set.",
            id="both",
        ),
        pytest.param({"OAUTH_TOKEN_PROVIDER": "token"}, "write module:function", id="no module"),
        pytest.param(
            {"OAUTH_TOKEN_PROVIDER": "nothing.here:token"}, "(No module named 'nothing')", id="another module"
        ),
        pytest.param(
            {"OAUTH_TOKEN_PROVIDER": "tests.harness.token_function:none"}, "has no attribute 'none'", id="no function"
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
