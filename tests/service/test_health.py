"""Health, metrics, heartbeats and `status` tell the truth when something is wrong: each row of what operators once saw
green. What is judged and how it is worded is in `tests/unit/test_problems.py`: these show the way from a real trouble
to every surface.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client.parser import text_string_to_metric_families

from devstack import topics
from devstack.child import Child
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from projector.ledger import copies
from projector.redis.store import Store
from schemas import metrics, names, resources
from schemas.api_keys import key_hash, mint
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.api_server import LEADS, running_api_process
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, wait_until

pytestmark = pytest.mark.apache

AGE = "leadview_projector_unapplied_age_seconds"
LAG = "leadview_projector_lag_records"
MANY = 1000
"""So many records that several slices of a batch are written at the same time."""


@pytest.fixture
def own(leadview_with_own_redis: Leadview) -> Leadview:
    return leadview_with_own_redis


def now() -> float:
    """Returns the seconds since the beginning of the core product's time, for records that were published just now."""
    return time.time() - crm.at_ms(0) / 1000


def leads(count: int, first: int = 0) -> list[crm.Message]:
    return [crm.lead(1, id=crm.uuid(0x1000 + first + number), seconds=now()) for number in range(count)]


def problems(port: int) -> list[str]:
    status, body = ask(port, "/healthz")
    return list(body["problems"]) if status == 503 else []


def wait_for_problem(port: int, text: str) -> None:
    wait_until(lambda: any(text in problem for problem in problems(port)), f"/healthz says {text!r}")


def wait_until_well(port: int) -> None:
    wait_until(
        lambda: ask(port, "/healthz") == (200, {"status": "ok", "problems": []}), "/healthz says that all is well"
    )


def count(port: int, kind: str) -> float | None:
    return metric(port, f'leadview_projector_problems{{problem="{kind}"}}')


def heartbeat_problems(leadview: Leadview) -> list[str]:
    values = (value.partition(b" ")[2] for value in leadview.redis.hvals(names.WRITERS))
    return [problem for value in values for problem in orjson.loads(value)["problems"]]


def heartbeat_time(leadview: Leadview) -> int:
    return max(int(value.partition(b" ")[0]) for value in leadview.redis.hvals(names.WRITERS))


@pytest.mark.long
def test_a_full_redis(own: Leadview) -> None:
    """The lag is measured although no write succeeds, the heartbeat is still stored, and no task is left unasked."""
    own.topics.create()
    port = free_port()
    projector = own.start("run", metrics_port=port)
    own.publish(*leads(1))
    own.wait_until_served()
    wait_until(lambda: metric(port, LAG) == 0, "nothing waits")
    own.redis.config_set("maxmemory", "1")
    own.publish_all(leads(MANY, 1))
    wait_until(lambda: metric(port, LAG) == MANY, "the lag is that of Kafka and Redis")
    wait_until(lambda: (metric(port, AGE) or 0) > 0, "the oldest record waits")
    wait_for_problem(port, "Redis is full")
    before = heartbeat_time(own)
    wait_until(lambda: heartbeat_time(own) > before, "a heartbeat is stored")
    assert ask(port, "/livez")[0] == 200
    own.redis.config_set("maxmemory", "0")
    wait_until_well(port)
    wait_until(lambda: metric(port, LAG) == metric(port, AGE) == 0, "nothing waits")
    log = projector.log.read_text("utf-8")
    assert "never retrieved" not in log
    assert log.count('"problem":"redis_full"') == 2, "logged when it begins, and when it has ended"


def test_a_halted_line(leadview: Leadview) -> None:
    port = free_port()
    leadview.publish(*leads(3))
    leadview.start("run", metrics_port=port, dead_letter_row=2)
    leadview.wait_until_served()
    bad = [crm.lead(1, id=crm.uuid(0x2000 + n), seconds=now(), stage="WRONG") for n in range(111)]
    leadview.publish_all(bad)
    wait_for_problem(port, "line documents is stopped")
    wait_until(lambda: (metric(port, LAG) or 0) >= 100, "the records that wait are counted")
    assert count(port, "halted") == 1
    assert metric(port, 'leadview_projector_line_stopped{line="documents"}') == 1
    wait_until(
        lambda: any("documents is stopped" in text for text in heartbeat_problems(leadview)), "the heartbeat says it"
    )


@pytest.mark.long
async def test_a_line_that_stands_by(leadview: Leadview) -> None:
    """Nobody has the partitions, and the lag is known all the same."""
    port = free_port()
    leadview.start("run", metrics_port=port)
    leadview.publish(*leads(3))
    leadview.wait_until_served()
    settings = ProjectorSettings(redis_url=leadview.environment()["LEADVIEW_REDIS_URL"])
    store = Store(settings)
    record = await copies.current(store)

    def newer(state: Any) -> Any:
        generations = {state.live: msgspec.structs.replace(state.generations[state.live], mapping=999)}
        return msgspec.structs.replace(state, generations=generations)

    await copies.change(store, record, newer)
    await store.close()
    wait_for_problem(port, "line documents is standing by")
    leadview.publish(*leads(7, 3))
    wait_until(lambda: metric(port, LAG) == 7, "the lag is known")
    assert metric(port, 'leadview_projector_line_standing_by{line="documents"}') == 1


