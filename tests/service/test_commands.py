"""Commands and requests of people on a whole installation: what they are told is true, and no key is in it. Several
projectors from one command, `run --processes N`. And `status --history`: who did what, and what came of it.
"""

import os
import re
import signal
import socket
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient
from rich.console import Console

from devstack.child import Child
from devstack.programs import descendants, is_alive
from operate.commands.arguments import parse
from operate.commands.operator import Operator, act_of
from operate.commands.status import run_status
from projector.kafka.topics import TopicsRequest, _MetadataRequest_v10
from projector.ledger import acts
from projector.ledger.acts import Act
from schemas import api_keys, names, resources
from schemas.api_keys import key_hash, mint
from schemas.version import VERSION
from tests.harness import crm
from tests.harness.api_server import LEADS
from tests.harness.commands import Finished
from tests.harness.crm import ORGANIZATION
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.services import Kafka, RedisService, not_available
from tests.harness.waiting import PATIENCE_SECONDS, wait_until


@pytest.mark.apache
@pytest.mark.parametrize("words", [("run",), ("verify", "--continuous")], ids=" ".join)
def test_the_metrics_port_is_taken(leadview: Leadview, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = leadview.run(*words, metrics_port=port)
    done.ends(1, f"cannot listen on 127.0.0.1:{port}: Address already in use", "LEADVIEW_METRICS_PORT")
    assert "Traceback" not in done


@pytest.mark.apache
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"kafka_sasl_password": "right"}, "leads: missing", id="right"),
        pytest.param(
            {"kafka_sasl_password": "wrong"},
            "Kafka cannot be read: Kafka refuses the user 'crm' or its password: correct LEADVIEW_KAFKA_SASL_USERNAME",
            id="a wrong password",
        ),
        pytest.param(
            {"kafka_security_protocol": "PLAINTEXT", "kafka_sasl_username": ""},
            "LEADVIEW_KAFKA_SECURITY_PROTOCOL (PLAINTEXT) is not that of this port",
            id="another protocol",
        ),
        pytest.param(
            {"kafka_bootstrap_servers": "127.0.0.1:1", "kafka_sasl_password": "right"},
            "Kafka cannot be reached at 127.0.0.1:1",
            id="another address",
        ),
    ],
)
def test_status_signs_in_to_kafka_or_says_why_not(
    leadview_with_own_redis: Leadview, settings: dict[str, str], said: str
) -> None:
    """There is no topic, which only somebody who is signed in is told."""
    leadview = leadview_with_own_redis
    if not leadview.kafka.login_servers:
        not_available("nobody signs in to this Kafka")
    login = {
        "kafka_bootstrap_servers": leadview.kafka.login_servers,
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_username": "crm",
    }
    given = {name: value for name, value in (login | settings).items() if value}
    # `status` waits for Kafka for little more than a second, and a busy machine may need longer.
    wait_until(lambda: said in leadview.run("status", **given).stdout, "status says it")


def test_asking_for_a_topic_creates_none(
    embedded_kafka: Kafka, redis_server: RedisService, topic_prefix: str, tmp_path: Path
) -> None:
    """Though this broker creates the topics that clients ask for."""
    with Leadview(embedded_kafka, topic_prefix, redis_server, tmp_path) as leadview:
        for done in (leadview.ask("status"), leadview.run("doctor")):
            assert "missing" in done.stdout
        created = leadview.topics.admin.list_topics(timeout=PATIENCE_SECONDS).topics
        assert not [topic for topic in created if topic.startswith(topic_prefix)]
    newer = TopicsRequest(["leads"]).build(_MetadataRequest_v10)  # which this broker does not know
    assert newer.allow_auto_topic_creation is False


