"""The command `doctor`: checks what must be there before a start, or what the gateway in front of the API does, and
writes a bundle for a ticket. No check writes anything to Redis or Kafka.
"""

import argparse
import asyncio
import os
import platform
import time
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import version as version_of
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from rich.text import Text

from operate.commands import gateway, status
from operate.commands.argument_types import read_key
from operate.commands.operator import Operator
from projector.errors import Denied, NotKnown, ProjectorError, Refused, Unavailable
from projector.health.judge import of_history, of_members, of_records, of_redis, of_topics, of_transactions
from projector.health.observe import KafkaPart, Observation, observe
from projector.kafka.accepted import OffsetTexts
from projector.kafka.brokers import named
from projector.kafka.client import OLDEST_FETCH, answered, newest_fetch, release
from projector.kafka.reader import open_reader
from projector.kafka.topics import DELETIONS_MS, describe
from projector.mapping import VERSION as MAPPING_VERSION
from projector.problem import ClockDiffers, Evicted, KafkaDenies, OtherLayout, Problem
from projector.reason import RedisReason
from projector.record import Partition
from projector.redis import rights
from projector.redis.store import Store
from projector.words import duration, remedy, say
from runtime.redis.access import access
from runtime.redis.errors import TooOld
from runtime.redis.version import Version
from schemas import api_keys
from schemas.control import LAYOUT, number_of
from schemas.heartbeat import KafkaRight
from schemas.resources import KINDS
from schemas.settings import ApiSettings, ProjectorSettings, RedisSettings, brokers, effective, load, secrets
from schemas.version import VERSION

SECONDS = 8.0
"""How long each check may take."""
ANSWER_SECONDS = 4.0
"""How long Redis and Kafka may take for their first answer."""
_CORRECT = (
    "Start Redis, or correct LEADVIEW_REDIS_URL, LEADVIEW_REDIS_USERNAME and LEADVIEW_REDIS_PASSWORD, or the TLS files "
    "(LEADVIEW_REDIS_TLS_…)"
)
_ATTEMPTS, _PAUSE_SECONDS = 10, 0.3
_STYLES = {"ok": "green", "problem": "bold red", "unknown": "yellow", "note": "yellow"}
_LIBRARIES = ("aiokafka", "redis", "hiredis", "msgspec", "orjson", "starlette", "uvicorn", "uvloop")

T = TypeVar("T")


class Diagnosis(NamedTuple):
    """A line of `doctor`. `unknown`: it could not be checked, and the text says why. `note`: it works, and may do harm
    some time.
    """

    name: str
    result: Literal["ok", "problem", "unknown", "note"]
    text: str


class _Warning(ProjectorError):
    """A check has found something that may do harm some time."""


async def run_doctor(arguments: argparse.Namespace, operator: Operator) -> int:
    """Check everything, print a line for each check. Returns 0 if there is no problem, otherwise 1.

    Raises MalformedKey, for what standard input has in place of a key.
    """
    settings: RedisSettings = load(ApiSettings, os.environ) if arguments.api else operator.settings
    key = read_key() if arguments.key else None
    if key is not None:
        api_keys.parse(key)
    checks = [Diagnosis("settings", "ok", "every setting is known and valid, and their files can be read")]
    if arguments.url:
        checks = await _of_gateway(gateway.Gateway(arguments.url, key))
    elif arguments.api:
        checks.append(await _rights("Redis rights of the API", settings, rights.SERVES))
    else:
        checks += await _of_projector(operator.store, operator.settings)
    for check in checks:
        line = Text.assemble((f"{check.result:<9}", _STYLES[check.result]), f"{check.name}: {check.text}")
        operator.console.print(line)
    if arguments.bundle:
        here = not (arguments.api or arguments.url)
        contents = {
            "doctor.json": [check._asdict() for check in checks],
            "settings.json": effective(settings),
            "status.json": await status.read(operator.store, operator.settings) if here else None,
            "versions.json": {
                "leadview": VERSION,
                "mapping": MAPPING_VERSION,
                "layout": LAYOUT,
                "python": platform.python_version(),
                "platform": platform.platform(),
                **{name: version_of(name) for name in _LIBRARIES},
            },
        }
        write(arguments.bundle, contents, [*secrets(settings), *filter(None, [key])])
        operator.console.print(f"written: {arguments.bundle}. It contains no secret, key or payload.", markup=False)
    return 1 if any(check.result == "problem" for check in checks) else 0


