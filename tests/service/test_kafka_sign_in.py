"""SCRAM and OAUTHBEARER over TLS, to an Apache Kafka that closes every connection after some seconds: no record is lost
while passwords and tokens are replaced."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from devstack import topics
from devstack.apache_kafka import ApacheKafka, Login
from tests.harness import certificates, crm
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, RedisService
from tests.harness.token_server import TokenServer, token_server
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.long

CONNECTION_MS = 5000
_SECURITY = "org.apache.kafka.common.security"


class Servers(NamedTuple):
    """The brokers, the identity provider that they trust, and the settings of a Leadview that reaches both."""

    broker: ApacheKafka
    identity: TokenServer
    settings: dict[str, Any]

    def set_password(self, password: str) -> None:
        """Let the user crm sign in with this password only."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("crm", info, password.encode())
        admin = topics.admin(self.broker.bootstrap_servers)  # kept until its requests are answered
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def servers(apache_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("sign-in")
    certificate = certificates.create(directory)
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
        leadview.topics.create(partitions=2)
        leadview.publish(crm.organization(), crm.contact(), crm.lead())
        yield leadview


async def test_the_password_is_replaced(servers: Servers, leadview: Leadview, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret-1\n")
    servers.set_password("secret-1")
    settings: dict[str, Any] = {
        "kafka_sasl_mechanism": "SCRAM-SHA-512",
        "kafka_sasl_username": "crm",
        "kafka_sasl_password_file": password,
    }
    projector = leadview.start("run", **settings)
    leadview.wait_until_served()
    named = f"LEADVIEW_KAFKA_SASL_USERNAME and LEADVIEW_KAFKA_SASL_PASSWORD_FILE ({password})"
    refused = f"Kafka refuses the user 'crm' or its password: correct {named}"
    for number in (2, 3):
        servers.set_password(f"secret-{number}")
        leadview.publish(*(crm.lead(10 * number + version) for version in range(5)))
        wait_until(lambda: projector.log.read_text().count(refused) >= number - 1, "the old password is refused")  # noqa: B023
        assert refused in leadview.run("status", **settings)
        password.write_text(f"secret-{number}\n")
        leadview.publish(crm.lead(10 * number + 5))
        await leadview.settled()
        wait_until(lambda: leadview.run("status", **settings).status == 0, "all is well")
    assert leadview.run("verify", **settings).status == 0
    assert "secret-" not in projector.log.read_text()


async def test_tokens_are_replaced(servers: Servers, leadview: Leadview, tmp_path: Path) -> None:
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
    projector = leadview.start("run", **settings)
    leadview.wait_until_served()
    for version in (2, 3):
        issued = len(identity.issued)
        leadview.publish(crm.lead(version))
        wait_until(lambda: len(identity.issued) > issued, "the token is replaced")  # noqa: B023
    await leadview.settled()
    assert identity.asked[-1]["scope"] == ["crm.read crm.list"]
    # A connection may be closed before a command has used it, if the machine is slow.
    for words in (["status"], ["doctor"], ["rebuild", "--promote", "--max-latency", "0"]):
        wait_until(lambda: leadview.run(*words, **settings).status == 0, f"{words[0]} signs in")  # noqa: B023
    identity.secret = "another"
    try:
        done = leadview.run("status", **settings)
        assert "refuses a token (HTTP 401, invalid_client): correct LEADVIEW_KAFKA_OAUTH_CLIENT_ID" in done
        wait_until(lambda: "invalid_client" in projector.log.read_text(), "the projector says it, too")
        secret.write_text("another\n")
        leadview.publish(crm.lead(6))
        await leadview.settled()
    finally:
        identity.secret = "the-secret"
    assert not [token for token in identity.issued if token in projector.log.read_text()]
    assert "the-secret" not in projector.log.read_text()


def test_what_is_refused_is_said(
    servers: Servers, leadview: Leadview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a token may come from a function."""
    servers.identity.lifetime = 3600.0
    token = tmp_path / "token"
    monkeypatch.setenv("TEST_TOKEN_FILE", str(token))

    def status(function: str = "token") -> str:
        provider = f"tests.harness.token_function:{function}"
        return leadview.run("status", kafka_sasl_mechanism="OAUTHBEARER", kafka_oauth_token_provider=provider).output

    token.write_text(servers.identity.token())
    assert "Kafka" not in status().partition("\n")[0]
    servers.identity.audience = "another"
    token.write_text(servers.identity.token())
    servers.identity.audience = "kafka"
    assert "Kafka refuses the token (invalid_token)" in status()
    found = status("broken")
    assert "LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER (tests.harness.token_function:broken) returned no token" in found
    assert "the-secret" not in found