def test_validate_reads_a_topic_without_redis_and_without_a_group(leadview: Leadview) -> None:
    """Redis is away, and no consumer group appears."""

    def validate(*words: str, **settings: str) -> Finished:
        return leadview.run("validate", *words, redis_url="redis://127.0.0.1:1/0", **settings)

    leads = leadview.topics.name(resources.LEAD)
    framed = crm.Message(resources.LEAD, crm.lead(1).key, b"\0\0\0\0\x07\x02\x48abc")
    messages = [crm.lead(1), crm.lead(2, stage="new"), framed, crm.binary(crm.lead(3, event_typ_key="x"))]
    [_, stage, avro, typo] = leadview.publish(*messages, partition=0)

    done = validate("--topic", leads).ends(1, f"{leads}:0:{stage.offset}: `$.data.stage`")
    told = [line.partition(": ")[0] for line in done.output.splitlines()]
    assert told == [f"{leads}:0:{stage.offset}", f"{leads}:0:{avro.offset}", "4 records"]

    status, output, _ = validate("--strict", "--json", "--topic", leads, "--from", "-1")
    [fault] = orjson.loads(output)["faults"]
    found = [fault[name] for name in ("topic", "partition", "offset", "path", "expected")]
    assert (status, found) == (1, [leads, 0, typo.offset, "$.event_typ_key", "event_type_key"])

    contacts = leadview.topics.name(resources.CONTACT)
    nothing = "0 records: nothing to check\n"
    for words, expected in (
        (["--topic", leads, "--from", str(typo.offset)], (0, "1 record: all good\n")),
        (["--topic", contacts], (0, nothing)),
        (["--strict", "--topic", contacts], (1, f"{contacts}: it has no record, so nothing was checked\n{nothing}")),
    ):
        assert validate(*words)[:2] == expected
    validate("--topic", "none.leads", topic_prefix="none.").ends(2, "topic none.leads: missing")

    admin = AdminClient({"bootstrap.servers": leadview.kafka.bootstrap_servers})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert leadview.group not in groups


KEY, REVOKED, OTHER, UNKNOWN = (mint(ORGANIZATION, digit * 30) for digit in "1234")
ONE_LEFT = {"key": {"quota": 3, "window_seconds": 36_000}}
OTHER_KEY = crm.uuid(0xF2)


@pytest.mark.apache
def test_request_is_found_again(leadview: Leadview, tmp_path: Path) -> None:
    leadview.serve(
        crm.organization(1, rate_limits=ONE_LEFT),
        crm.api_key(1, hash=key_hash(KEY)),
        crm.api_key(1, id=OTHER_KEY, hash=key_hash(REVOKED), status="revoked"),
        crm.api_key(1, id=crm.uuid(0xF3), hash=key_hash(OTHER)),
        crm.lead(1),
    )
    with leadview.api() as api:
        for path, key, request_id, status in (
            (LEADS + crm.LEAD, KEY, "good", 200),
            (LEADS + crm.OTHER_LEAD, KEY, "missing", 404),
            (LEADS + crm.LEAD, KEY, "good-too", 200),
            (LEADS + crm.LEAD, KEY, "too-many", 429),
            (LEADS + crm.LEAD, REVOKED, "revoked", 401),
            (LEADS + crm.LEAD, UNKNOWN, "unknown", 401),
            (f"/{KEY}", KEY, KEY, 404),
        ):
            assert api.get(path, key=key, headers={"X-Request-Id": request_id}).status == status, request_id

    log = (tmp_path / "api.log").read_text()
    logged = [orjson.loads(line) for line in log.splitlines() if line.startswith("{")]
    of_requests = {line["request_id"]: line for line in logged if "request_id" in line}
    assert of_requests.keys().isdisjoint(("good", "good-too"))
    missing = [of_requests["missing"][name] for name in ("status", "record", "organization")]
    assert missing == [404, crm.OTHER_LEAD, ORGANIZATION]
    assert not any(key[8:30] in log for key in (KEY, REVOKED, UNKNOWN))

    name = names.usage(names.organization(ORGANIZATION))
    assert set(leadview.redis.hkeys(name)) == {key_hash(KEY).encode(), key_hash(REVOKED).encode()}, "not the unknown"
    assert 0 < leadview.redis.ttl(name) <= 90 * 24 * 3600
    used = usage(leadview)
    of_key, of_revoked, unused = (used[key_hash(each)] for each in (KEY, REVOKED, OTHER))
    assert (of_key["requests"], of_key["refusals"], of_key["api_keys"]) == (4, 1, [crm.API_KEY])
    assert of_key["last_used"] >= of_key["counted_since"]
    assert (of_revoked["requests"], of_revoked["refusals"]) == (1, 1)
    assert (unused["requests"], unused["last_used"]) == (0, None)
    assert KEY[8:] not in leadview.run("usage", ORGANIZATION).ends(0, "no counts", crm.API_KEY)
    leadview.run("usage", crm.OTHER_ORGANIZATION).ends(0, "no API keys")

    leadview.redis.hset(name, mapping={f"another {number}": "1 0 1 1" for number in range(998)})
    with leadview.api() as api:
        assert api.get(LEADS + crm.LEAD, key=REVOKED).status == 401
        assert api.get(LEADS + crm.LEAD, key=OTHER).status == 200
    used = usage(leadview)
    assert used[key_hash(REVOKED)]["requests"] == 2, "counts of two processes add up"
    assert used[key_hash(OTHER)]["requests"] == 0, "1000 keys of an organization are counted, and no more"
    leadview.publish(crm.deleted(resources.ORGANIZATION, 2))
    wait_until(lambda: not usage(leadview), "the counts are erased with the organization")
    wait_until(lambda: not leadview.redis.exists(name), "with their key")


