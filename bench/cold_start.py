"""A cold start: an empty Redis, and Kafka with everything that it has to hold."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from uuid import uuid4

from bench import consumers, pipeline, servers
from bench.benchmark import (
    LEADVIEW,
    Benchmark,
    Lab,
    Measure,
    MeasurementFailed,
    Metric,
    Subject,
    Target,
    Values,
    client,
)
from bench.consumers import PLAIN_SET, RATE, Topics
from bench.crm import Traffic, lead_request, publish
from bench.machine import service_cores
from devstack.programs import while_running
from devstack.waiting import wait_until

_TIME = Metric("all is served after", "s")
COLD = "empty Redis"
_RECORDS, _QUICK_RECORDS = 1_000_000, 5_000
_SERVED_SECONDS = 600.0
_HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
_READYZ = _HEALTHZ.replace(b"/healthz", b"/readyz")


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    kafka = pipeline.start_kafka(lab, stack, service_cores().load).bootstrap_servers
    traffic, count = Traffic(), _QUICK_RECORDS if lab.quick else _RECORDS
    for records in chain([traffic.access], traffic.batches(count)):
        publish(kafka, records)
    topics = Topics(kafka, count)
    tenant = next(tenant for tenant in traffic.tenants if tenant.leads)
    request = lead_request(tenant, tenant.leads[0])
    return {LEADVIEW: partial(_leadview, lab, topics, request), PLAIN_SET.name: partial(_plain_set, lab, topics)}


def _leadview(lab: Lab, topics: Topics, request: bytes, _case: str) -> Values:
    """`request` asks for a lead."""
    cores = service_cores()
    with ExitStack() as stack:
        redis = lab.redis(stack, cores, appendonly=True)
        api = servers.leadview(lab, stack, redis, cores)
        api.wait_until_ready(_HEALTHZ)
        started = time.monotonic()
        projector = consumers.start_projector(lab, topics.kafka, redis.url, cores=cores.load, group=uuid4().hex)
        stack.callback(projector.stop)
        for asked in (request, _READYZ):
            wait_until(while_running(projector, partial(api.serves, asked)), "all is served", _SERVED_SECONDS)
        seconds = time.monotonic() - started
        with client(redis) as connection:
            if (done := consumers.covered(connection)) < topics.count:
                raise MeasurementFailed(f"the API was ready with {done} of {topics.count} records")
    return {RATE.name: topics.count / seconds, _TIME.name: seconds}


def _plain_set(lab: Lab, topics: Topics, _case: str) -> Values:
    with ExitStack() as stack:
        redis = lab.redis(stack, service_cores(), appendonly=True)
        started = time.monotonic()
        consumers.measure_peer(lab, PLAIN_SET, topics, redis, service_cores().load)
        seconds = time.monotonic() - started
    return {RATE.name: topics.count / seconds, _TIME.name: seconds}


BENCHMARK = Benchmark(
    name="cold-start",
    what=(
        "Kafka holds 1,000,000 leads and contacts, and Redis (appendonly yes) is empty. Measured is the time from the "
        "start of the projector until the API is ready, and of plain-set until it has written all; both with the start "
        "of the process."
    ),
    metrics=(RATE, _TIME),
    subjects=(Subject(LEADVIEW, "leadview", "one projector, one API worker"), PLAIN_SET),
    cases=(COLD,),
    prepare=_prepare,
    targets=(Target(RATE.name, COLD, 0.4, at_least=True, against=PLAIN_SET.name),),
    needs_kafka=True,
    rounds=2,
)
