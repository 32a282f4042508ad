"""What compression costs: CPU time of the API for a request, and of the projector for a record."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import api, candidates, memory, pipeline, projectors, requests
from bench.benchmark import LEADVIEW, Measure, Metric, Subject, Target, Values
from bench.candidates import Stage
from bench.capacity import UNKNOWN
from bench.consuming_peers import CPU, Topics
from bench.cores import pinned, worker_cores
from bench.crm import Crm
from bench.filling import fill
from bench.lab import Lab, client
from bench.load import Load
from bench.outcome import Rounds
from bench.projector import PARTITIONS
from bench.results import Results
from bench.table import number
from bench.traffic import Traffic, publish
from devstack.apache_kafka import ApacheKafka
from schemas.settings import Compression

_REQUEST = Metric("API, CPU per request", "µs", chart=True)
_REDIS_REQUEST = Metric("Redis, CPU per request", "µs")
_RECORD = Metric("projector, CPU per record", "µs", chart=True)
_REDIS_RECORD = Metric("Redis, CPU per record", "µs")
_METRICS = (_REQUEST, _REDIS_REQUEST, _RECORD, _REDIS_RECORD)
_CASES: Mapping[str, Compression] = {"JSON": "none", "compressed": "zstd"}
_IN_MEMORY = "100,000 documents"
_MEMORY_ROWS = (
    ("leads of 1 KB", memory.LEADS_OF_1_KB, memory.COMPRESSED),
    ("leads of 1 KB, random text", memory.LEADS_OF_1_KB, memory.RANDOM_TEXT),
    ("leads of 700 bytes", "", memory.SMALLER_COMPRESSED),
)
_ROWS = [
    (
        f"Redis's memory for each byte that is served, {what}",
        "memory",
        memory.RATIO,
        (_IN_MEMORY + one, _IN_MEMORY + other),
    )
    for what, one, other in _MEMORY_ROWS
] + [(metric.name, "compression", metric, tuple(_CASES)) for metric in _METRICS]
_DOCUMENTS, _RECORDS = 20_000, 100_000


class CompressionCosts:
    name = "compression"
    what = (
        "Requests for leads of about 1 KB as in `api`, and new records as in `projector`, with and without compression."
    )
    metrics = _METRICS
    subjects = (Subject(LEADVIEW, "leadview", "one API worker with 64 connections, and one projector"),)
    targets: Sequence[Target] = ()
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return tuple(_CASES)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        stages = {case: _stage(lab, stack, compression) for case, compression in _CASES.items()}
        topics = _topics(lab, stack)
        redis = lab.redis(stack, "redis-projector", worker_cores())
        connection = stack.enter_context(client(redis))

        def measure(case: str) -> Values:
            served = api.measures(lab, stages[case])[LEADVIEW](api.CASE)
            found = {_REQUEST.name: served[api.CPU.name], _REDIS_REQUEST.name: served[api.REDIS_CPU.name]}
            if topics is None:
                return found
            connection.flushall()
            written = projectors.measure(lab, topics, redis, worker_cores().worker, _CASES[case])
            if written:  # a quick run may have a single checkpoint, and so nothing to measure between two
                found |= {_RECORD.name: written[CPU.name], _REDIS_RECORD.name: written[projectors.REDIS_CPU.name]}
            return found

        return {LEADVIEW: measure}


def page(results: Results) -> str:
    """The table of `docs/capacity.md`: what compression saves and costs."""
    lines = ["| | JSON | compressed |", "|---|---|---|"]
    for what, name, metric, cases in _ROWS:
        outcome = results.benchmarks.get(name)
        rounds = Rounds(outcome.rounds if outcome else [])
        spreads = [rounds.spread(case, LEADVIEW, metric.name) for case in cases]
        cells = [f"{number(spread.median)} {metric.unit}" if spread else UNKNOWN for spread in spreads]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _stage(lab: Lab, stack: ExitStack, compression: Compression) -> Stage:
    cores, crm = worker_cores(), Crm(1000)
    redis = lab.redis(stack, f"redis-{compression}", cores)
    fill(redis, crm.records(10, _DOCUMENTS // 10 if lab.quick else _DOCUMENTS), compression)
    asked = requests.for_leads(crm.tenants)
    load = Load(lab, asked, cores.load)
    server = candidates.leadview(lab, stack, redis, cores)
    server.wait_until_ready(asked[0])
    load.closed(server.port, 16, lab.seconds(1.0))
    return Stage(redis, {LEADVIEW: server}, load, cores, crm.tenants)


def _topics(lab: Lab, stack: ExitStack) -> Topics | None:
    """Returns topics with records, on a Kafka of their own; None if Kafka cannot run here."""
    if pipeline.kafka_is_missing(lab, "projector"):
        return None
    with pinned(worker_cores().redis):
        kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
    topics = Topics(kafka.bootstrap_servers, PARTITIONS, 3_000 if lab.quick else _RECORDS)
    projectors.create_topics(kafka, PARTITIONS)
    publish(topics.kafka, Traffic().documents(topics.count))
    return topics