async def _of_projector(store: Store, settings: ProjectorSettings) -> list[Diagnosis]:
    """Check everything that the projector and its commands need."""
    redis, kafka = await _check("Redis", _reached(store, settings)), await _check("Kafka", _brokers(settings))
    found = Observation(at=0)
    if "ok" in (redis.result, kafka.result):
        found = await observe(store, settings, ANSWER_SECONDS)
    return [
        *await _reachable(
            redis,
            {
                "Redis version": partial(_version, store),
                "Redis memory": partial(_memory, found),
                "Redis clock": partial(_clock, store),
                "Redis data": partial(_data, found),
                "Redis records": partial(_shown, found),
            },
        ),
        await _rights("Redis rights of the projector", settings, rights.PROJECTS, redis),
        Diagnosis("Redis rights of the API", "unknown", "run `doctor --api` with the environment of the API"),
        *await _reachable(
            kafka,
            {
                "Kafka topics": partial(_topics, found),
                "Kafka deletions": partial(_deletions, found),
                "Kafka history": partial(_history, found),
                "Kafka transactions": partial(_transactions, found),
                "Kafka partitions": partial(_partitions, found),
                "Kafka records": partial(_records, found, settings),
                "Kafka consumer groups": partial(_groups, found, settings),
            },
        ),
    ]


async def _of_gateway(of: gateway.Gateway) -> list[Diagnosis]:
    """Check what clients see. Nothing else is needed: neither Redis nor Kafka nor their settings."""
    https = await _check(gateway.HTTPS.name, asyncio.to_thread(gateway.HTTPS.check, of))
    return await _reachable(https, {rule.name: partial(asyncio.to_thread, rule.check, of) for rule in gateway.RULES})


async def _check(name: str, checking: Awaitable[str]) -> Diagnosis:
    try:
        async with asyncio.timeout(SECONDS):
            return Diagnosis(name, "ok", await checking)
    except TimeoutError:
        return Diagnosis(name, "problem", f"there was no answer within {SECONDS:g} s")
    except NotKnown as error:
        return Diagnosis(name, "unknown", str(error))
    except _Warning as error:
        return Diagnosis(name, "note", str(error))
    except ProjectorError as error:
        return Diagnosis(name, "problem", str(error))


async def _rights(
    name: str, settings: RedisSettings, needed: tuple[tuple[str, ...], ...], redis: Diagnosis | None = None
) -> Diagnosis:
    """`redis` is the check whether Redis answers, if there was one: what it says is not said again."""

    async def ask() -> str:
        try:
            found = await rights.rights(settings, needed)
        except Unavailable as error:
            if redis and redis.result == "problem":
                raise _without_server(redis) from error
            raise _unreachable(error) from error
        if found.missing:
            raise Refused(
                f"the user {found.user} lacks {', '.join(found.missing)}: grant it, as in "
                "deploy/redis-users.conf.example"
            )
        if found.missing is None:
            raise NotKnown(f"the user {found.user} can log in; a Redis before 7.0 does not say what it may do")
        return f"the user {found.user} may run all {len(needed)} commands"

    return await _check(name, ask())


async def _reachable(server: Diagnosis, checks: Mapping[str, Callable[[], Awaitable[str]]]) -> list[Diagnosis]:
    """Returns the check whether a server is there, and those of it."""
    if server.result == "problem":
        return [server, *(Diagnosis(name, "unknown", str(_without_server(server))) for name in checks)]
    return [server, *[await _check(name, check()) for name, check in checks.items()]]


def _without_server(server: Diagnosis) -> NotKnown:
    return NotKnown(f"{server.name} has to be usable first")


def _without(found: Iterable[Problem], well: str) -> str:
    """Returns `well`. Raises Refused if there is any problem."""
    if said := [str(say(problem)) for problem in found]:
        raise Refused("; ".join(said))
    return well


def _known(part: T | None, why_not: str) -> T:
    """Returns what an observation has of a server. Raises Refused if it could not be read."""
    if part is None:
        raise Refused(why_not)
    return part


def _kafka(found: Observation) -> KafkaPart:
    denied = "; ".join(str(say(KafkaDenies((), right))) for right in found.rights)
    return _known(found.kafka, denied or found.kafka_unknown)


