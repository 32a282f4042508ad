"""Health, metrics and `status` of programs that run: of a projector that starts before its servers or topics are there,
and of servers that do not answer. All metrics are those that are declared.

What is judged of an observation, its words and the metrics that follow from it are in `tests/unit/test_problems.py` and
`tests/unit/test_observations.py`; `tests/troubles` makes each trouble and compares every surface.
"""

import socket
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from devstack.ports import free_port
from devstack.programs import environment
from devstack.redis_cluster import RedisCluster
from schemas import metrics, names, resources
from tests.harness import crm
from tests.harness.api_server import LEADS, running_api_process
from tests.harness.commands import Finished, call
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.programs import asleep
from tests.harness.projectors import IMPATIENT
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, wait_for, wait_until

pytestmark = pytest.mark.apache

AGE = "leadview_projector_unapplied_age_seconds"


def problems(port: int) -> list[str]:
    status, body = ask(port, "/healthz")
    return list(body["problems"]) if status == 503 else []


def wait_for_problem(port: int, text: str) -> None:
    wait_until(lambda: any(text in problem for problem in problems(port)), f"/healthz says {text!r}")


def test_projector_without_its_topics_says_so_until_they_are_there(leadview_with_own_redis: Leadview) -> None:
    """As with a wrong prefix: nothing is served, and everything says why, until all of them are there."""
    leadview, port = leadview_with_own_redis, free_port()
    leadview.start("run", metrics_port=port)
    for kind in resources.KINDS:
        wait_for_problem(port, leadview.topics.name(kind))
    wait_for_problem(port, ": missing: create what is missing")
    assert metric(port, 'leadview_projector_problems{problem="topic_missing"}') == 4
    assert "nan" in str(metric(port, AGE))
    assert not leadview.is_served()

    leadview.topics.create(partitions=1)
    leadview.publish(crm.lead())
    leadview.wait_until_served()
    well = (200, {"status": "ok", "problems": []})
    wait_until(lambda: ask(port, "/healthz") == well, "/healthz says that all is well")
    leadview.run("verify", topic_prefix="wrong.").ends(1, ": missing: create what is missing", "wrong.leads")


@pytest.mark.parametrize(
    ("away", "said"),
    [
        pytest.param({"redis_url": "redis://127.0.0.1:1/0"}, "Redis cannot be read", id="Redis"),
        pytest.param({"kafka_bootstrap_servers": "127.0.0.1:1"}, "Kafka cannot be read", id="Kafka"),
    ],
)
def test_projector_without_its_servers_says_so_until_they_are_there(
    leadview: Leadview, away: dict[str, str], said: str
) -> None:
    """It waits for them, says so, and can be stopped."""
    port = free_port()
    projector = leadview.start("run", command=IMPATIENT, metrics_port=port, **away)
    wait_for_problem(port, said)
    assert ask(port, "/livez")[0] == 200
    assert "nan" in str(metric(port, AGE))
    with Stopwatch() as stopwatch:
        projector.stop()
        assert projector.wait(PATIENCE_SECONDS) == 0
        assert stopwatch.seconds < 5


def test_metrics_of_both_ports_are_those_declared(leadview: Leadview, tmp_path: Path) -> None:
    """What is exported is what is declared: names, types, help and labels, after each port has had something to count.
    And the API says how old it is when no projector is left."""
    port, api_port = free_port(), free_port()
    bad = crm.lead(1, id=crm.OTHER_LEAD, stage="WRONG")
    projector = leadview.serve(crm.organization(1), crm.api_key(1), crm.lead(), bad, metrics_port=port)
    wait_until(lambda: metric(port, AGE) == 0, "a sample was taken")
    settings: dict[str, Any] = leadview._all({"metrics_port": api_port, "api_redis_timeout": PATIENCE_SECONDS})

    def age() -> float:
        return metric(api_port, "leadview_api_served_age_seconds") or 0

    with running_api_process(tmp_path / "api.log", **settings) as (_, api):
        assert api.get(LEADS + crm.uuid(0xDEAD), key=crm.KEY).status == 404
        wait_until(lambda: metric(api_port, 'leadview_api_requests_total{route="lead",status="404"}'), "it is counted")
        wait_until(lambda: metric(api_port, "leadview_api_projectors") == 1, "the heartbeats were read")
        # A sample may fail on a busy machine, and then its metrics are not known until the next one.
        for at, named in ((port, declared(metrics.PROJECTOR)), (api_port, declared(metrics.API))):
            wait_for(lambda: exported(at), lambda found: found == named, "what is exported is what is declared")  # noqa: B023
        wait_until(lambda: age() > 0, "the age is known")
        projector.kill()
        leadview.redis.delete(names.WRITERS)
        wait_until(lambda: metric(api_port, "leadview_api_projectors") == 0, "none is alive")
        before = age()
        wait_until(lambda: age() > before > 0, "it grows")


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


def first_line(done: Finished) -> str:
    return done.stdout.partition("\n")[0]


def test_servers_that_do_not_answer_are_named_at_once() -> None:
    """It does not wait for any client's timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        done = call("status", environment=environment(redis_url=f"redis://{at}/0", kafka_bootstrap_servers=at))
    done.ends(1, "Redis does not answer within 1.2 s", "Kafka does not answer within 1.2 s")
    assert first_line(done) == "not well: Redis cannot be read; Kafka cannot be read"


def test_shard_that_is_away_is_named(leadview_on_cluster: Leadview, three_primaries: RedisCluster) -> None:
    away = three_primaries.primaries[1]
    with asleep(away):
        leadview_on_cluster.wait_for_verdict("1 of its 3 shards do not answer", f"127.0.0.1:{away.port}")


def test_replica_in_place_of_its_master_can_be_read(leadview: Leadview) -> None:
    """What is read in spite of that is not unknown."""
    leadview.serve(crm.organization())
    leadview.redis.replicaof("127.0.0.1", 1)
    try:
        done = leadview.wait_for_verdict("Redis refuses writes")
        found = leadview.ask("status", "--json").json
    finally:
        leadview.redis.replicaof("NO", "ONE")
    assert ("READONLY" in done, found["generation"], found["dead_letters"]) == (True, 1, 0), done.output
    wait_until(lambda: first_line(leadview.run("status")) == "all is well", "all is well again")


def test_status_stays_on_the_screen(leadview: Leadview) -> None:
    watching = leadview.start("status", "--watch", "--json")
    wait_until(lambda: watching.log.read_text().count('"no projector is running') > 0, "it says what is not well")
    leadview.start("run")
    leadview.publish(crm.organization())
    wait_until(lambda: '"verdict":"all is well"' in watching.log.read_text(), "it notices that all is well")
    assert all(orjson.loads(line) for line in watching.log.read_text().splitlines()[:-1])
