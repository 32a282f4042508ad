"""The pure parts of `make run`; the whole of it runs in `tests/service/test_make_run.py`."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from devstack.live_view import line, read
from devstack.publish import connection
from devstack.run import Arguments, of_stack, parse, unused
from schemas.settings import ProjectorSettings

PROJECTOR = """\
leadview_projector_records_total{line="access",result="written"} 9.0
leadview_projector_records_total{line="documents",result="written"} 331.0
leadview_projector_records_total{line="documents",result="stale"} 2.0
leadview_projector_freshness_seconds_bucket{line="access",le="0.125"} 1.0
leadview_projector_freshness_seconds_bucket{line="access",le="0.25"} 1.0
leadview_projector_freshness_seconds_bucket{line="access",le="+Inf"} 1.0
leadview_projector_freshness_seconds_bucket{line="documents",le="0.125"} 4.0
leadview_projector_freshness_seconds_bucket{line="documents",le="0.25"} 14.0
leadview_projector_freshness_seconds_bucket{line="documents",le="+Inf"} 19.0
leadview_projector_freshness_seconds_sum{line="documents"} 1410544.9
leadview_projector_lag_records{topic="crm.leads",partition="0"} 4.0
leadview_projector_lag_records{topic="crm.leads",partition="1"} 3.0
leadview_projector_dead_letters 1.0
"""
API = """\
leadview_api_requests_total{route="lead",status="200"} 5.0
leadview_api_requests_total{route="contact",status="200"} 2.0
leadview_api_requests_total{route="lead",status="404"} 1.0
leadview_api_requests_total{route="readyz",status="503"} 9.0
"""


def test_a_line_says_it_all() -> None:
    """Figures are summed over lines, partitions and routes, and what could not be measured is left out. The event with
    an old `time` does not make the freshness old.
    """
    before = read("leadview_projector_dead_letters NaN\n", "", at=10.0)
    assert line(before, read(PROJECTOR, API, at=15.0)) == (
        "applied 340 (68.0/s)  lag 7  freshness 188 ms  requests 8 (1.6/s)  200: 7  404: 1  dead letters 1"
    )
    assert line(before, read("", "", at=15.0)) == "applied 0 (0.0/s)  lag 0  freshness -  requests 0 (0.0/s)"


USERS = {
    "PATH": "/bin",
    "LEADVIEW_REDIS_URL": "redis://theirs",
    "LEADVIEW_REDIS_PASSWORD": "secret",
    "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS": "theirs:9092",
    "LEADVIEW_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "LEADVIEW_KEY_RATE_LIMIT": "7/3s",
    "LEADVIEW_API_PORT": "9",
}


@pytest.mark.parametrize(
    ("redis_url", "kafka", "kept"),
    [
        pytest.param(None, None, set(), id="embedded servers know no passwords"),
        pytest.param("redis://r", None, {"LEADVIEW_REDIS_PASSWORD"}, id="a Redis of the user's"),
        pytest.param(None, "k:9092", {"LEADVIEW_KAFKA_SECURITY_PROTOCOL"}, id="a Kafka of the user's"),
    ],
)
def test_settings_reach_the_processes_but_servers_are_named_by_options(
    redis_url: str | None, kafka: str | None, kept: set[str]
) -> None:
    given = USERS | {"LEADVIEW_REDIS_URL_FILE": "/run/secrets/url"}
    found = of_stack(given, redis_url=redis_url, kafka=kafka, port=8000, scratch=Path("/scratch"))
    assert "LEADVIEW_REDIS_URL_FILE" not in found
    assert found["LEADVIEW_REDIS_URL"] == (redis_url or "")
    assert found["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"] == (kafka or "")
    assert (found["LEADVIEW_KEY_RATE_LIMIT"], found["LEADVIEW_API_PORT"]) == ("7/3s", "8000")
    assert found.keys() & {"LEADVIEW_REDIS_PASSWORD", "LEADVIEW_KAFKA_SECURITY_PROTOCOL"} == kept


def test_an_address_that_is_set_and_not_used_is_told() -> None:
    [note] = unused(USERS, redis_url=None, kafka="k:9092")
    assert note.startswith("LEADVIEW_REDIS_URL is set, but")


def test_arguments() -> None:
    assert parse([]) == Arguments(rate=3.0, leads=200, live=True)
    assert parse(["--kafka", "k:1", "--port", "0", "--rate", "0", "--no-live"]) == Arguments(
        kafka="k:1", port=0, rate=0.0, live=False
    )


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--rate", "-1"], id="rate below zero"),
        pytest.param(["--rate", "nan"], id="rate that is not a number"),
        pytest.param(["--leads", "2"], id="fewer leads than organizations"),
        pytest.param(["--leads", "20001"], id="more leads than the embedded Kafka holds"),
        pytest.param(["--port", "65536"], id="no port"),
        pytest.param(["--kafka", "k:1", "--apache-kafka"], id="two kinds of Kafka"),
        pytest.param(["--sandbox", "--kafka", "k:1"], id="the sandbox on servers of the user"),
        pytest.param(["--sandbox", "--leads", "200"], id="the sandbox with another number of records"),
    ],
)
def test_arguments_that_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


def test_security_settings_of_kafka_reach_librdkafka() -> None:
    settings = ProjectorSettings(
        kafka_bootstrap_servers="k:9093",
        kafka_security_protocol="SASL_SSL",
        kafka_ssl_ca_file="/ca.pem",
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_sasl_username="u",
        kafka_sasl_password="p",
    )
    assert connection(settings) == {
        "bootstrap.servers": "k:9093",
        "security.protocol": "SASL_SSL",
        "log_level": "0",
        "ssl.ca.location": "/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    bearer = replace(settings, kafka_sasl_mechanism="OAUTHBEARER", kafka_oauth_token_url="https://i/t")
    assert connection(bearer)["sasl.oauthbearer.method"] == "oidc"
    assert connection(bearer)["sasl.oauthbearer.token.endpoint.url"] == "https://i/t"
    assert connection(ProjectorSettings()).keys() == {"bootstrap.servers", "security.protocol", "log_level"}
