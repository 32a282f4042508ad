"""How Kafka clients sign in: SCRAM and OAUTHBEARER over TLS, to an Apache Kafka that closes every connection after some
seconds, so that no record is lost while passwords and tokens are replaced; and what a token endpoint is asked.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from msgspec.structs import replace

from devstack import topics
from devstack.apache_kafka import ApacheKafka, Login
from projector.kafka.sign_in import Tokens, TokenUnavailable, ask_endpoint, tokens
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.certificates import Certificate
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, RedisService
from tests.harness.token_server import TokenServer, token_server
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

CONNECTION_MS = 5000
_SECURITY = "org.apache.kafka.common.security"


class Servers(NamedTuple):
    """The brokers, the identity provider that they trust, and the settings of a Leadview that reaches both."""

    broker: ApacheKafka
    identity: TokenServer
    settings: dict[str, Any]

    def set_password(self, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("crm", info, password.encode())
        admin = topics.admin(self.broker.bootstrap_servers)  # kept until its requests are answered
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def servers(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("sign-in")
    with ExitStack() as stack:
        identity = stack.enter_context(token_server(certificate, directory))
        bearer = "sasl.oauthbearer"
        properties = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate.both()),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
            "scram-sha-512.connections.max.reauth.ms": str(CONNECTION_MS),
            "oauthbearer.sasl.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
            "oauthbearer.sasl.server.callback.handler.class": f"{_SECURITY}.oauthbearer."
            "OAuthBearerValidatorCallbackHandler",
            "oauthbearer.connections.max.reauth.ms": str(CONNECTION_MS),
            f"{bearer}.jwks.endpoint.url": identity.keys_url,
            # By default, a broker of Kafka 4.1 checks the form of a token only, and not its signature.
            f"{bearer}.jwt.validator.class": f"{_SECURITY}.oauthbearer.BrokerJwtValidator",
            f"{bearer}.expected.audience": "kafka",
            f"{bearer}.expected.issuer": "https://identity.test",
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={identity.keys_url}"
        login = Login("SASL_SSL", properties, [allowed])
        broker = stack.enter_context(ApacheKafka.start(directory / "kafka", login=login))
        settings = {
            "kafka_bootstrap_servers": broker.sasl_servers,
            "kafka_security_protocol": "SASL_SSL",
            "kafka_ssl_ca_file": certificate.certificate,
        }
        yield Servers(broker, identity, settings)


@pytest.fixture
def leadview(servers: Servers, redis_server: RedisService, topic_prefix: str, tmp_path: Path) -> Iterator[Leadview]:
    kafka = Kafka("apache", servers.broker.bootstrap_servers, servers.broker.create_topic)
    settings = servers.settings | {"kafka_session_timeout": 2}
    with Leadview(kafka, topic_prefix, redis_server, tmp_path, **settings) as leadview:
        leadview.calls_plain_commands = False  # a process remembers its token
        leadview.topics.create(partitions=2)
        leadview.publish(crm.organization(), crm.contact(), crm.lead())
        yield leadview


@pytest.mark.long
async def test_the_password_is_replaced(servers: Servers, leadview: Leadview, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret-1\n")
    servers.set_password("secret-1")
    settings: dict[str, Any] = {
        "kafka_sasl_mechanism": "SCRAM-SHA-512",
        "kafka_sasl_username": "crm",
        "kafka_sasl_password_file": password,
    }
    projector = leadview.serve(**settings)
    named = f"LEADVIEW_KAFKA_SASL_USERNAME and LEADVIEW_KAFKA_SASL_PASSWORD_FILE ({password})"
    refused = f"Kafka refuses the user 'crm' or its password: correct {named}"
    for number in (2, 3):
        refusals = projector.log.read_text().count(refused)
        servers.set_password(f"secret-{number}")
        leadview.publish(*(crm.lead(10 * number + version) for version in range(5)))
        wait_until(lambda: projector.log.read_text().count(refused) > refusals, "the old password is refused")  # noqa: B023
        wait_until(lambda: refused in leadview.run("status", **settings), "status says so")
        password.write_text(f"secret-{number}\n")
        leadview.publish(crm.lead(10 * number + 5))
        await leadview.settled()
        wait_until(lambda: leadview.run("status", **settings).status == 0, "all is well")
    leadview.run("verify", **settings).ends(0)
    assert "secret-" not in projector.log.read_text()


@pytest.mark.long
async def test_token_is_replaced_before_it_expires(
    servers: Servers, leadview: Leadview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, secret = servers.identity, tmp_path / "client-secret"
    secret.write_text("the-secret\n")
    identity.lifetime = 5.0
    settings: dict[str, Any] = {
        "kafka_sasl_mechanism": "OAUTHBEARER",
        "kafka_oauth_token_url": identity.url,
        "kafka_oauth_client_id": "leadview",
        "kafka_oauth_client_secret_file": secret,
        "kafka_oauth_scope": "crm.read crm.list",
        "kafka_oauth_ca_file": servers.settings["kafka_ssl_ca_file"],
    }
    projector = leadview.serve(**settings)
    for version in (2, 3):
        issued = len(identity.issued)
        leadview.publish(crm.lead(version))
        wait_until(lambda: len(identity.issued) > issued, "the token is replaced")  # noqa: B023
    await leadview.settled()
    assert identity.asked[-1]["scope"] == ["crm.read crm.list"]
    # A connection may be closed before a command has used it, if the machine is slow.
    for words in (["status"], ["doctor"], ["rebuild", "--promote", "--max-latency", "0"]):
        wait_until(lambda: leadview.run(*words, **settings).status == 0, f"{words[0]} signs in")  # noqa: B023
    with monkeypatch.context() as replaced:
        replaced.setattr(identity, "secret", "another")
        refused = "refuses a token (HTTP 401, invalid_client): correct LEADVIEW_KAFKA_OAUTH_CLIENT_ID"
        # `status` waits for Kafka for little more than a second, and a busy machine may need longer.
        wait_until(lambda: refused in leadview.run("status", **settings), "status says so")
        wait_until(lambda: "invalid_client" in projector.log.read_text(), "the projector says it, too")
        secret.write_text("another\n")
        leadview.publish(crm.lead(6))
        await leadview.settled()
    assert not [token for token in identity.issued if token in projector.log.read_text()]
    assert "the-secret" not in projector.log.read_text()


@pytest.mark.long
def test_what_is_refused_is_said(
    servers: Servers, leadview: Leadview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a token may come from a function."""
    servers.identity.lifetime = 3600.0
    token = tmp_path / "token"
    monkeypatch.setenv("TEST_TOKEN_FILE", str(token))

    def status() -> str:
        provider = "tests.harness.projectors:token"
        return leadview.run("status", kafka_sasl_mechanism="OAUTHBEARER", kafka_oauth_token_provider=provider).output

    token.write_text(servers.identity.token())
    # `status` waits for Kafka for little more than a second, and a busy machine may need longer.
    wait_until(lambda: "Kafka" not in status().partition("\n")[0], "the token is accepted")
    servers.identity.audience = "another"
    token.write_text(servers.identity.token())
    servers.identity.audience = "kafka"
    wait_until(lambda: "Kafka refuses the token (invalid_token)" in status(), "the token is refused")