def usage(leadview: Leadview) -> dict[str, dict[str, Any]]:
    return {each["hash"]: each for each in leadview.run("usage", ORGANIZATION, "--json").json}


def projectors(parent: Child) -> set[int]:
    """Returns the process ids of the children that project; Python starts another one, which cleans up after them."""
    return descendants(parent.pid, "spawn_main")


@pytest.mark.apache
def test_two_share_the_work_and_end_with_their_parent(leadview: Leadview) -> None:
    leadview.publish(crm.organization(), *(crm.lead(1, id=crm.uuid(0x1000 + number)) for number in range(50)))
    parent = leadview.start("run", "--processes", "2")
    leadview.wait_until_served()
    two = "both projectors have a heartbeat"
    wait_until(lambda: leadview.run("status", "--json").json["projectors"] == 2, two, 2 * PATIENCE_SECONDS)
    first = projectors(parent)
    assert len(first) == 2
    killed = first.pop()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(projectors(parent) - {killed}) == 2, "the killed one is replaced")
    assert first < projectors(parent), "the other one keeps running"
    leadview.publish(*(crm.lead(2, id=crm.uuid(0x1000 + number)) for number in range(50)))
    leadview.wait_until_current()
    assert leadview.documents() == leadview.expected()
    started = projectors(parent)
    parent.kill()
    wait_until(lambda: not any(map(is_alive, started)), "the children notice that nobody watches them")


@pytest.mark.apache
def test_if_one_refuses_to_start_the_others_stop(leadview: Leadview) -> None:
    leadview.publish(crm.organization())
    # An address of its own: at the usual one, another test's server may have the port of the first projector.
    with socket.create_server(("127.0.0.77", 0)) as holder:
        taken = holder.getsockname()[1]
        ended = leadview.run("run", "--processes", "2", metrics_host="127.0.0.77", metrics_port=taken - 1)
    refused = f"Refused: cannot listen on 127.0.0.77:{taken}"
    ended.ends(1, refused, "a projector ended by itself: the others are stopped")


@pytest.mark.apache
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_projectors_start_ends_them(leadview: Leadview, number: signal.Signals) -> None:
    """Redis and Kafka need not be there: each child is stopped at whatever point it is."""
    parent = leadview.start("run", "--processes", "2", kafka_bootstrap_servers="127.0.0.1:1")
    wait_until(lambda: projectors(parent), "the first one is being started")
    os.kill(parent.pid, number)
    assert parent.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("words", "act"),
    [
        pytest.param("promote --force", "promote --force", id="promote"),
        pytest.param("rollback", "rollback", id="rollback"),
        pytest.param("drop --by=ops 2", "drop 2", id="who did it is no argument"),
        pytest.param("rebuild --organization " + crm.ORGANIZATION, None, id="rebuild"),
        pytest.param("dead-letters accept crm.leads:0:0 --note test", None, id="accept"),
        pytest.param("dead-letters redrive", None, id="redrive"),
        pytest.param("dead-letters drop --all", None, id="drop dead letters"),
        pytest.param("rebuild --check", "", id="a check changes nothing"),
        pytest.param("dead-letters list", "", id="a list changes nothing"),
        pytest.param("verify --next", "", id="a comparison changes nothing"),
    ],
)
def test_command_that_changes_something_is_an_act(words: str, act: str | None) -> None:
    """By default all words."""
    found = act_of(parse(words.split()), words.split())
    assert " ".join((found.verb, *found.arguments) if found else ()) == (words if act is None else act)


