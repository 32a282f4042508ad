"""Tokens from a token endpoint over TLS: what is asked, how long a token is used, and what is said if there is none."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from projector.kafka.sign_in import Tokens, TokenUnavailable, ask_endpoint, tokens
from schemas.settings import ProjectorSettings
from tests.harness import certificates
from tests.harness.certificates import Certificate
from tests.harness.token_server import TokenServer, token_server

SECRET = "the-secret"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.create(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def identity(certificate: Certificate, tmp_path: Path) -> Iterator[TokenServer]:
    with token_server(certificate, tmp_path) as identity:
        yield identity


@pytest.fixture
def settings(identity: TokenServer, certificate: Certificate) -> ProjectorSettings:
    return ProjectorSettings(
        kafka_oauth_token_url=identity.url,
        kafka_oauth_client_id=identity.client_id,
        kafka_oauth_client_secret=SECRET,
        kafka_oauth_ca_file=str(certificate.certificate),
    )


def test_a_token_is_asked_for_with_the_credentials_of_the_client(
    identity: TokenServer, settings: ProjectorSettings
) -> None:
    before = time.time()
    token, expires_at = ask_endpoint(settings)
    assert token == identity.issued[-1]
    assert before + 3600 <= expires_at <= time.time() + 3600
    assert identity.asked == [{"grant_type": ["client_credentials"]}]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param((401, b'{"error": "invalid_client"}'), "(HTTP 401, invalid_client): correct", id="client"),
        pytest.param(
            (400, b'{"error": "invalid_scope"}'), "invalid_scope): correct LEADVIEW_KAFKA_OAUTH_SCOPE", id="scope"
        ),
        pytest.param(
            (401, b"no"), "refuses this client (HTTP 401): correct LEADVIEW_KAFKA_OAUTH_CLIENT_ID", id="no JSON"
        ),
        pytest.param((500, b""), "does not answer with a token (HTTP 500)", id="broken"),
        pytest.param((400, b'{"error": "the-secret is wrong"}'), "(HTTP 400)", id="a code that is not one"),
        pytest.param((302, b""), "does not answer with a token (HTTP 302)", id="a redirect is not followed"),
        pytest.param(
            (200, b"<html>"), "does not answer with a token: correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL", id="HTML"
        ),
        pytest.param((200, b'{"token": "the-secret"}'), "does not answer with a token: correct", id="another object"),
    ],
)
def test_what_is_said_without_a_token(
    identity: TokenServer, settings: ProjectorSettings, answer: tuple[int, bytes], said: str
) -> None:
    identity.answer = answer
    with pytest.raises(TokenUnavailable) as error:
        ask_endpoint(settings)
    assert f"{identity.url} " in str(error.value)
    assert said in str(error.value)
    assert SECRET not in str(error.value)


def test_what_is_said_without_a_connection(settings: ProjectorSettings) -> None:
    with pytest.raises(
        TokenUnavailable, match=r"certificate of https://.* is not accepted .*LEADVIEW_KAFKA_OAUTH_CA_FILE"
    ):
        ask_endpoint(replace(settings, kafka_oauth_ca_file=None))
    with pytest.raises(TokenUnavailable, match=r"cannot be reached .*refused.*LEADVIEW_KAFKA_OAUTH_TOKEN_URL"):
        ask_endpoint(replace(settings, kafka_oauth_token_url="https://127.0.0.1:1/token"))


async def test_a_token_is_used_until_it_is_old_or_refused(identity: TokenServer, settings: ProjectorSettings) -> None:
    found = tokens(settings)
    assert tokens(replace(settings)) is found, "all clients of a process use the same token"
    first = await found.token()
    assert await found.token() == first
    found.forget()
    identity.lifetime = 0.0
    assert await found.token() != first
    assert await found.token() == identity.issued[2], "a token that does not say how long it is valid is used once"


async def test_the_present_token_is_used_while_there_is_no_new_one() -> None:
    answers: list[tuple[str, float] | TokenUnavailable] = []

    def fetch() -> tuple[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, TokenUnavailable):
            raise answer
        return answer

    found = Tokens(fetch)
    # It has to be replaced at once, and is valid for long.
    answers += [("present", time.time() + 3600), TokenUnavailable("away"), ("next", time.time() - 1)]
    assert await found.token() == "present"
    found._token = found._token._replace(renewed_at=0.0) if found._token else None
    assert await found.token() == "present"
    assert await found.token() == "next"
    answers += [TokenUnavailable("away"), ("two\r\nlines", time.time() + 3600)]
    for said in ("away", "characters that no token may have"):
        with pytest.raises(TokenUnavailable, match=said):
            await found.token()


async def test_a_function_that_fails_is_named_without_its_message() -> None:
    name = "tests.harness.token_function:broken"
    with pytest.raises(TokenUnavailable) as error:
        await tokens(ProjectorSettings(kafka_oauth_token_provider=name)).token()
    assert f"({name}) returned no token for Kafka (RuntimeError)" in str(error.value)
    assert SECRET not in str(error.value)
