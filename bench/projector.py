"""The projector on Apache Kafka: one process, new records, records that are already applied, and updates."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from bench import consumers, pipeline
from bench.api import ZSTD
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Subject, Target, Values, client
from bench.consumers import CPU, ONE_AT_A_TIME, PLAIN_SET, RATE, Topics
from bench.crm import (
    LEADS_STAY,
    NEW_CONTACTS,
    NEW_LEADS,
    SUMMARY_CHANGES,
    SUMMARY_STAYS,
    Traffic,
    is_lead,
    publish,
    updates,
)
from bench.filling import Snapshots, fill
from bench.machine import worker_cores
from devstack.apache_kafka import ApacheKafka
from projector.record import Record
from schemas import names

NEW, APPLIED = "new records", "already applied"
_LEADS, _QUICK_LEADS = 120_000, 15_000
_FEW_LEADS, _QUICK_FEW_LEADS = 7_000, 700
"""Of a peer that awaits each write: with their contacts, 10,000 records."""
_NOTHING, _CONTACTS, _EVERYTHING, _JUST_WRITTEN = "nothing", "contacts", "everything", "just written"
_STORED_BEFORE = {
    NEW: _NOTHING,
    APPLIED: _JUST_WRITTEN,
    NEW_CONTACTS: _NOTHING,
    NEW_LEADS: _CONTACTS,
    LEADS_STAY: _EVERYTHING,
    SUMMARY_STAYS: _EVERYTHING,
    SUMMARY_CHANGES: _EVERYTHING,
}


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    return _Stage(lab, stack).measures()


def _publish(kafka: ApacheKafka, prefix: str, traffic: Traffic, leads: int) -> tuple[list[Record], dict[str, Topics]]:
    """Send the records that each case applies to topics of their own. Returns contacts and leads, and these topics."""
    contacts, all_leads = traffic.contacts_and_leads(leads)
    records = {NEW: traffic.shuffled([*contacts, *all_leads]), **updates(contacts, all_leads)}
    topics = {}
    for number, (case, of_case) in enumerate(records.items()):
        published = list(of_case)
        topics[case] = Topics(kafka.bootstrap_servers, len(published), f"{prefix}{number}.")
        consumers.create_topics(kafka, topics[case].prefix)
        publish(kafka.bootstrap_servers, published, topics[case].prefix)
    return [*contacts, *all_leads], topics | {APPLIED: topics[NEW]}


class _Stage:
    """A Kafka with the records of each case, and a Redis that holds the right records before each measurement.

    Peers that await each write would need minutes for all records. They apply those of `_few`.
    """

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self._lab, self._cores = lab, worker_cores()
        kafka, traffic = pipeline.start_kafka(lab, stack, self._cores.redis), Traffic()
        stored, self._topics = _publish(kafka, "all", traffic, _QUICK_LEADS if lab.quick else _LEADS)
        _, self._few = _publish(kafka, "few", traffic, _QUICK_FEW_LEADS if lab.quick else _FEW_LEADS)
        self._server = lab.redis(stack, self._cores)
        self._snapshots = Snapshots(self._server, self._cores.redis)
        self._store(stored)

    def measures(self) -> Mapping[str, Measure]:
        peers = {peer.name: partial(self._measure_peer, peer) for peer in (PLAIN_SET, ONE_AT_A_TIME)}
        return {LEADVIEW: self._measure, ZSTD.name: self._measure_compressed, **peers}

    def _store(self, contacts_and_leads: Sequence[Record]) -> None:
        """Save what Redis holds before each measurement: Leadview's, and that of the peers that apply updates."""
        self._snapshots.save(_NOTHING)
        for name, last in ((_CONTACTS, False), (_EVERYTHING, True)):
            fill(self._server, [record for record in contacts_and_leads if is_lead(record) == last])
            self._snapshots.save(name)
        for peer in (PLAIN_SET, ONE_AT_A_TIME):
            self._snapshots.restore(_NOTHING)
            for case in (NEW_CONTACTS, NEW_LEADS):
                consumers.measure_peer(self._lab, peer, self._topics_of(peer)[case], self._server, self._cores.worker)
            self._snapshots.save(peer.name)

    def _measure(self, case: str) -> Values:
        self._snapshots.restore(_STORED_BEFORE[case])
        found = consumers.measure(self._lab, self._topics[case], self._server, self._cores.worker)
        if case == NEW:
            self._save_without_positions()
        return found

    def _save_without_positions(self) -> None:
        """What was just written, without how far it was read: the same records are read again from the beginning."""
        with client(self._server) as redis:
            redis.hdel(names.CONTROL, *(field for field in redis.hkeys(names.CONTROL) if b":" in field))
        self._snapshots.save(_JUST_WRITTEN)

    def _measure_compressed(self, case: str) -> Values:
        if case != NEW:
            return {}
        self._snapshots.restore(_NOTHING)
        return consumers.measure(self._lab, self._topics[case], self._server, self._cores.worker, "zstd")

    def _measure_peer(self, peer: Subject, case: str) -> Values:
        """Peers write every record in the same way, new or not."""
        if case != NEW and _STORED_BEFORE[case] != _EVERYTHING:
            return {}
        self._snapshots.restore(_NOTHING if case == NEW else peer.name)
        return consumers.measure_peer(self._lab, peer, self._topics_of(peer)[case], self._server, self._cores.worker)

    def _topics_of(self, peer: Subject) -> Mapping[str, Topics]:
        return self._few if peer is ONE_AT_A_TIME else self._topics


BENCHMARK = Benchmark(
    name="projector",
    what=(
        "One process applies records of about 900 bytes from Apache Kafka to Redis: 120,000 leads and their 50,000 "
        "contacts with 1 to 5 leads each, in random order. Then it reads the same records again, which are already "
        "applied. Then it applies newer records of what is stored: leads with one more note, contacts with another "
        "custom field (leads do not show it), and contacts with another phone number (each of their leads shows it). "
        "For comparison, it applies new leads of stored contacts, and new contacts."
    ),
    metrics=consumers.METRICS,
    subjects=(consumers.PROJECTING, ZSTD, PLAIN_SET, ONE_AT_A_TIME),
    cases=tuple(_STORED_BEFORE),
    prepare=_prepare,
    targets=(
        Target(RATE.name, NEW, 0.5, at_least=True, against=PLAIN_SET.name),
        Target(CPU.name, NEW, 2.2, at_least=False, against=PLAIN_SET.name),
        Target(RATE.name, NEW, 10.0, at_least=True, against=ONE_AT_A_TIME.name),
        Target(RATE.name, NEW, 40_000.0, at_least=True),
        Target(RATE.name, LEADS_STAY, 1.0, at_least=True, case_against=NEW_LEADS),
        Target(RATE.name, SUMMARY_STAYS, 1.0, at_least=True, case_against=NEW_CONTACTS),
    ),
    needs_kafka=True,
    rounds=5,
)
