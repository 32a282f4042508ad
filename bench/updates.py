"""Updates on Apache Kafka: one process, newer records of leads and contacts that are already stored."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from bench import changes, consuming_peers, pipeline, projectors
from bench.benchmark import LEADVIEW, Measure, Subject, Target, Values
from bench.consuming_peers import RATE, Peer, Topics
from bench.cores import Cores, pinned, worker_cores
from bench.filling import fill
from bench.lab import Lab, client
from bench.snapshots import Snapshots
from bench.traffic import Traffic, publish
from devstack.apache_kafka import ApacheKafka
from devstack.redis_server import RedisServer
from projector.record import Record

NEW_LEADS, NEW_CONTACTS = "new leads", "new contacts"
LEADS_STAY = "leads whose contact stays"
SUMMARY_STAYS, SUMMARY_CHANGES = "contacts whose summary stays", "contacts whose summary changes"
PARTITIONS = 4
_LEADS, _QUICK_LEADS, _QUICK_FEW_LEADS = 120_000, 15_000, 1_000
_NOTHING, _CONTACTS, _EVERYTHING = "nothing", "contacts", "everything"
_STORED_BEFORE = {
    NEW_CONTACTS: _NOTHING,
    NEW_LEADS: _CONTACTS,
    LEADS_STAY: _EVERYTHING,
    SUMMARY_STAYS: _EVERYTHING,
    SUMMARY_CHANGES: _EVERYTHING,
}


class Updates:
    name = "updates"
    what = (
        "One process applies newer records of leads and contacts that are already stored (120,000 leads of 50,000 "
        "contacts): leads with one more note, contacts with another custom field (leads do not show it), and contacts "
        "with another phone number (each of their 1 to 5 leads shows it). For comparison, it applies new leads of "
        "stored contacts, and new contacts."
    )
    metrics = projectors.METRICS
    subjects = (
        Subject(LEADVIEW, "leadview", "`python -m projector run`"),
        *consuming_peers.SUBJECTS,
        consuming_peers.QUIX,
    )
    targets = (
        Target(RATE.name, LEADS_STAY, 1.0, at_least=True, case_against=NEW_LEADS),
        Target(RATE.name, SUMMARY_STAYS, 1.0, at_least=True, case_against=NEW_CONTACTS),
    )
    rounds = 5
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return tuple(_STORED_BEFORE)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        cores = worker_cores()
        with pinned(cores.redis):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        traffic = Traffic()
        contacts, leads = traffic.contacts_and_leads(_QUICK_LEADS if lab.quick else _LEADS)
        few = traffic.contacts_and_leads(_QUICK_FEW_LEADS if lab.quick else consuming_peers.ONE_AT_A_TIME)
        topics, few_topics = _publish(kafka, "all", contacts, leads), _publish(kafka, "few", *few)
        stage = _Stage(lab, lab.redis(stack, "redis", cores), topics, few_topics, cores)
        stage.store(contacts, leads)
        peers = consuming_peers.runnable(lab)
        for peer in peers:
            stage.store_as(peer)
        return {LEADVIEW: stage.measure} | {peer.name: partial(stage.measure_peer, peer) for peer in peers}


def _publish(kafka: ApacheKafka, prefix: str, contacts: Sequence[Record], leads: Sequence[Record]) -> dict[str, Topics]:
    """Send the records that each case applies to topics of their own."""
    records: dict[str, Iterable[Record]] = {
        NEW_CONTACTS: contacts,
        NEW_LEADS: leads,
        LEADS_STAY: map(changes.another_note, leads),
        SUMMARY_STAYS: map(changes.another_custom_field, contacts),
        SUMMARY_CHANGES: map(changes.another_phone_number, contacts),
    }
    topics = {}
    for number, (case, of_case) in enumerate(records.items()):
        published = list(of_case)
        topics[case] = Topics(kafka.bootstrap_servers, PARTITIONS, len(published), f"{prefix}{number}.")
        projectors.create_topics(kafka, PARTITIONS, topics[case].prefix)
        publish(kafka.bootstrap_servers, published, topics[case].prefix)
    return topics


class _Stage:
    """A Kafka with the records of each case, and a Redis that holds the right records before each measurement.

    Peers that await each write would need minutes for all records. They apply those of `few_topics`.
    """

    def __init__(
        self,
        lab: Lab,
        server: RedisServer,
        topics: Mapping[str, Topics],
        few_topics: Mapping[str, Topics],
        cores: Cores,
    ) -> None:
        self._lab = lab
        self._server = server
        self._topics = topics
        self._few_topics = few_topics
        self._cores = cores.worker
        self._snapshots = Snapshots(server, cores.redis)

    def store(self, contacts: Sequence[Record], leads: Sequence[Record]) -> None:
        """Save what Redis holds before each of Leadview's measurements."""
        self._snapshots.save(_NOTHING)
        fill(self._server, contacts)
        self._snapshots.save(_CONTACTS)
        fill(self._server, leads)
        self._snapshots.save(_EVERYTHING)

    def store_as(self, peer: Peer) -> None:
        """Let the peer write the same records, and save what Redis holds then."""
        with client(self._server) as redis:
            redis.flushall()
        for case in (NEW_CONTACTS, NEW_LEADS):
            peer.measure(self._topics_of(peer)[case], self._server.url, self._cores)
        self._snapshots.save(peer.name)

    def measure(self, case: str) -> Values:
        self._snapshots.restore(_STORED_BEFORE[case])
        return projectors.measure(self._lab, self._topics[case], self._server, self._cores)

    def measure_peer(self, peer: Peer, case: str) -> Values:
        """Peers are measured with updates only. The rates for new records are compared with Leadview's updates."""
        if _STORED_BEFORE[case] != _EVERYTHING:
            return {}
        self._snapshots.restore(peer.name)
        return peer.measure(self._topics_of(peer)[case], self._server.url, self._cores)

    def _topics_of(self, peer: Peer) -> Mapping[str, Topics]:
        return self._few_topics if peer.awaits_writes else self._topics