def test_topics_and_redis_that_are_not_set_up_well(own: Leadview) -> None:
    """Of a projector that runs all the while: first without any topic, and at the end with a Redis that is full."""
    port = free_port()
    projector = own.start("run", metrics_port=port)
    _miss_topics(own, port)
    _keep_history(own, port)
    _evict(own, port, projector)


def _miss_topics(own: Leadview, port: int) -> None:
    """As with a wrong prefix: nothing is served, and everything says why. Then one is missing, and then none."""
    for kind in resources.KINDS:
        wait_for_problem(port, own.topics.name(kind))
    wait_for_problem(port, ": missing: create what is missing")
    assert count(port, "topic_missing") == 4
    assert "nan" in str(metric(port, AGE))
    assert not own.is_served()

    for kind in resources.KINDS[:-1]:
        own.kafka.create_topic(own.topics.name(kind), 1)
    missing = own.topics.name(resources.KINDS[-1])
    said = own.wait_for_verdict(f"topic {missing}: missing")
    assert "correct LEADVIEW_TOPIC_PREFIX" in said
    wait_until(lambda: count(port, "topic_missing") == 1, "the metrics count one")
    checked = own.run("rebuild", "--check")
    assert (checked.status, "Traceback" in checked) == (1, False), checked.output
    assert f"topic {missing}: missing: create what is missing" in checked

    own.topics.create(partitions=1)
    own.publish(*leads(1))
    own.wait_until_served()
    wait_until_well(port)
    verified = own.run("verify", topic_prefix="wrong.")
    assert verified.status == 1
    assert ": missing: create what is missing" in verified
    assert "wrong.leads" in verified


def _keep_history(own: Leadview, port: int) -> None:
    """A topic is not compacted."""
    topic = own.topics.name(resources.LEAD)
    _set_policy(own, topic, "delete")
    wait_for_problem(port, f"topic {topic} (cleanup.policy=delete")
    said = own.wait_for_verdict(f"topic {topic} (cleanup.policy=delete", "not compacted")
    assert "set cleanup.policy=compact" in said
    _set_policy(own, topic, "compact")
    wait_until_well(port)


def _set_policy(leadview: Leadview, topic: str, policy: str) -> None:
    client = topics.admin(leadview.kafka.bootstrap_servers)
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for done in client.incremental_alter_configs([resource]).values():
        done.result()


