"""The pure parts of `make run`, whose whole runs in `tests/service/test_make_run.py`; and the sample data, which keeps
the contract of change events, repeats with its seed, and looks alive.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from devstack import ports
from devstack.child import Child, ServerFailed, StackFailed
from devstack.live_view import line, read
from devstack.programs import ROOT
from devstack.publish import connection
from devstack.redis_server import installed_redis
from devstack.run import Arguments, _port, of_stack, parse, unused
from devstack.sample import Message, SampleCrm
from devstack.sandbox import CHANGE_SECONDS, Sandbox
from devstack.stack import for_commands
from docs.generate.json_schema import event_types
from schemas import events
from schemas.resources import KINDS, RESOURCES
from schemas.settings import ApiSettings, ProjectorSettings
from tests.harness.waiting import PATIENCE_SECONDS

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


def test_line_sums_what_two_readings_show() -> None:
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
    expected = {
        "LEADVIEW_REDIS_URL": redis_url or "",
        "LEADVIEW_REDIS_URL_FILE": None,
        "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS": kafka or "",
        "LEADVIEW_KEY_RATE_LIMIT": "7/3s",
        "LEADVIEW_API_PORT": "8000",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found.keys() & {"LEADVIEW_REDIS_PASSWORD", "LEADVIEW_KAFKA_SECURITY_PROTOCOL"} == kept


def test_settings_that_status_needs_are_printed_without_secrets() -> None:
    given = {
        "PATH": "/bin",
        "LEADVIEW_REDIS_URL": "redis://:secret@theirs",
        "LEADVIEW_REDIS_PASSWORD": "",
        "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS": "theirs:9092",
        "LEADVIEW_KAFKA_SASL_PASSWORD_FILE": "/run/secrets/kafka",
        "LEADVIEW_EXPECTED_PROJECTORS": "2",
        "LEADVIEW_GROUP_ID": "other",
        "LEADVIEW_METRICS_HOST": "127.0.0.1",
        "LEADVIEW_API_PORT": "9",
        "LEADVIEW_TEST_ANYTHING": "1",
    }
    shown = {"KAFKA_BOOTSTRAP_SERVERS", "KAFKA_SASL_PASSWORD_FILE", "EXPECTED_PROJECTORS", "GROUP_ID"}
    named, hidden = for_commands(given)
    assert hidden == ["LEADVIEW_REDIS_URL"]
    assert named == {name: value for name, value in given.items() if name[len("LEADVIEW_") :] in shown}


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param("kill -KILL $$", "was killed (SIGKILL)", id="a signal"),
        pytest.param("exit 3", "ended with status 3", id="a status"),
    ],
)
def test_child_that_ended_is_told_with_its_signal(program: str, said: str, tmp_path: Path) -> None:
    child = Child(["/bin/sh", "-c", program], log=tmp_path / "projector.log")
    child.wait(PATIENCE_SECONDS)
    with pytest.raises(ServerFailed, match=re.escape(f"`projector` {said}.")):
        child.check_running()


def test_address_that_is_set_and_not_used_is_told() -> None:
    [note] = unused(USERS, redis_url=None, kafka="k:9092")
    assert note.startswith("LEADVIEW_REDIS_URL is set, but")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Arguments(rate=3.0, leads=200, live=True)),
        (
            ["--kafka", "k:1", "--port", "0", "--rate", "0", "--no-live"],
            Arguments(kafka="k:1", port=0, rate=0.0, live=False),
        ),
    ],
)
def test_words_become_services(words: list[str], expected: Arguments) -> None:
    assert parse(words) == expected


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
def test_wrong_arguments_of_the_devstack_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


BROKER = {"bootstrap.servers": "k:9093", "log_level": "0"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({}, {"security.protocol": "PLAINTEXT"}, id="none"),
        pytest.param(
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_ssl_ca_file": "/ca.pem",
                "kafka_sasl_mechanism": "SCRAM-SHA-512",
                "kafka_sasl_username": "u",
                "kafka_sasl_password": "p",
            },
            {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": "/ca.pem",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "u",
                "sasl.password": "p",
            },
            id="a password over TLS",
        ),
        pytest.param(
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": "OAUTHBEARER",
                "kafka_oauth_token_url": "https://i/t",
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://i/t",
            },
            id="tokens",
        ),
    ],
)
def test_security_settings_of_kafka_reach_librdkafka(settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert connection(ProjectorSettings(kafka_bootstrap_servers="k:9093", **settings)) == BROKER | expected


DECODERS = {name: msgspec.json.Decoder(struct) for name, struct in event_types().items()}
TOPICS = {kind.noun: kind.topic for kind in KINDS}
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
CHANGES = 3000


def clock() -> Callable[[], datetime]:
    """A second passes at each look."""
    ticks = iter(range(10**9))
    return lambda: START + timedelta(seconds=next(ticks))


def crm(seed: int = 7, **sizes: int) -> SampleCrm:
    return SampleCrm(seed, now=clock(), **sizes)


def story(sample: SampleCrm, changes: int = CHANGES) -> list[Message]:
    return [*sample.initial(), *islice(sample.changes(), changes)]


def entity_of(message: Message) -> events.Entity | None:
    """Returns what the event of a message says, decoded as a projector does; None for a tombstone."""
    if message.value is None:
        return None
    event = DECODERS[orjson.loads(message.value)["type"]].decode(message.value)
    assert message.topic == TOPICS[str(event.__struct_config__.tag).split(".")[1]]
    entity = getattr(event, "data", None)
    assert isinstance(entity, events.Entity)
    return entity


STORY = story(crm())
SANDBOX = [*Sandbox(START.timestamp).initial(), *islice(Sandbox(START.timestamp).changes(), 1)]


@pytest.mark.parametrize("story", [pytest.param(STORY, id="sample"), pytest.param(SANDBOX, id="sandbox")])
def test_every_message_keeps_the_contract(story: list[Message]) -> None:
    for message in story:
        organization, _, own_id = message.key.decode().partition(":")
        if entity := entity_of(message):
            assert (entity.organization_id, entity.id) == (organization, own_id or organization)
        else:
            assert message.topic in {resource.topic for resource in RESOURCES}


def test_versions_grow_and_nothing_comes_after_a_delete() -> None:
    last: dict[bytes, int] = {}
    gone: set[bytes] = set()
    for message in STORY:
        assert message.key not in gone
        entity = entity_of(message)
        if entity is not None:
            assert entity.version > last.get(message.key, 0)
            last[message.key] = entity.version
        if entity is None or isinstance(entity, events.Deleted):
            gone.add(message.key)
    assert len(gone) > 10


def test_the_same_seed_tells_the_same_story() -> None:
    again = story(crm(), 200)
    assert again == STORY[: len(again)]
    assert not {tenant.api_key for tenant in crm(8).tenants} & {tenant.api_key for tenant in crm().tenants}


def test_only_one_lead_of_the_sandbox_follows_the_clock_and_its_version_grows() -> None:
    starts = [Sandbox(lambda seconds=seconds: START.timestamp() + seconds) for seconds in (0, CHANGE_SECONDS)]  # type: ignore[misc]
    before, after = (list(map(entity_of, sandbox.initial())) for sandbox in starts)
    [pair] = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    [lead, changed] = [entity for entity in pair if entity]
    assert (changed.id, changed.version) == (lead.id, lead.version + 1)


def test_sample_story_keeps_the_entities_that_are_shown() -> None:
    sample = crm(contacts=3, leads=3)
    story(sample)
    for tenant in sample.tenants:
        assert sample.leads[tenant.lead_id].contact_id == tenant.contact_id
        assert sample.contacts[tenant.contact_id].organization_id == tenant.organization_id


def test_no_mail_and_no_call_reaches_anyone() -> None:
    fictional = (
        "+442079460",
        "+447700900",
        "+121255501",
        "+141655501",
        "+493023125",
        "+331990",
        "+46846500",
        "+6125550",
    )
    for contact in (entity for entity in map(entity_of, STORY) if isinstance(entity, events.Contact)):
        assert (contact.email or "@example.com").split("@")[1] in ("example.com", "example.org", "example.net")
        assert (contact.email or "a").isascii()
        assert (contact.phone or fictional[0]).replace(" ", "").startswith(fictional)


def test_the_redis_that_is_installed_is_not_that_of_an_activated_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package of Python may put an old one there, without TLS."""
    for folder in ("environment", "usr"):
        program = tmp_path / folder / "bin" / "redis-server"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/environment/bin:{tmp_path}/usr/bin")
    assert installed_redis() == f"{tmp_path}/usr/bin/redis-server"
    monkeypatch.setenv("PATH", f"{tmp_path}/environment/bin")
    assert installed_redis() is None


def test_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing listens there, and to another process: it may belong to a server that starts, or starts again."""
    given = ports.free_port()
    monkeypatch.setattr(ports, "_FIRST", given)
    monkeypatch.setattr(ports, "_LAST", given + 1)
    monkeypatch.setattr(ports, "_ATTEMPTS", 1)
    with pytest.raises(OSError, match="there is no free port"):
        ports.free_port()
    alone = f"ports._FIRST, ports._LAST, ports._ATTEMPTS = {given}, {given + 1}, 1"
    program = [sys.executable, "-c", f"from devstack import ports; {alone}; ports.free_port()"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "there is no free port" in done.stderr


def test_two_stacks_that_start_at_once_have_their_own_ports(capsys: pytest.CaptureFixture[str]) -> None:
    """The other one has looked, and listens in a moment."""
    usual = ports.free_port()
    chosen = _port(None, ApiSettings(api_port=usual))
    assert chosen != usual
    assert f'make docs ARGS="--server http://127.0.0.1:{chosen}"' in capsys.readouterr().out
    with pytest.raises(StackFailed, match=f"Port {usual} of 127.0.0.1 is not available"):
        _port(usual, ApiSettings())
