"""What Kafka has acknowledged behind an open transaction, which nobody can read: no surface says that it is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from devstack.ports import free_port
from schemas import resources
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer, Response
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.waiting import wait_for, wait_until

pytestmark = pytest.mark.apache

IMPORTED = crm.uuid(0xBEEF)
AGE = "leadview_projector_open_transaction_age_seconds"
A_YEAR = 365 * 86_400.0


@pytest.fixture
def leadview(leadview: Leadview) -> Leadview:
    limits = {"quota": 1_000_000, "window_seconds": 1}
    unlimited = crm.organization(rate_limits={"key": limits, "organization": limits})
    leadview.publish(unlimited, crm.api_key(), crm.contact())
    leadview.publish(crm.lead(1), partition=0)
    return leadview


@contextmanager
def transaction(
    leadview: Leadview, *, partitions: tuple[int, ...] = (0,), seconds: float | None = None
) -> Iterator[Any]:
    """Yields a producer with a transaction that is open in these partitions of the leads; aborts it at the end."""
    message = crm.lead(1, id=IMPORTED)
    producer = leadview.topics.begin_transaction(message, partition=partitions[0], seconds=seconds)
    for partition in partitions[1:]:
        producer.produce(
            leadview.topics.name(resources.LEAD), key=message.key, value=message.value, partition=partition
        )
    producer.flush()
    yield producer
    producer.abort_transaction()


def get(api: ApiServer, lead: str = crm.LEAD) -> Response:
    return api.get(LEADS + lead, key=crm.KEY)


def as_of(response: Response) -> datetime:
    text = response.headers.get("data-as-of")
    return datetime.fromisoformat(text) if text else datetime.min.replace(tzinfo=UTC)


def is_well(leadview: Leadview) -> bool:
    return leadview.ask("status").status == 0


def test_what_waits_behind_a_transaction_is_claimed_nowhere(leadview: Leadview) -> None:
    port, name = free_port(), leadview.topics.name(resources.LEAD)
    leadview.serve(metrics_port=port)
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "the lead is served")
        with transaction(leadview):
            leadview.publish(crm.lead(2, stage="ACCEPTED"), partition=0)
            published_at = datetime.now(UTC)
            said = leadview.wait_for_verdict(
                f"a transaction is open in {name}:0 since 20", "2 records wait for its end"
            )
            assert "too slow" not in said
            assert f"abort --topic {name} --partition 0 --start-offset 1" in said
            status = leadview.ask("status", "--json").json
            assert (status["kinds"], status["lag"]) == (["open_transaction"], 2)
            leadview.run("doctor").ends(1, f"a transaction is open in {name}:0")
            wait_until(lambda: ask(port, "/healthz")[0] == 503, "the health says it")
            [problem] = ask(port, "/healthz")[1]["problems"]
            assert f"a transaction is open in {name}:0" in problem
            assert metric(port, 'leadview_projector_problems{problem="open_transaction"}') == 1
            assert (metric(port, f'{AGE}{{topic="{name}"}}') or 0) > 5
            leadview.run("verify").ends(1, f"A transaction is open in {name}:0", "no difference in the rest")
            leadview.run("verify", "--access").ends(0, "no difference")
            waited = leadview.ask("wait", "lead", crm.ORGANIZATION, crm.LEAD, "--version", "2", "--timeout", "0")
            assert "a transaction is open" in waited
            assert "look at what was published" not in waited
            assert (get(api).json["stage"] == "ACCEPTED", as_of(get(api)) < published_at) == (False, True)
            wait_until(lambda: leadview.ask("status").status == 1, "it is still said")
        last = wait_for(lambda: get(api), lambda last: as_of(last) >= published_at, "everything is there")
        assert last.json["stage"] == "ACCEPTED"
        assert get(api, IMPORTED).status == 404
    wait_until(lambda: is_well(leadview), "all is well")
    wait_until(lambda: metric(port, f'{AGE}{{topic="{name}"}}') == 0, "no transaction is open")
    leadview.run("verify").ends(0, "no difference")


def test_an_emptied_redis_is_not_complete_until_the_transaction_has_ended(leadview: Leadview) -> None:
    leadview.serve()
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "the lead is served")
        with transaction(leadview):
            leadview.publish(crm.lead(1, id=crm.OTHER_LEAD), partition=0)
            leadview.redis.flushall()
            positions = {
                at: end
                for at, end in leadview.topics.end_offsets.items()
                if at[0] != leadview.topics.name(resources.LEAD)
            }
            wait_until(lambda: leadview.has_applied(positions), "the other topics are read again")
            leadview.wait_for_verdict("a transaction is open", "not complete")
            assert (get(api).status, get(api, crm.OTHER_LEAD).status, api.is_ready()) == (503, 503, False)
        wait_until(lambda: get(api).status == 200, "it is served again")
        assert (get(api, crm.OTHER_LEAD).status, api.is_ready()) == (200, True)
    wait_until(lambda: is_well(leadview), "all is well")
