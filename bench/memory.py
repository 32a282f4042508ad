"""Memory of Redis: bytes used for each byte of a document."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import islice
from typing import NamedTuple, TypeVar

from bench.benchmark import LEADVIEW, Measure, Metric, Subject, Target, Values
from bench.cores import Cores
from bench.crm import Crm
from bench.filling import fill, live
from bench.lab import Lab, client
from devstack.redis_server import RedisServer
from schemas import names
from schemas.bodies import body
from schemas.resources import CONTACT, LEAD, RESOURCES, Resource
from schemas.settings import Compression

RATIO = Metric("Redis bytes per document byte", "times", chart=True)
_REDIS_BYTES = Metric("Redis, lead and contact", "bytes")
_LEAD_BYTES = Metric("lead", "bytes")
_CONTACT_BYTES = Metric("contact", "bytes")
_ORGANIZATION_BYTES = Metric("Redis, organization and key", "bytes")
_ORGANIZATIONS = 10
_BATCH = 1000
_PLAIN = "plain-set"


class _Kind(NamedTuple):
    """The documents of a case. `lead_bytes` is the size of a lead; None for no leads, because no lead with a contact is
    as small as 400 bytes, but contacts are.
    """

    lead_bytes: int | None
    compression: Compression = "none"
    random_text: bool = False


LEADS_OF_1_KB, COMPRESSED, SMALLER_COMPRESSED = ", leads of 1 KB", ", leads of 1 KB, compressed", ", compressed"
RANDOM_TEXT, _SMALL = f"{COMPRESSED}, random text", ", contacts alone"
_KINDS = {
    "": _Kind(700),
    LEADS_OF_1_KB: _Kind(1000),
    _SMALL: _Kind(None),
    COMPRESSED: _Kind(1000, "zstd"),
    RANDOM_TEXT: _Kind(1000, "zstd", random_text=True),
    SMALLER_COMPRESSED: _Kind(700, "zstd"),
}
"""By the end of the name of the case."""

T = TypeVar("T")


class Memory:
    name = "memory"
    what = (
        "Memory of Redis for leads with one contact each, including all keys and indexes, divided by the bytes of the "
        "documents as they are served. Leads have about 700 bytes unless the case says otherwise, and contacts 390: "
        "these alone are the case of small documents. The dictionary for the compression was trained with the same "
        "kind of sample data. With random text, names, addresses, notes, tags and phone numbers are random letters."
    )
    metrics = (RATIO, _REDIS_BYTES, _LEAD_BYTES, _CONTACT_BYTES)
    subjects = (
        Subject(
            LEADVIEW,
            "leadview",
            "what the projector writes: heads, documents, and the leads of each contact",
        ),
        Subject(_PLAIN, "limit", "the documents alone, one SET for each, with the same keys"),
    )
    targets = (
        Target(RATIO.name, "100,000 documents", 1.45, at_least=False),
        Target(RATIO.name, f"100,000 documents{LEADS_OF_1_KB}", 1.25, at_least=False),
        Target(RATIO.name, f"100,000 documents{_SMALL}", 1.6, at_least=False),
        Target(RATIO.name, f"100,000 documents{COMPRESSED}", 0.6, at_least=False),
    )
    rounds = 1
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:
        return [f"{'1,000' if lab.quick else '100,000'} documents{end}" for end in _KINDS]

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        @cache
        def filled(case: str) -> tuple[Crm, Mapping[str, RedisServer]]:
            servers = {name: lab.redis(stack, f"redis-{name}", Cores()) for name in (LEADVIEW, _PLAIN)}
            crm = _fill(servers[LEADVIEW], case)
            _copy_bodies(servers[LEADVIEW], servers[_PLAIN], crm)
            return crm, servers

        def measure(subject: str, case: str) -> Values:
            crm, servers = filled(case)
            return _values(servers[subject], servers[LEADVIEW], crm)

        return {name: partial(measure, name) for name in (LEADVIEW, _PLAIN)}


class MemoryOrganizations:
    name = "memory-organizations"
    what = "Memory of Redis for an organization with one API key and no documents."
    metrics = (_ORGANIZATION_BYTES,)
    subjects = (Subject(LEADVIEW, "leadview", "the record of the organization, and its API key by id and by hash"),)
    targets: Sequence[Target] = ()
    rounds = 1
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:
        return ("1,000 organizations",) if lab.quick else ("100,000 organizations",)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        server = lab.redis(stack, "redis", Cores())

        def measure(case: str) -> Values:
            count = int(case.split(maxsplit=1)[0].replace(",", ""))
            fill(server, Crm().records(count, 0))
            return {_ORGANIZATION_BYTES.name: _used(server) / count}

        return {LEADVIEW: measure}


def _fill(server: RedisServer, case: str) -> Crm:
    """Fill a server with the documents of a case. Returns the core product that knows them."""
    number, _, end = case.partition(" documents")
    count, kind = int(number.replace(",", "")), _KINDS[end]
    crm = Crm(kind.lead_bytes, random_text=kind.random_text)
    if kind.lead_bytes is not None:
        fill(server, crm.records(_ORGANIZATIONS, count), kind.compression)
        return crm
    fill(server, (record for record in crm.records(_ORGANIZATIONS, 2 * count) if record.kind is not LEAD))
    for tenant in crm.tenants:
        tenant.leads.clear()
    return crm


def _used(server: RedisServer) -> float:
    """Bytes that the allocator of Redis gave out since the start. Rounding and Redis's own tables are included."""
    with client(server) as connection:
        memory = connection.info("memory")
    return float(memory["used_memory"] - memory["used_memory_startup"])


def _values(server: RedisServer, leadview: RedisServer, crm: Crm) -> Values:
    pairs = sum(len(tenant.contacts) for tenant in crm.tenants)
    leads = sum(len(body) for _, body in _bodies(leadview, crm, LEAD))
    contacts = sum(len(body) for _, body in _bodies(leadview, crm, CONTACT))
    used = _used(server)
    return {
        RATIO.name: used / (leads + contacts),
        _REDIS_BYTES.name: used / pairs,
        _LEAD_BYTES.name: leads / pairs,
        _CONTACT_BYTES.name: contacts / pairs,
    }


def _copy_bodies(leadview: RedisServer, plain: RedisServer, crm: Crm) -> None:
    with client(plain) as connection:
        for resource in RESOURCES:
            for batch in _batches(_bodies(leadview, crm, resource)):
                connection.mset(dict(batch))


def _bodies(server: RedisServer, crm: Crm, resource: Resource) -> Iterator[tuple[bytes, bytes]]:
    """The keys in Redis and the served bodies of all records of a resource."""
    with client(server) as connection:
        generation = live(connection)
        keys = (
            names.document(resource, names.organization(tenant.organization_id), generation, record_id)
            for tenant in crm.tenants
            for record_id in tenant.ids(resource)
        )
        for batch in _batches(keys):
            values: list[bytes] = connection.mget(batch)
            yield from ((each, body(resource, value)) for each, value in zip(batch, values, strict=True))


def _batches(items: Iterator[T]) -> Iterator[list[T]]:
    while batch := list(islice(items, _BATCH)):
        yield batch