SECRET = "the-secret"


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


def test_token_is_asked_for_with_the_credentials_of_the_client(
    identity: TokenServer, settings: ProjectorSettings
) -> None:
    before = time.time()
    token, expires_at = ask_endpoint(settings)
    assert before + 3600 <= expires_at <= time.time() + 3600
    assert (token, identity.asked) == (identity.issued[-1], [{"grant_type": ["client_credentials"]}])


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
def test_endpoint_that_gives_no_token_is_named(
    identity: TokenServer, settings: ProjectorSettings, answer: tuple[int, bytes], said: str
) -> None:
    identity.answer = answer
    with pytest.raises(TokenUnavailable) as error:
        ask_endpoint(settings)
    found = [text in str(error.value) for text in (f"{identity.url} ", said, SECRET)]
    assert found == [True, True, False], error.value


def test_endpoint_that_cannot_be_reached_is_named(settings: ProjectorSettings) -> None:
    with pytest.raises(
        TokenUnavailable, match=r"certificate of https://.* is not accepted .*LEADVIEW_KAFKA_OAUTH_CA_FILE"
    ):
        ask_endpoint(replace(settings, kafka_oauth_ca_file=None))
    with pytest.raises(TokenUnavailable, match=r"cannot be reached .*refused.*LEADVIEW_KAFKA_OAUTH_TOKEN_URL"):
        ask_endpoint(replace(settings, kafka_oauth_token_url="https://127.0.0.1:1/token"))


async def test_token_is_used_until_it_is_old_or_refused(identity: TokenServer, settings: ProjectorSettings) -> None:
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


async def test_function_that_fails_is_named_without_its_message() -> None:
    name = "tests.harness.projectors:broken_token"
    with pytest.raises(TokenUnavailable) as error:
        await tokens(ProjectorSettings(kafka_oauth_token_provider=name)).token()
    said = f"LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER ({name}) returned no token for Kafka (RuntimeError)"
    assert (said in str(error.value), SECRET in str(error.value)) == (True, False), error.value
