"""The example of `docs/capacity.md`: what a large installation needs, and what incidents cost there. It is calculated
from what `results.json` has, and from what was measured once on a cluster.
"""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from bench import growth
from bench.benchmark import LEADVIEW
from bench.memory import JEMALLOC, OF_700_BYTES, ORGANIZATION_BYTES, OWNERS, REDIS_BYTES, case
from bench.outcome import Results
from projector.verify.parts import most_entities
from schemas.settings import ProjectorSettings

_LEADS, _CONTACTS, _ORGANIZATIONS, _REQUESTS, _EVENTS = 100_000_000, 33_000_000, 1_000_000, 500_000, 50_000
_RECORDS = _LEADS + _CONTACTS + _ORGANIZATIONS
_KEYS = _LEADS + 2 * _CONTACTS + 3 * _ORGANIZATIONS
"""A contact has one for the index of its leads. An organization has three, with those of its API key."""
_GIB = 1 << 30
_MAXMEMORY, _LARGE_VERIFY_MEMORY = 16 * _GIB, 16_000
_FULL, _BUSY, _OF_CHECKPOINTS = 0.8, 0.6, 0.4
_A, _Q, _P, _W, _K, _C = 95.9e-6, 25.4e-6, 104e-6, 41.1e-6, 150e-6, 43.8e-6
_R = 2_799.0
"""With those above, the symbols of the page on a cluster of 64 masters, in seconds and in records a second."""
_LOAD = _REQUESTS * _Q + _EVENTS * _W
_SHARES = (0.01, 0.02, 0.04)
_OUTAGE_SECONDS, _UNNOTICED_SECONDS = 15.0, 0.5
_RECORD_BYTES, _READ_SECONDS, _SCAN_SECONDS = 900, 2e-6, 134e-6
"""A record in benchmarks; what it costs to read one and leave it, and to let Redis look at a hundred keys."""


class Row(NamedTuple):
    """What is needed or what happens, how much that is, and how it is calculated."""

    what: str
    figure: str
    how: str


def _masters(projectors: int, share: float = 0.0) -> float:
    """Returns the masters that the load needs if the largest organization has this share of it."""
    return (_LOAD + projectors * _OF_CHECKPOINTS * _C / _K) / (_BUSY - share * _LOAD)


def rows(results: Results) -> Iterator[Row]:
    """Yields the lines of the example; none if a figure was not measured."""
    counted, memory = results.benchmarks.get(growth.BENCHMARK.name), results.benchmarks.get("memory")
    if counted is None or memory is None:
        return
    lead = memory.spread(case(OF_700_BYTES, JEMALLOC), LEADVIEW, REDIS_BYTES.name)
    organization = memory.spread(case(OWNERS, JEMALLOC), LEADVIEW, ORGANIZATION_BYTES.name)
    growths = (growth.BY_KEYS, growth.BY_RECORDS, growth.BY_MASTERS, growth.BY_ENTITIES)
    slopes = [each.slope(counted) for each in growths]
    of_projector = growth.BY_PROJECTORS.slope(counted)
    if lead is None or organization is None or of_projector is None:
        return
    by_keys, by_records, by_masters, by_entities = (slope or 0.0 for slope in slopes)
    stored = (_LEADS * lead.median * 2 + _ORGANIZATIONS * organization.median) / _FULL
    workers, projectors = ceil(_REQUESTS * _A / _BUSY), ceil(_EVENTS * _P / _BUSY)
    shards = max(ceil(stored / _MAXMEMORY), ceil(_masters(projectors)))
    yield Row("Redis memory", f"{stored / _GIB:,.0f} GiB", "an upper bound: three leads share a contact")
    yield Row("Redis masters", f"{shards} of 16 GiB", f"for CPU time; memory alone needs {ceil(stored / _MAXMEMORY)}")
    yield Row("API workers", f"{workers}", "")
    yield Row("projectors", f"{projectors}", f"{2 * projectors} partitions of each topic")
    needed = ", ".join(f"{ceil(_masters(projectors, share)):,}" for share in _SHARES)
    yield Row(
        f"masters if one organization has {', '.join(f'{share * 100:g}' for share in _SHARES)} % of the load",
        needed,
        f"no number from {_BUSY / _LOAD * 100:.1f} % on",
    )
    idle = by_masters + (projectors - 1) * of_projector
    yield Row("idle", f"{idle:.0f} commands/s of each master", "`growth`")
    most = min(projectors / _P, (shards - _REQUESTS * _Q) / _W)
    late = (_OUTAGE_SECONDS + _UNNOTICED_SECONDS) * most / (most - _EVENTS)
    who = f"503 for {_OUTAGE_SECONDS:.0f} s for 1 in {shards} organizations; data of all up to {late:.0f} s old"
    yield Row("failover of a master", who, "calculated")
    replay = (_LEADS + _CONTACTS) / (_R * projectors)
    yield Row("rebuild", f"{replay / 60:.0f} min", "calculated")
    commands = by_keys * _KEYS / shards
    yield Row(
        "erasures that share a pass",
        f"{commands:,.0f} commands, {commands * _SCAN_SECONDS:.0f} s of a master's CPU",
        f"`growth`; {_KEYS / shards / 1e6:.1f} million keys in it",
    )
    read = by_records * _RECORDS
    gigabytes = read * _RECORD_BYTES / 1e9
    yield Row(
        "recreated organizations that share a reading",
        f"503 for {read * _READ_SECONDS / 60:.1f} min or more",
        f"`growth`; {gigabytes:.0f} GB, {gigabytes * 8 / 60:.0f} min at 1 Gbit/s",
    )
    for megabytes in (ProjectorSettings().verify_memory, _LARGE_VERIFY_MEMORY):
        readings = ceil(by_entities * _RECORDS * most_entities(growth.VERIFY_MEMORY) / most_entities(megabytes))
        hours = readings * _RECORDS * _READ_SECONDS / 3600
        yield Row(
            f"`verify` with {megabytes:,} MB",
            f"{hours:,.1f} h or more",
            f"`growth`; {readings:,} readings of all topics",
        )