def _evict(own: Leadview, port: int, projector: Child) -> None:
    """The policy of Redis changes while the program runs, and then its memory is full."""
    own.redis.config_set("maxmemory-policy", "allkeys-lru")
    wait_for_problem(port, "maxmemory-policy is allkeys-lru")
    assert '"problem":"redis_evicts"' in projector.log.read_text("utf-8")
    own.wait_for_verdict("Redis evicts keys", "allkeys-lru", "noeviction")
    own.redis.config_set("maxmemory-policy", "noeviction")
    wait_until_well(port)
    own.redis.config_set("maxmemory", own.redis.info("memory")["used_memory"] // 2)
    said = own.wait_for_verdict("Redis is full")
    assert "no projector is running" not in said, "its heartbeat is stored all the same"


@pytest.mark.long
def test_a_frozen_redis(own: Leadview, own_redis: RedisServer) -> None:
    """What cannot be measured is unknown. The program is alive all the while, so nothing restarts it."""
    own.topics.create()
    port = free_port()
    own.start("run", metrics_port=port)
    own.publish(*leads(3))
    own.wait_until_served()
    wait_until(lambda: metric(port, LAG) == 0, "nothing waits")
    own_redis.pause()
    wait_until(lambda: metric(port, 'leadview_projector_measured{part="redis"}') == 0, "Redis is not measured")
    assert metric(port, LAG) is None
    assert "nan" in str(metric(port, AGE))
    assert "nan" in str(metric(port, "leadview_projector_redis_memory_ratio"))
    wait_for_problem(port, "Redis cannot be read")
    assert ask(port, "/livez")[0] == 200
    own_redis.resume()
    wait_until_well(port)


def test_a_projector_that_waits_for_redis_at_its_start(leadview: Leadview) -> None:
    port = free_port()
    projector = leadview.start("run", metrics_port=port, redis_url="redis://127.0.0.1:1/0")
    wait_for_problem(port, "Redis cannot be read")
    assert ask(port, "/livez")[0] == 200
    assert_waits_and_can_be_stopped(projector)


def assert_waits_and_can_be_stopped(projector: Child) -> None:
    wait_until(lambda: "connect" in projector.log.read_text().lower(), "it waits")
    with Stopwatch() as stopwatch:
        projector.stop()
        assert projector.wait(PATIENCE_SECONDS) == 0
        assert stopwatch.seconds < 5


def test_kafka_is_away(leadview: Leadview) -> None:
    """The metrics of Redis are still measured."""
    port = free_port()
    projector = leadview.start("run", metrics_port=port, kafka_bootstrap_servers="127.0.0.1:1")
    wait_for_problem(port, "Kafka cannot be read")
    assert metric(port, 'leadview_projector_measured{part="kafka"}') == 0
    assert metric(port, 'leadview_projector_measured{part="redis"}') == 1
    assert metric(port, "leadview_projector_dead_letters") == 0
    assert "nan" in str(metric(port, AGE))
    assert_waits_and_can_be_stopped(projector)


def test_the_age_is_that_of_the_oldest_record_that_waits(leadview: Leadview) -> None:
    """Not of the newest that was applied, however long ago that was."""
    port = free_port()
    leadview.publish(crm.lead(1, seconds=now() - 5000))
    leadview.start("run", metrics_port=port)
    leadview.wait_until_served()
    wait_until(lambda: metric(port, AGE) == 0, "nothing waits")
    with _paused_line(leadview):
        leadview.publish(crm.lead(1, id=crm.OTHER_LEAD, seconds=now() - 300))
        wait_until(lambda: (metric(port, AGE) or 0) >= 300, "the record waits")
        assert (metric(port, AGE) or 0) < 4000
    wait_until(lambda: metric(port, AGE) == 0, "nothing waits")


@contextmanager
def _paused_line(leadview: Leadview) -> Iterator[None]:
    """The lines can apply nothing: Redis refuses their writes. What is measured needs none."""
    leadview.redis.config_set("maxmemory", "1")
    try:
        yield
    finally:
        leadview.redis.config_set("maxmemory", "0")


def test_a_spare_projector_is_well(leadview: Leadview) -> None:
    """There are more projectors than partitions: one has none, because the others have all of them."""
    ports = [free_port() for _ in range(4)]
    for port in ports:
        leadview.start("run", metrics_port=port)
    leads_topic = leadview.topics.name(resources.LEAD)
    own = f'leadview_projector_partitions{{topic="{leads_topic}"}}'
    wait_until(lambda: sorted(metric(port, own) or 0 for port in ports) == [0, 1, 1, 1], "one has none")
    wait_until(lambda: all(metric(port, LAG) == 0 for port in ports), "all of them see all partitions")
    counted = [len(re.findall(rf"^{LAG}{{", ask(port, "/metrics")[1], re.MULTILINE)) for port in ports]
    assert counted == [12] * 4
    assert all(problems(port) == [] for port in ports)


def test_the_metrics_of_both_ports(leadview: Leadview, tmp_path: Path) -> None:
    """What is exported is what is declared: names, types, help and labels, after each port has had something to count.
    And the API says how old it is when all projectors are dead."""
    port, api_port, key = free_port(), free_port(), mint(crm.ORGANIZATION)
    bad = crm.lead(1, id=crm.OTHER_LEAD, stage="WRONG")
    leadview.publish(crm.organization(1), crm.api_key(1, hash=key_hash(key)), *leads(2), bad)
    projectors = [leadview.start("run", metrics_port=port)]
    leadview.wait_until_served()
    wait_until(lambda: metric(port, AGE) == 0, "a sample was taken")
    settings: dict[str, Any] = leadview._all({"metrics_port": api_port})

    def age() -> float:
        return metric(api_port, "leadview_api_served_age_seconds") or 0

    with running_api_process(tmp_path / "api.log", **settings) as (_, api):
        assert api.get(LEADS + crm.LEAD, key=key).status == 404
        wait_until(lambda: metric(api_port, 'leadview_api_requests_total{route="lead",status="404"}'), "it is counted")
        wait_until(lambda: metric(api_port, "leadview_api_projectors") == 1, "the heartbeats were read")
        assert exported(port) == declared(metrics.PROJECTOR)
        assert exported(api_port) == declared(metrics.API)
        projectors.append(leadview.start("run"))
        wait_until(lambda: metric(api_port, "leadview_api_projectors") == 2, "both are alive")
        wait_until(lambda: 0 < age() < 60, "it is current")
        for projector in projectors:
            projector.kill()
        wait_until(lambda: metric(api_port, "leadview_api_projectors") == 0, "none is alive")
        before = age()
        assert before > 0
        wait_until(lambda: age() > before + 2, "it grows")
        leadview.redis.delete(names.WRITERS)
        wait_until(lambda: age() > before + 5, "it still grows")
        assert ask(api_port, "/livez")[0] == ask(api_port, "/healthz")[0] == 200


Exported = dict[str, tuple[str, str, frozenset[str]]]


def exported(port: int) -> Exported:
    """Returns the type, the help and the labels of each metric. Prometheus's client library has a help of its own."""
    families = list(text_string_to_metric_families(ask(port, "/metrics")[1]))
    return {
        family.name: (
            family.type,
            family.documentation if family.name.startswith("leadview_") else "",
            frozenset(label for sample in family.samples for label in sample.labels if label != "le"),
        )
        for family in families
    }


def declared(of: tuple[metrics.Metric, ...]) -> Exported:
    own: Exported = {
        metric.name: (metric.type, metric.help, frozenset(metric.labels)) for metric in (metrics.BUILD, *of)
    }
    return own | {metric.name: (metric.type, "", frozenset(metric.labels)) for metric in metrics.PROCESS}
