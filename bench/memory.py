"""Memory of Redis: bytes for each byte of a document."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import TypeVar

from bench.benchmark import OURS, Bar, Measure, Metric, Subject, Values
from bench.cores import Cores
from bench.crm import Crm
from bench.filling import fill
from bench.lab import Lab, client
from devstack.redis_server import RedisServer
from schemas import layouts, names

_RATIO = Metric("Redis bytes a document byte", "times", chart=True)
_REDIS_BYTES = Metric("Redis, lead and contact", "bytes")
_LEAD_BYTES = Metric("lead", "bytes")
_CONTACT_BYTES = Metric("contact", "bytes")
_ORGANIZATION_BYTES = Metric("Redis, organization and key", "bytes")
_LEAD_SIZE = 700
_ORGANIZATIONS = 10
_BATCH = 1000
_KINDS = {"leads": (names.lead, layouts.LEAD_BODY), "contacts": (names.contact, layouts.CONTACT_BODY)}
_PLAIN = "plain-set"

T = TypeVar("T")


class Memory:
    name = "memory"
    what = (
        "Memory of Redis for leads of about 700 bytes with one contact each, all keys and indexes, against the bytes "
        "of the documents as they are served."
    )
    metrics = (_RATIO, _REDIS_BYTES, _LEAD_BYTES, _CONTACT_BYTES)
    subjects = (
        Subject(OURS, "leadview", "what the projector writes: heads, documents, and the leads of each contact"),
        Subject(_PLAIN, "limit", "the documents alone, one SET each under the same names"),
    )
    bars = (Bar(_RATIO.name, "100,000 documents", 1.45, at_least=False),)
    rounds = 1
    anew = False

    def cases(self, lab: Lab) -> Sequence[str]:
        return ("1,000 documents",) if lab.quick else ("100,000 documents",)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        ours, plain = (lab.redis(stack, f"redis-{name}", Cores()) for name in (OURS, _PLAIN))
        crm = Crm(_LEAD_SIZE)

        def measure(server: RedisServer, case: str) -> Values:
            if not crm.tenants:
                fill(ours, crm.records(_ORGANIZATIONS, int(case.split(maxsplit=1)[0].replace(",", ""))))
                _copy_bodies(ours, plain, crm)
            return _values(server, ours, crm)

        return {OURS: partial(measure, ours), _PLAIN: partial(measure, plain)}


class MemoryOrganizations:
    name = "memory-organizations"
    what = "Memory of Redis for an organization with one API key, without documents."
    metrics = (_ORGANIZATION_BYTES,)
    subjects = (Subject(OURS, "leadview", "the organization's record, and its key by id and by hash"),)
    bars: Sequence[Bar] = ()
    rounds = 1
    anew = False

    def cases(self, lab: Lab) -> Sequence[str]:
        return ("1,000 organizations",) if lab.quick else ("100,000 organizations",)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        server = lab.redis(stack, "redis", Cores())

        def measure(case: str) -> Values:
            count = int(case.split(maxsplit=1)[0].replace(",", ""))
            fill(server, Crm().records(count, 0))
            return {_ORGANIZATION_BYTES.name: _used(server) / count}

        return {OURS: measure}


def _used(server: RedisServer) -> float:
    """Redis counts what its allocator gave out: rounding up to its sizes, and its own tables, are in it."""
    with client(server) as connection:
        memory = connection.info("memory")
    return float(memory["used_memory"] - memory["used_memory_startup"])


def _values(server: RedisServer, ours: RedisServer, crm: Crm) -> Values:
    pairs = sum(len(tenant.leads) for tenant in crm.tenants)
    leads = sum(len(body) for _, body in _bodies(ours, crm, "leads"))
    contacts = sum(len(body) for _, body in _bodies(ours, crm, "contacts"))
    used = _used(server)
    return {
        _RATIO.name: used / (leads + contacts),
        _REDIS_BYTES.name: used / pairs,
        _LEAD_BYTES.name: leads / pairs,
        _CONTACT_BYTES.name: contacts / pairs,
    }


def _copy_bodies(ours: RedisServer, plain: RedisServer, crm: Crm) -> None:
    with client(plain) as connection:
        for kind in _KINDS:
            for batch in _batches(_bodies(ours, crm, kind)):
                connection.mset(dict(batch))


def _bodies(server: RedisServer, crm: Crm, kind: str) -> Iterator[tuple[bytes, bytes]]:
    """Names and bodies of all leads, or contacts, as they are served."""
    name, body = _KINDS[kind]
    found = (
        name(names.organization(tenant.organization_id), 1, record_id)
        for tenant in crm.tenants
        for record_id in (tenant.leads if kind == "leads" else tenant.contacts)
    )
    with client(server) as connection:
        for batch in _batches(found):
            values: list[bytes] = connection.mget(batch)
            yield from ((each, value[body:]) for each, value in zip(batch, values, strict=True))


def _batches(items: Iterator[T]) -> Iterator[list[T]]:
    while batch := list(islice(items, _BATCH)):
        yield batch
