"""Memory of Redis: bytes used for each byte of a document, with the allocator that servers usually have and libc's."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache, partial
from itertools import product
from pathlib import Path

from bench.api import ZSTD
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Metric, Subject, Target, Values, client
from bench.crm import Crm
from bench.filling import bodies, fill
from bench.machine import Cores, allocator
from devstack.redis_server import RedisServer, installed_redis, redis_program
from schemas.resources import CONTACT, LEAD
from schemas.settings import Compression

RATIO = Metric("Redis bytes per document byte", "times")
REDIS_BYTES = Metric("Redis, lead and contact", "bytes")
_LEAD_BYTES = Metric("lead", "bytes")
_CONTACT_BYTES = Metric("contact", "bytes")
ORGANIZATION_BYTES = Metric("Redis, organization and key", "bytes")
_ORGANIZATIONS = 10
_PLAIN = "plain-set"
JEMALLOC, LIBC = "jemalloc", "libc"
OF_700_BYTES, OF_1_KB = "leads of 700 bytes", "leads of 1 KB"
_CONTACTS, OWNERS = "contacts alone", "organizations alone"


_LEAD_SIZES = {OF_700_BYTES: 700, OF_1_KB: 1000, _CONTACTS: None}
"""The bytes of a lead in each case. None for no leads, because no lead with a contact is as small as 400 bytes, but
contacts are."""


def case(kind: str, allocator: str) -> str:
    """The name of a case."""
    return f"{kind}, {allocator}"


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    count, programs = 1_000 if lab.quick else 100_000, _programs(lab)

    @cache
    def filled(kind: str, allocator: str, compression: Compression) -> tuple[Crm, RedisServer]:
        server = lab.redis(stack, Cores(), program=programs[allocator])
        return _fill(server, _LEAD_SIZES[kind], count, compression), server

    def measure(subject: str, case: str) -> Values:
        kind, _, allocator = case.rpartition(", ")
        if allocator not in programs:
            return {}
        if kind == OWNERS:
            return _of_organizations(lab, programs[allocator], count) if subject == LEADVIEW else {}
        if subject == ZSTD.name:
            return _values(*filled(kind, allocator, "zstd")) if kind != _CONTACTS else {}
        crm, server = filled(kind, allocator, "none")
        if subject == LEADVIEW:
            return _values(crm, server)
        with ExitStack() as alone:
            plain = lab.redis(alone, Cores(), program=programs[allocator])
            _copy_bodies(server, plain, crm)
            return _values(crm, server, plain)

    return {name: partial(measure, name) for name in (LEADVIEW, ZSTD.name, _PLAIN)}


def _programs(lab: Lab) -> Mapping[str, Path]:
    """The redis-servers of this machine by their allocator."""
    found = {}
    for program in {redis_program(), Path(installed_redis() or redis_program())}:
        found[allocator(program)] = program
    for missing in {JEMALLOC, LIBC} - found.keys():
        lab.left_out[missing] = (
            f"no redis-server has it here (Debian's redis-server has {JEMALLOC}, that of build/redis-6.2 {LIBC})"
        )
    return found


def _fill(server: RedisServer, lead_bytes: int | None, count: int, compression: Compression) -> Crm:
    """Fill a server with this number of documents. Returns the core product that knows them."""
    crm = Crm(lead_bytes)
    if lead_bytes is not None:
        fill(server, crm.records(_ORGANIZATIONS, count), compression)
        return crm
    fill(server, (record for record in crm.records(_ORGANIZATIONS, 2 * count) if record.kind is not LEAD))
    for tenant in crm.tenants:
        tenant.leads.clear()
    return crm


def _of_organizations(lab: Lab, program: Path, count: int) -> Values:
    with ExitStack() as stack:
        server = lab.redis(stack, Cores(), program=program)
        fill(server, Crm().records(count, 0))
        return {ORGANIZATION_BYTES.name: _used(server) / count}


def _used(server: RedisServer) -> float:
    """Bytes that the allocator of Redis gave out since the start. Rounding and Redis's own tables are included."""
    with client(server) as connection:
        memory = connection.info("memory")
    return float(memory["used_memory"] - memory["used_memory_startup"])


def _values(crm: Crm, leadview: RedisServer, measured: RedisServer | None = None) -> Values:
    """What a server needs (by default Leadview's) for the documents that Leadview's has."""
    pairs = sum(len(tenant.contacts) for tenant in crm.tenants)
    leads = _bytes(bodies(leadview, crm.tenants, LEAD))
    contacts = _bytes(bodies(leadview, crm.tenants, CONTACT))
    used = _used(measured or leadview)
    return {
        RATIO.name: used / (leads + contacts),
        REDIS_BYTES.name: used / pairs,
        _LEAD_BYTES.name: leads / pairs,
        _CONTACT_BYTES.name: contacts / pairs,
    }


def _copy_bodies(leadview: RedisServer, plain: RedisServer, crm: Crm) -> None:
    with client(plain) as connection:
        for resource in (LEAD, CONTACT):
            for some in bodies(leadview, crm.tenants, resource):
                connection.mset(some)


def _bytes(documents: Iterator[dict[bytes, bytes]]) -> int:
    return sum(len(each) for of_organization in documents for each in of_organization.values())


BENCHMARK = Benchmark(
    name="memory",
    what=(
        "Memory of Redis for 100,000 leads and contacts, one contact each, including all keys and indexes, divided by "
        "the bytes of the documents as they are served; and that for 100,000 organizations with one API key and no "
        "documents. Contacts have 390 bytes: these alone are the case of small documents. The dictionary for the "
        "compression was trained with the same kind of sample data. The allocator of Redis decides how much of its "
        "memory is rounding: servers usually have jemalloc."
    ),
    metrics=(RATIO, REDIS_BYTES, _LEAD_BYTES, _CONTACT_BYTES, ORGANIZATION_BYTES),
    subjects=(
        Subject(LEADVIEW, "leadview", "what the projector writes: heads, documents, and the leads of each contact"),
        ZSTD,
        Subject(_PLAIN, "limit", "the documents alone, one SET for each, with the same keys"),
    ),
    cases=tuple(case(kind, allocator) for kind, allocator in product((*_LEAD_SIZES, OWNERS), (JEMALLOC, LIBC))),
    prepare=_prepare,
    targets=(
        Target(RATIO.name, case(OF_700_BYTES, LIBC), 1.45, at_least=False),
        Target(RATIO.name, case(OF_1_KB, LIBC), 1.25, at_least=False),
        Target(RATIO.name, case(_CONTACTS, LIBC), 1.6, at_least=False),
    ),
    rounds=1,
)
