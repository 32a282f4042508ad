"""Every error that a person meets says what happened and what to do: no traceback, and not the wrong cause."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from devstack.apache_kafka import ApacheKafka, plain_login
from devstack.programs import API, PROJECTOR, ROOT
from tests.harness import control, crm
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_the_metrics_port_is_taken(leadview: Leadview) -> None:
    with taken_port() as port:
        done = leadview.run("run", metrics_port=port)
    assert done.status == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "LEADVIEW_METRICS_PORT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param({"kafka_bootstrap_servers": "a:b"}, "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS='a:b'", id="a broker"),
        pytest.param({"kafka_ssl_ca_file": "/nothing"}, "LEADVIEW_KAFKA_SSL_CA_FILE='/nothing'", id="CA of Kafka"),
        pytest.param({"redis_tls_ca_file": "/nothing"}, "LEADVIEW_REDIS_TLS_CA_FILE='/nothing'", id="CA of Redis"),
        pytest.param({"kafka_security_protocol": "SASL_SSL"}, "LEADVIEW_KAFKA_SASL_USERNAME", id="no user"),
        pytest.param({"log_level": "loud"}, "write one of debug, info, warning, error", id="none of several"),
    ],
)
@pytest.mark.parametrize("command", ["run", "status"])
def test_a_setting_that_cannot_work_is_named(
    leadview: Leadview, command: str, settings: dict[str, str], named: str
) -> None:
    done = leadview.run(command, **settings)
    assert done.status == 2, done.output
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", [pytest.param(PROJECTOR, id="projector"), pytest.param(API, id="api")])
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_starts_nothing(program: tuple[str, ...], flag: str, tmp_path: Path) -> None:
    """Without any setting, and without a port that could be opened."""
    environment = {"PYTHONPATH": str(ROOT), "LEADVIEW_API_PORT": "1", "LEADVIEW_UNKNOWN": "1"}
    done = subprocess.run(
        [*program, flag],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: " if flag == "--help" else "leadview 0.")


@pytest.mark.usefixtures("apache_jars")
def test_a_wrong_password_of_kafka(redis_server: RedisService, topic_prefix: str, tmp_path: Path) -> None:
    with ApacheKafka.start(tmp_path / "kafka", login=plain_login({"crm": "right"}), auto_create=True) as broker:
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        settings = {
            "kafka_bootstrap_servers": broker.sasl_servers,
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_username": "crm",
        }
        with Leadview(kafka, topic_prefix, redis_server, tmp_path) as leadview:
            assert "missing" in leadview.run("status", kafka_sasl_password="right", **settings).stdout
            assert "missing" in leadview.run("doctor", kafka_sasl_password="right", **settings).stdout
            created = leadview.topics.admin.list_topics(timeout=PATIENCE_SECONDS).topics
            assert not [topic for topic in created if topic.startswith(topic_prefix)], "asking for a topic creates none"
            leadview.topics.create(partitions=1)
            leadview.publish(crm.organization())
            leadview.start("run", kafka_sasl_password="right", **settings)
            leadview.wait_until_served()
            wait_until(
                lambda: leadview.run("status", kafka_sasl_password="right", **settings).status == 0, "all is well"
            )
            done = leadview.run("status", kafka_sasl_password="wrong", **settings)
            assert done.status == 1
            said = "Kafka refuses the user 'crm' or its password: correct LEADVIEW_KAFKA_SASL_USERNAME"
            assert done.stdout.startswith(f"not well: Kafka cannot be read: {said}")
            projector = leadview.start("run", kafka_sasl_password="wrong", **settings)
            wait_until(lambda: said in projector.log.read_text(), "the projector says so, too")
            assert "wrong" not in projector.log.read_text()
            plain = leadview.run("status", **settings | {"kafka_security_protocol": "PLAINTEXT"})
            assert "LEADVIEW_KAFKA_SECURITY_PROTOCOL (PLAINTEXT) is not that of this port" in plain
            closed = leadview.run("status", kafka_bootstrap_servers="127.0.0.1:1")
            assert "Kafka cannot be reached at 127.0.0.1:1" in closed


def changes(log: Path) -> dict[str, dict[str, object]]:
    """Returns what each line has logged last about a change of the control record."""
    lines = [orjson.loads(line) for line in log.read_text().splitlines() if "the control record has changed" in line]
    return {line["line"]: {name: line[name] for name in ("live", "written", "dropping")} for line in lines}


def test_an_emptied_redis_is_not_called_a_change_of_generations(leadview: Leadview) -> None:
    projector = leadview.start("run")
    leadview.publish(crm.organization(), crm.lead())
    leadview.wait_until_served()
    for _ in range(2):
        assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
        assert leadview.run("drop").status == 0
    leadview.publish(crm.lead(2))
    leadview.wait_until_current()
    copy = control.read(leadview.redis)
    assert copy
    left = {"live": copy.state.live, "written": list(copy.state.written), "dropping": []}
    wait_until(lambda: changes(projector.log) == {"access": left, "documents": left}, "both lines know what is left")
    assert "Redis was emptied" not in projector.log.read_text()
    before = len(projector.log.read_text())
    leadview.redis.flushall()
    wait_until(lambda: projector.log.read_text().count("Redis was emptied; reading again") == 2, "both lines know it")
    leadview.wait_until_served()
    assert "generation" not in projector.log.read_text()[before:]