def _existing(found: Observation) -> KafkaPart:
    """Returns what an observation has of Kafka. Raises NotKnown if a topic is missing, which `Kafka topics` names."""
    kafka = _kafka(found)
    if not all(topic.exists for topic in kafka.topics):
        raise NotKnown("a topic is missing")
    return kafka


def _unreachable(error: Unavailable, where: str = "") -> Refused:
    """Returns the error of a check that could not ask Redis: what Redis or its client said, and what to do."""
    said = error.reason.detail if isinstance(error.reason, RedisReason) else ""
    return Refused(f"{(said or str(error)).rstrip('.')}{where}. {remedy(said) or _CORRECT}")


async def _reached(store: Store, settings: RedisSettings) -> str:
    found = access(settings)
    where = ", ".join(f"{host}:{port}" for host, port in found.hosts)
    try:
        servers = await store.info("server")
        await store.check_url()
    except Unavailable as error:
        raise _unreachable(error, f" ({where})") from error
    tls = "with TLS" if found.tls is not None else "without TLS"
    return f"{found.kind} at {where} answers {tls}; {len(servers)} server(s) hold documents"


async def _version(store: Store) -> str:
    versions = sorted({Version.of(server) for server in await store.info("server")})
    try:
        for version in versions:
            version.check()
    except TooOld as error:
        raise Refused(str(error)) from None
    return ", ".join(map(str, versions))


async def _memory(found: Observation) -> str:
    redis = _known(found.redis, found.redis_unknown)
    bounded = all(memory.limit for memory in redis.memories)
    used = f"{redis.used:.0%} of maxmemory are used"
    unbounded = "maxmemory is not set, so Redis may use all memory of its machine"
    evicted = [it for it in of_history(found) if isinstance(it, Evicted)]
    found_here = [it for it in of_redis(redis) if not isinstance(it, ClockDiffers)]
    return _without([*found_here, *evicted], f"no document is evicted; {used if bounded else unbounded}")


async def _clock(store: Store) -> str:
    """Redis judges when keys and rate limits expire, and ages are differences to this machine's clock."""
    before = time.monotonic()
    furthest = max(await store.clocks(), key=lambda clocks: clocks.apart_ms)
    asked_for, apart = time.monotonic() - before, furthest.apart_ms / 1000
    if furthest.differ:
        raise Refused(f"the clocks of Redis and of this machine differ by {apart:.1f} s: let NTP set both")
    return f"it differs from that of this machine by at most {apart + asked_for:.2f} s"


async def _data(found: Observation) -> str:
    redis = _known(found.redis, found.redis_unknown)
    said = "it is empty: a projector fills it from the topics"
    if redis.record:
        live = number_of(redis.record.state.live)
        said = f"it has the layout of this program; generation {live} is live"
    return "; ".join([said, *(say(OtherLayout(layout)).what for layout in redis.other_layouts)])


async def _shown(found: Observation) -> str:
    """Redis knows it as far as the topics were read. Whatever empties it, such as a rebuild, shows the last records."""
    redis = _known(found.redis, found.redis_unknown)
    return _without(of_records(redis), "no last record is known that is bad, or older than the one that is served")


async def _brokers(settings: ProjectorSettings) -> str:
    await answered(settings, describe(settings, KINDS), ANSWER_SECONDS)  # it says why no broker lets us in
    fetch = await newest_fetch(settings)
    if fetch < OLDEST_FETCH:
        raise Refused("this Kafka is too old: Leadview needs 0.11 or later")
    return (
        f"{settings.kafka_bootstrap_servers} answers ({settings.kafka_security_protocol}), Kafka "
        f"{release(fetch)} or later{_only_address(settings)}"
    )


def _only_address(settings: ProjectorSettings) -> str:
    """Returns a warning if the settings lead to one of several brokers only: while it is away, nothing can start."""
    addresses = brokers(settings.kafka_bootstrap_servers)
    count = len(named(addresses))
    if len(addresses) > 1 or count < 2:
        return ""
    return (
        f". This is its only address, and the cluster has {count} brokers: while nobody answers there, no program can "
        "start. Name several brokers in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS, unless the address leads to any of them"
    )


async def _topics(found: Observation) -> str:
    topics = _kafka(found).topics
    hidden = tuple(topic.name for topic in topics if topic.allowed and not topic.configured)
    if all(topic.retention for topic in topics):
        well = "all exist and are compacted: " + ", ".join(topic.name for topic in topics)
    else:
        well = "all exist; these brokers do not say whether they are compacted"
    said = _without(of_topics(topics, found.principal), well)
    if hidden:
        right = KafkaRight("DescribeConfigs", "topic", hidden, found.principal)
        raise _Warning(f"whether all are compacted is not known. {say(KafkaDenies((), right))}")
    return said


