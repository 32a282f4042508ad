"""Updates on Apache Kafka: records of leads and contacts that are already stored, one process."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from msgspec import Struct

from bench import changes, consuming_peers, pipeline, projectors
from bench.benchmark import OURS, Bar, Measure, Subject, Values
from bench.consuming_peers import RATE, Peer, Topics
from bench.cores import pinned, place
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
_LEADS, _QUICK_LEADS = 120_000, 15_000
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
        "Newer records of leads and contacts that are already stored (120,000 leads on 50,000 contacts), from Apache "
        "Kafka into Redis by one process: leads that get another note, contacts that get another custom field (no lead "
        "shows it), and contacts that get another phone number (each of their 1 to 5 leads shows it). New leads, whose "
        "contacts are stored, and new contacts are measured beside them."
    )
    metrics = projectors.METRICS
    subjects = (
        Subject(OURS, "leadview", "`python -m projector run`"),
        *consuming_peers.SUBJECTS,
        consuming_peers.QUIX,
    )
    bars = (
        Bar(RATE.name, LEADS_STAY, 1.0, at_least=True, case_against=NEW_LEADS),
        Bar(RATE.name, SUMMARY_STAYS, 1.0, at_least=True, case_against=NEW_CONTACTS),
    )
    rounds = 5
    anew = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - the shape of a benchmark
        return tuple(_STORED_BEFORE)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.missing(lab, self.name):
            return {}
        cores = place()
        with pinned(cores.redis):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        contacts, leads = Traffic().contacts_and_leads(_QUICK_LEADS if lab.quick else _LEADS)
        topics = {
            case: _publish(kafka, f"case{number}.", records)
            for number, (case, records) in enumerate(_records(contacts, leads).items())
        }
        stage = _Stage(lab, lab.redis(stack, "redis", cores), topics, cores.worker)
        stage.store(contacts, leads)
        peers = consuming_peers.runnable(lab)
        for peer in peers:
            stage.store_by(peer)
        return {OURS: stage.measure} | {peer.name: partial(stage.measure_peer, peer) for peer in peers}


def _records(contacts: Sequence[Record], leads: Sequence[Record]) -> dict[str, Iterable[Record]]:
    """The records that each case applies."""
    return {
        NEW_CONTACTS: contacts,
        NEW_LEADS: leads,
        LEADS_STAY: map(changes.another_note, leads),
        SUMMARY_STAYS: map(changes.another_custom_field, contacts),
        SUMMARY_CHANGES: map(changes.another_phone_number, contacts),
    }


def _publish(kafka: ApacheKafka, prefix: str, records: Iterable[Record]) -> Topics:
    published = list(records)
    projectors.create_topics(kafka, PARTITIONS, prefix)
    publish(kafka.bootstrap_servers, published, prefix)
    return Topics(kafka.bootstrap_servers, PARTITIONS, len(published), prefix)


class _Stage(Struct):
    """A Kafka with the records of each case, and a Redis that is given what is stored before a measurement."""

    lab: Lab
    server: RedisServer
    topics: Mapping[str, Topics]
    cores: set[int] | None

    @property
    def snapshots(self) -> Snapshots:
        return Snapshots(self.server, place().redis)

    def store(self, contacts: Sequence[Record], leads: Sequence[Record]) -> None:
        """Save what Redis holds before each of Leadview's measurements."""
        self.snapshots.save(_NOTHING)
        fill(self.server, contacts)
        self.snapshots.save(_CONTACTS)
        fill(self.server, leads)
        self.snapshots.save(_EVERYTHING)

    def store_by(self, peer: Peer) -> None:
        """Save the same records as this peer stores them."""
        with client(self.server) as redis:
            redis.flushall()
        for case in (NEW_CONTACTS, NEW_LEADS):
            peer.store_all(self.topics[case], self.server.url, self.cores)
        self.snapshots.save(peer.name)

    def measure(self, case: str) -> Values:
        self.snapshots.restore(_STORED_BEFORE[case])
        return projectors.measure(self.lab, self.topics[case], self.server, self.cores)

    def measure_peer(self, peer: Peer, case: str) -> Values:
        """Peers apply updates only: Leadview's own rate for new records is enough to compare with."""
        if _STORED_BEFORE[case] != _EVERYTHING:
            return {}
        self.snapshots.restore(peer.name)
        return peer.measure(self.topics[case], self.server.url, self.cores)
