"""`doctor` checks what must be there before a start, and its bundle holds no secret."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import redis

from devstack.redis_server import RedisServer
from projector.commands import doctor
from projector.redis.rights import BEHIND_SENTINELS, CLUSTERED, PROJECTS, SERVES
from schemas import names, resources
from tests.harness import crm
from tests.harness.leadview import Finished, Leadview
from tests.harness.processes import ROOT
from tests.harness.services import Kafka, not_available
from tests.service.test_redis_users import EXAMPLE, access

ALL = "settings", "Redis", "Redis version", "Redis eviction", "Redis clock", "Redis data"
FILLED, EMPTY = (resources.ORGANIZATION, resources.LEAD), (resources.API_KEY, resources.CONTACT)
ALL_OF_KAFKA = "Kafka", "Kafka topics", "Kafka history", "Kafka partitions", "Kafka records", "Kafka consumer groups"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    program = shutil.which("redis-server")
    if not program:
        not_available("selectors in ACLs need a redis-server of version 7 or later on PATH")
    if " v=6" in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout:
        not_available("selectors in ACLs need a redis-server of version 7 or later on PATH")
    with RedisServer.start(tmp_path / "redis", program=program, options=["--include", str(EXAMPLE)]) as server:
        yield server


@pytest.fixture
def with_users(kafka: Kafka, topic_prefix: str, server: RedisServer, tmp_path: Path) -> Iterator[Leadview]:
    with Leadview(kafka, topic_prefix, server, tmp_path) as leadview:
        leadview.topics.create(partitions=1)
        yield leadview


def results(done: Finished) -> dict[str, str]:
    """Returns the result of each check."""
    found = (re.fullmatch(r"(\w+) +([^:]+): .+", line) for line in done.stdout.splitlines())
    return {match[2]: match[1] for match in found if match}


@pytest.mark.apache
def test_all_is_there(leadview: Leadview) -> None:
    leadview.publish(crm.organization(), crm.lead())
    done = leadview.run("doctor")
    assert done.status == 0, done.output
    [(read, empty)] = re.findall(r"Kafka records: those of (.+) can be read; empty: (.+)", done.stdout)
    named = [{leadview.topics.name(kind) for kind in kinds} for kinds in (FILLED, EMPTY)]
    assert [set(topics.split(", ")) for topics in (read, empty)] == named
    found = results(done)
    assert found.pop("Redis rights of the projector") in ("ok", "unknown"), "only Redis 7 says it"
    assert found == dict.fromkeys((*ALL, *ALL_OF_KAFKA), "ok") | {"Redis rights of the API": "unknown"}
    assert leadview.run("doctor", "--api").status == 0
    # Except by an API of the test before, which may still end.
    assert set(leadview.redis.scan_iter("*")) <= {names.LATENCY}, "nothing is written"


@pytest.mark.apache
def test_on_a_cluster(leadview_on_cluster: Leadview) -> None:
    done = leadview_on_cluster.run("doctor")
    assert done.status == 0, done.output
    assert "3 server(s) hold documents" in done


@pytest.mark.apache
def test_what_is_not_there(leadview: Leadview) -> None:
    done = leadview.run("doctor", redis_url="redis://127.0.0.1:1/0", topic_prefix="nothing.")
    assert done.status == 1
    found = results(done)
    assert (found["Redis"], found["Redis data"], found["Kafka"], found["Kafka topics"]) == (
        *("problem", "unknown", "ok", "problem"),
    )
    assert "correct LEADVIEW_REDIS_URL" in done
    assert "nothing.leads: missing: create what is missing" in done
    assert {found[f"Kafka {what}"] for what in ("history", "partitions", "records")} == {"unknown"}

    done = leadview.run("doctor", kafka_bootstrap_servers="127.0.0.1:1")
    assert (done.status, results(done)["Kafka"], results(done)["Redis"]) == (1, "problem", "ok")
    assert "Kafka cannot be reached at 127.0.0.1:1" in done
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        done = leadview.run("doctor", kafka_bootstrap_servers=at)
    assert (done.status, results(done)["Kafka"], results(done)["Redis"]) == (1, "problem", "ok")
    assert f"Kafka at {at} accepts connections, and does not answer" in done
    done = leadview.run("doctor", kafka_bootstrap_servers=leadview.server.url.split("/")[2])
    assert (done.status, results(done)["Kafka"]) == (1, "problem")
    assert "Error" not in done, done.output

    leadview.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        done = leadview.run("doctor")
    finally:
        leadview.redis.config_set("maxmemory-policy", "noeviction")
    assert (done.status, results(done)["Redis eviction"]) == (1, "problem")
    assert "Set its maxmemory-policy to noeviction" in done


@pytest.mark.apache
def test_the_rights_of_both_users(with_users: Leadview, server: RedisServer) -> None:
    users: dict[str, dict[str, Any]] = {name: access(f"leadview-{name}") for name in ("projector", "api")}
    assert with_users.run("doctor", **users["projector"]).status == 0
    assert with_users.run("doctor", "--api", **users["api"]).status == 0
    done = with_users.run("doctor", **users["projector"] | {"redis_password": "wrong"})
    assert (done.status, results(done)["Redis"]) == (1, "problem")
    assert "LEADVIEW_REDIS_PASSWORD" in done

    with redis.Redis(port=server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "leadview-projector", "-unlink", "-client|kill")
        admin.execute_command("ACL", "SETUSER", "leadview-api", "-hmget")
    done = with_users.run("doctor", **users["projector"])
    assert (done.status, results(done)["Redis rights of the projector"]) == (1, "problem")
    assert "the user leadview-projector lacks unlink (key lv3…), client|kill: grant it" in done
    done = with_users.run("doctor", "--api", **users["api"])
    assert done.status == 1
    assert "the user leadview-api lacks hmget (key lv3…): grant it" in done


_WORDS = {"auth", "count", "head", "kill", "list", "load", "match", "maxlen", "setname", "slots"}
"""What stands in commands beside their names; AUTH needs no right, and HEAD is HTTP."""


@pytest.mark.parametrize(
    ("package", "needed"), [pytest.param("projector", PROJECTS, id="projector"), pytest.param("api", SERVES, id="api")]
)
def test_every_command_that_is_used_is_checked_and_no_other(package: str, needed: tuple[tuple[str, ...], ...]) -> None:
    scripts = "".join(path.read_text() for path in sorted((ROOT / package / "redis" / "lua").iterdir()))
    used = {name.lower() for name in re.findall(r"call\(\s*'([A-Za-z]+)'", scripts)}
    assert used
    for path in (*(ROOT / package).rglob("*.py"), *(ROOT / "leadview/redis").iterdir()):
        if path.suffix == ".py":
            used |= {name.lower() for name in re.findall(r'b"([A-Z]{3,})"', path.read_text())}
    beyond = {words[0] for words in (*CLUSTERED, *BEHIND_SENTINELS)}
    assert used - _WORDS - beyond == {words[0] for words in needed} - beyond


@pytest.mark.apache
def test_a_bundle_holds_no_secret(leadview: Leadview, tmp_path: Path) -> None:
    leadview.publish(crm.organization(), crm.api_key(), crm.lead(), crm.contact(first_name="Zaphod"))
    leadview.start("run")
    leadview.wait_until_served()
    bundle = tmp_path / "ticket.zip"
    secrets = {"redis_password": "first-secret", "redis_sentinel_password": "second-secret"}
    done = leadview.run("doctor", "--bundle", str(bundle), kafka_sasl_password="third-secret", **secrets)
    assert done.status == 1, "the password of Redis is wrong"
    assert leadview.run("doctor", "--bundle", str(bundle), kafka_sasl_password="third-secret").status == 0
    assert bundle.stat().st_mode & 0o077 == 0
    with ZipFile(bundle) as archive:
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    assert contents.keys() == {"doctor.json", "settings.json", "status.json", "versions.json"}
    text = "".join(contents.values())
    assert '"LEADVIEW_KAFKA_SASL_PASSWORD": "***"' in text
    assert not [word for word in ("-secret", "Zaphod", crm.key_hash(1), crm.LEAD, crm.ORGANIZATION) if word in text]
    done = leadview.run("doctor", "--bundle", str(tmp_path / "no" / "folder"))
    assert (done.status, "Traceback" in done) == (1, False)
    assert "cannot be written" in done.stderr


def test_a_secret_inside_a_text_is_replaced(tmp_path: Path) -> None:
    doctor.write(tmp_path / "b.zip", {"a.json": ["redis://u:p%40ss@h", "pass"], "b.json": None}, {"p%40ss"})
    with ZipFile(tmp_path / "b.zip") as archive:
        assert archive.namelist() == ["a.json"]
        assert archive.read("a.json").decode() == '[\n  "redis://u:***@h",\n  "pass"\n]'