async def _deletions(found: Observation) -> str:
    """An ordinary pause of all projectors, such as a night, has to be shorter than Kafka keeps deletions."""
    topics = _kafka(found).topics
    kept = {it.name: it.retention.deletions for it in topics if it.retention}
    if not kept and not all(topic.configured for topic in topics):
        raise NotKnown("this user lacks the right DescribeConfigs")
    if not kept:
        raise NotKnown("these brokers do not say for how long they keep deletions")
    if short := [f"{name} ({ms} ms)" for name, ms in kept.items() if ms < DELETIONS_MS]:
        raise _Warning(
            f"delete.retention.ms of {', '.join(short)} is less than a day: if projectors pause for longer, deletions "
            "are lost, and everything has to be compared with Kafka. A week is a good value"
        )
    return f"Kafka keeps null values (deletions) for {duration(min(kept.values()) / 1000)} at least"


async def _history(found: Observation) -> str:
    topics = _existing(found).topics
    if found.redis is None:
        raise NotKnown("Redis cannot be read, which knows what was applied")
    well = "the topics are those whose records were applied"
    if not all(topic.id for topic in topics):
        well = "no loss was noticed; these brokers give topics no ids, so one that is created again may not be noticed"
    return _without((it for it in of_history(found) if not isinstance(it, Evicted)), well)


async def _transactions(found: Observation) -> str:
    _existing(found)
    if found.redis is None:
        raise NotKnown("Redis cannot be read, which knows what was applied")
    if found.oldest is None:
        raise NotKnown("the brokers did not say in time what can be read")
    return _without(of_transactions(found), "none holds back what Kafka has acknowledged")


async def _partitions(found: Observation) -> str:
    counts = ", ".join(f"{topic.name} {len(topic.partitions)}" for topic in _existing(found).topics)
    return f"{counts}. No more projectors than that share the work of a topic"


async def _records(found: Observation, settings: ProjectorSettings) -> str:
    kafka = _existing(found)
    try:
        async with open_reader(settings, KINDS) as reader:
            ranges = await reader.range(list(kafka.ranges))
            filled = {partition.topic: (partition, span) for partition, span in ranges.items() if span[0] < span[1]}
            await reader.first_times(dict(filled.values()))
    except Denied as error:
        if error.right is None:
            raise
        right = replace(error.right, principal=found.principal)
        raise Refused(str(say(KafkaDenies((), right)))) from error
    if not filled:
        return "all topics are empty"
    read = [topic.name for topic in kafka.topics if topic.name in filled]
    empty = [topic.name for topic in kafka.topics if topic.name not in filled]
    return f"those of {', '.join(read)} can be read" + (f"; empty: {', '.join(empty)}" if empty else "")


async def _read_group(settings: ProjectorSettings, group: str, partitions: list[Partition]) -> None:
    """A new Kafka has no coordinators until it is asked for one."""
    for _ in range(_ATTEMPTS - 1):
        try:
            await OffsetTexts(settings, group).read(partitions)
        except Unavailable:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
    await OffsetTexts(settings, group).read(partitions)


async def _groups(found: Observation, settings: ProjectorSettings) -> str:
    partitions = [*_kafka(found).ranges]
    groups = [settings.group_id, f"{settings.group_id}.access", f"{settings.group_id}.accepted"]
    for group in groups:
        await _read_group(settings, group, partitions)
    members = _kafka(found).members
    others = "no other program is a member" if members is not None else "whether others are members is not known"
    return _without(of_members(found), f"this user may use {', '.join(groups)}; {others}")


def write(path: Path, contents: Mapping[str, object], hidden: Iterable[str]) -> None:
    """Write a ZIP file that only this user may read. `hidden` texts are replaced, wherever they are. Raises Refused."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in contents.items():
            if content is None:
                continue
            # With msgspec: the status is a Struct.
            text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
            for secret in sorted(hidden, key=len, reverse=True):
                text = text.replace(secret, "***")
            bundle.writestr(name, text)
    try:
        path.touch(0o600)
        path.write_bytes(archive.getvalue())
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}. Choose another file with --bundle.") from error