def test_each_act_is_remembered(leadview: Leadview, tmp_path: Path) -> None:
    """Also one that was refused, and in the log of a projector."""
    leadview.publish(crm.organization(), crm.lead(), partition=0)
    leadview.serve(log="projector")
    assert "nobody has done anything yet" in leadview.run("status", "--history")
    leadview.run("promote", "--by", "Ada Lovelace", "--force").ends(1)
    leadview.run("rebuild", "--promote", "--max-latency", "0").ends(0)
    leadview.run("rollback").ends(0)
    leadview.run("drop").ends(0)
    found = leadview.run("status", "--history", "--json").json
    me = acts.operator()
    assert [(act["verb"], act["arguments"], act["outcome"], act["by"]) for act in reversed(found)] == [
        ("promote", ["--force"], "refused", "Ada Lovelace"),
        ("rebuild", ["--promote", "--max-latency", "0"], "begun", me),
        ("rebuild", ["--promote", "--max-latency", "0"], "done", me),
        ("rollback", [], "done", me),
        ("drop", [], "done", me),
    ]
    dropped, returned, rebuilt, begun, refused = [act["chosen"] for act in found]
    assert rebuilt == {"generation": 2, "max_latency": 0.0, "differences": 0, "threshold": 0, "former": 1}
    assert (returned, begun, refused) == ({"generation": 1, "former": 2}, {}, {})
    assert (dropped["generation"], dropped["keys"] > 0) == (2, True)
    printed = leadview.run("status", "--history").stdout
    assert re.search(rf"20\d\d-.*Z +promote --force +refused: .+ Ada Lovelace +{re.escape(VERSION)}", printed), printed
    assert re.search(r"Z +rollback \(generation 1, former 2\) +done ", printed), printed
    log = tmp_path / "projector.log"
    wait_until(lambda: log.read_text().count("an operator has acted") == 5, "the projector has logged each of them")


async def test_noted_act_has_no_key_and_no_long_word(projection: Projection) -> None:
    """No key that somebody has pasted, and no more than a part of a long word, whatever its bytes are."""
    key = api_keys.mint(crm.ORGANIZATION)
    await acts.note(
        projection.store, Act("drop", [f"x{key}", "\udcff", "y" * 9999], key, "refused", f"{key} is no number")
    )
    await acts.note(projection.store, Act("drop", [], "me", "an outcome of a later version"))
    newest, oldest = await acts.read(projection.store)
    assert newest.outcome == "an outcome of a later version"
    kept = ["xlv_live_…", "\\udcff", "y" * 500 + "…"]
    assert (oldest.arguments, oldest.by, oldest.reason) == (kept, "lv_live_…", "lv_live_…")


async def test_history_of_acts_is_bounded(projection: Projection) -> None:
    """And what another version wrote in another way is left out."""
    for number in range(acts.MOST + 1):
        await acts.note(projection.store, Act("drop", [str(number)], "me"))
    await projection.store.ask_one(b"XADD", names.HISTORY, b"MAXLEN", acts.MOST, b"*", b"other", b"{")
    found = await acts.read(projection.store)
    assert len(found) == acts.MOST - 1
    assert [found[0].arguments, found[-1].arguments] == [[str(acts.MOST)], ["2"]]
    printed = StringIO()
    operator = Operator(projection.settings, projection.store, Console(file=printed))
    assert await run_status(parse(["status", "--history"]), operator) == 0
    assert printed.getvalue().endswith("The last 1,000 acts are kept.\n")
