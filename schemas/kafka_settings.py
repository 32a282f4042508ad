"""How to reach Kafka and sign in. `schemas.settings` reads these settings."""

from typing import Annotated, Literal

from msgspec import Meta

from schemas.redis_settings import RedisSettings
from schemas.secret_files import SECRET, from_file


class KafkaSettings(RedisSettings, frozen=True, kw_only=True):
    """The connection to Kafka, together with what every process has."""

    kafka_bootstrap_servers: Annotated[str, Meta(description="Kafka brokers as `host:port`, separated by commas")] = (
        "127.0.0.1:9092"
    )
    kafka_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="Protocol for Kafka: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`"),
    ] = "PLAINTEXT"
    kafka_ssl_ca_file: Annotated[
        str | None, Meta(description="PEM file with the CA that signed the certificates of Kafka")
    ] = None
    kafka_ssl_cert_file: Annotated[str | None, Meta(description="PEM file with the client certificate for Kafka")] = (
        None
    )
    kafka_ssl_key_file: Annotated[
        str | None, Meta(description="PEM file with the private key of the client certificate for Kafka")
    ] = None
    kafka_sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
        Meta(description="SASL mechanism for Kafka: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`"),
    ] = "PLAIN"
    kafka_sasl_username: Annotated[str | None, Meta(description="SASL user for Kafka")] = None
    kafka_sasl_password: Annotated[str | None, SECRET, Meta(description="SASL password for Kafka")] = None
    kafka_sasl_password_file: Annotated[str | None, Meta(description=from_file("kafka_sasl_password"))] = None
    kafka_oauth_token_url: Annotated[
        str | None,
        Meta(description="`OAUTHBEARER`: https URL of the token endpoint (OIDC, grant `client_credentials`)"),
    ] = None
    kafka_oauth_client_id: Annotated[str | None, Meta(description="`OAUTHBEARER`: id of the client")] = None
    kafka_oauth_client_secret: Annotated[
        str | None, SECRET, Meta(description="`OAUTHBEARER`: secret of the client")
    ] = None
    kafka_oauth_client_secret_file: Annotated[str | None, Meta(description=from_file("kafka_oauth_client_secret"))] = (
        None
    )
    kafka_oauth_scope: Annotated[
        str | None, Meta(description="`OAUTHBEARER`: scopes to ask for, separated by spaces")
    ] = None
    kafka_oauth_ca_file: Annotated[
        str | None, Meta(description="PEM file with the CA that signed the certificate of the token endpoint")
    ] = None
    kafka_oauth_token_provider: Annotated[
        str | None,
        Meta(
            description="`OAUTHBEARER`, in place of a token endpoint: `module:function` that returns a token and when "
            "it expires ([secrets](production.md#tokens-of-a-cloud))"
        ),
    ] = None
    kafka_session_timeout: Annotated[
        float,
        Meta(
            ge=1,
            le=300,
            description="Seconds without a heartbeat after which Kafka reassigns the partitions of a projector",
        ),
    ] = 6.0
