"""What operators are told in each trouble: one table. `tests/troubles` makes each of them on real servers and compares
every surface with its row; `docs/runbook.md` shows it to people.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from docs.generate.tables import table
from schemas.metrics import PROBLEM_LABELS

Servers = Literal["one", "sentinel", "shards"]


class Row(Struct, frozen=True, kw_only=True):
    """What is said while a trouble lasts, and nothing else. What is not named here is as if all were well.

    `problems` and `notes` are the kinds in `status --json` and on the console. `reported` are the labels in the metrics
    of each projector that runs, or of one if `by_one`; then its `/healthz` is 503. `alerts` fire if it lasts; they lack
    the prefix `Leadview`.
    """

    sign: str
    """What somebody sees first."""
    command: str
    """What to run, to learn more or to repair it."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reported: tuple[str, ...] | None = None
    """None: the problems, as far as projectors report them."""
    by_one: bool = False
    ready: bool = True
    """Whether `/readyz` of the API answers 200."""
    answer: tuple[int, str | None] = (200, None)
    """What a request for a lead gets."""
    alerts: tuple[str, ...] = ()
    servers: Servers = "one"
    """Redis on which it is made: one server, a master with a replica and a Sentinel, or a cluster of three shards with
    three brokers of Kafka."""

    @property
    def by_projectors(self) -> tuple[str, ...]:
        """The labels in the metrics of the projectors."""
        return tuple(it for it in self.problems if it in PROBLEM_LABELS) if self.reported is None else self.reported


_AWAY = (503, "service_unavailable")
_LATE = ("FreshnessBurnsFast", "Stale")
_BAD_CERTIFICATE = Row(
    sign="Every request gets 503; `status`: no worker of the API is ready, … certificate verify failed",
    command="renew the certificate of Redis, or add its new CA to `LEADVIEW_REDIS_TLS_CA_FILE`, without a restart",
    problems=("no_projector", "api_unavailable"),
    reported=("redis_unknown",),
    ready=False,
    answer=_AWAY,
    alerts=("NoApi", "AvailabilityBurnsFast", *_LATE, "NotMeasured"),
)

ROWS: dict[str, Row] = {
    "no projector": Row(
        sign="`status`: no projector is running; changes are not visible",
        command="`leadview run`, and the log of those that ended",
        problems=("no_projector",),
        alerts=("NoProjector", *_LATE, "NotMeasured"),
    ),
    "one of two projectors is dead": Row(
        sign="`status`: 1 of 2 projectors are running; a note without `LEADVIEW_EXPECTED_PROJECTORS`",
        command="the log of that projector; start it again",
        problems=("few_projectors",),
        notes=("silent",),
        alerts=("Problem",),
    ),
    "one of two projectors stands still": Row(
        sign="`status`: 1 of 2 projectors are running, although both processes exist",
        command="continue that process (`kill -CONT`), or end it (SIGKILL) and start it again",
        problems=("few_projectors",),
        notes=("silent",),
        alerts=("Problem",),
    ),
    "a projector that stood still wakes up after it was replaced": Row(
        sign="Nothing: it is one more projector, and what it had begun is refused", command=""
    ),
    "all projectors stand still": Row(
        sign="`status`: no projector is running, although their processes exist",
        command="continue these processes (`kill -CONT`), or end them (SIGKILL) and start them again",
        problems=("no_projector",),
        alerts=("NoProjector", *_LATE, "NotMeasured"),
    ),
    "Kafka is away": Row(
        sign="`status`: Kafka cannot be read; what is stored is served",
        command="`leadview doctor`; repair the brokers",
        problems=("kafka_unknown",),
        alerts=(*_LATE, "NotMeasured"),
    ),
    "a topic is missing": Row(
        sign="`status`: topic …: missing",
        command="create it, compacted; then publish its entities again",
        problems=("topic_missing",),
        alerts=(*_LATE, "Problem"),
    ),
    "a topic is not compacted": Row(
        sign="`status`: topic …: not compacted",
        command="`kafka-configs.sh --alter --add-config cleanup.policy=compact`",
        problems=("topic_not_compacted",),
        alerts=("RecordsAtRisk",),
    ),
    "a topic was deleted and created again": Row(
        sign="`status`: topic … was deleted and created again",
        command="publish all of its entities again, then `leadview verify`",
        problems=("topic_recreated",),
        alerts=("TopicHistoryLost",),
    ),
    "deletions were removed before they were read": Row(
        sign="`status`: topic …: Kafka may have removed deletions before they were read",
        command="wait until they have ended it; raise `delete.retention.ms` to a week",
        problems=("deletes_missed",),
        alerts=("Unverified",),
    ),
    "records were removed before they were read": Row(
        sign="`status`: topic …: Kafka deleted records before they were read",
        command="publish what is missing again, then `leadview verify` and `leadview verify --access`",
        problems=("records_missed",),
        alerts=("TopicHistoryLost",),
    ),
    "partitions were added to a topic": Row(
        sign="`status`: topic …: partitions were added",
        command="delete by events, not by null values; then `leadview verify`",
        problems=("partitions_raised",),
        alerts=("Unverified",),
    ),
    "another Kafka cluster answers": Row(
        sign="`status`: another Kafka cluster answers: its id is …",
        command="correct `LEADVIEW_KAFKA_BOOTSTRAP_SERVERS` of the projectors, and restart them",
        problems=("other_cluster",),
        alerts=("OtherCluster",),
    ),
    "a transaction is open": Row(
        sign="`status`: a transaction is open in …; what is published behind it is not visible",
        command="let its producer commit or abort it, or `kafka-transactions.sh … abort`, as the message says",
        problems=("open_transaction",),
        alerts=("OpenTransaction", *_LATE),
    ),
    "one projector has another prefix": Row(
        sign="`status`: LEADVIEW_TOPIC_PREFIX is … in …, and … in others",
        command="correct the setting of that projector, and restart it",
        problems=("other_settings",),
        alerts=("Problem",),
    ),
    "all projectors have another prefix": Row(
        sign="`status`: LEADVIEW_TOPIC_PREFIX is … in …, and … in this program",
        command="correct the setting of the projectors, and restart them",
        problems=("other_settings",),
        reported=("topic_missing",),
        alerts=(*_LATE, "Problem"),
    ),
    "one projector has another prefix, and may not see such topics": Row(
        sign="`status`: LEADVIEW_TOPIC_PREFIX is … in …, and … in others",
        command="correct the setting of that projector, and restart it",
        problems=("other_settings",),
        alerts=("Problem",),
    ),
    "all projectors have another prefix, and may not see such topics": Row(
        sign="`status`: LEADVIEW_TOPIC_PREFIX is … in …, and … in this program",
        command="correct the setting of the projectors, and restart them",
        problems=("other_settings",),
        reported=("topic_missing",),
        alerts=(*_LATE, "Problem"),
    ),
    "one projector has another group": Row(
        sign="`status`: LEADVIEW_GROUP_ID is … in …, and … in others",
        command="correct the setting of that projector, and restart it",
        problems=("other_settings",),
        alerts=("Problem",),
    ),
    "a stranger is in the consumer group": Row(
        sign="`status`: not a projector of this installation, and a member of its consumer group: …",
        command="end that program, or give it another group",
        problems=("foreign_member",),
        alerts=("Problem",),
    ),
    "Redis is away": Row(
        sign="Every request gets 503; `status`: Redis cannot be read",
        command="`leadview doctor`; repair Redis, or for NOAUTH set `LEADVIEW_REDIS_PASSWORD` or its file everywhere",
        problems=("redis_unknown",),
        ready=False,
        answer=_AWAY,
        alerts=("NoApi", "AvailabilityBurnsFast", *_LATE, "NotMeasured"),
    ),
    "Redis was emptied, and no projector fills it": Row(
        sign="Every request gets 503; `status`: Redis is empty",
        command="`leadview run`",
        problems=("redis_empty", "no_projector"),
        ready=False,
        answer=_AWAY,
        alerts=("NoApi", "AvailabilityBurnsFast", "NoProjector", *_LATE, "NotMeasured"),
    ),
    "Redis evicts": Row(
        sign="`status`: Redis evicts keys when its memory is full",
        command='`redis-cli -u "$LEADVIEW_REDIS_URL" CONFIG SET maxmemory-policy noeviction`, then `CONFIG REWRITE`',
        problems=("redis_evicts",),
        alerts=("RecordsAtRisk",),
    ),
    "Redis is full": Row(
        sign="`status`: Redis is full; what is stored is served",
        command="the line of the message, which raises `maxmemory`, then `CONFIG REWRITE`",
        problems=("redis_full",),
        alerts=("RedisMemory", "Problem"),
    ),
    "a line is halted": Row(
        sign="`status`: line documents is stopped",
        command="`leadview dead-letters accept …`, as the message says, or deploy a corrected program",
        problems=("halted",),
        by_one=True,
        alerts=("LineStopped", *_LATE),
    ),
    "a line is failing": Row(
        sign="`status`: line documents is failing",
        command="the log of the projector has the traceback; deploy the former version",
        problems=("failing",),
        by_one=True,
        alerts=(*_LATE, "Problem"),
    ),
    "a bad record": Row(
        sign="`status`: lead … shows an old state, because its newest record is bad",
        command="`leadview dead-letters list`; let the core product publish it again",
        problems=("documents_as_before",),
        alerts=("DeadLettersGrow", "DocumentsAsBefore"),
    ),
    "a bad record of an API key": Row(
        sign="`status`: API key … is as before, because a record of it is bad",
        command="`leadview dead-letters list`; let the core product publish it again",
        problems=("access_as_before",),
        alerts=("AccessRecordsParked",),
    ),
    "an older version is published behind a newer one": Row(
        sign="`status`: lead … has a last record in Kafka that is not the newest one; the newest one is served",
        command="let the core product publish it again with a higher version",
        problems=("older_published",),
        alerts=("OlderPublished",),
    ),
    "a producer's clock is a day ahead": Row(sign="Nothing: ages are those of Kafka's timestamps", command=""),
    "a producer's clock is a day behind": Row(sign="Nothing: what is applied does not wait", command=""),
    "an older program": Row(
        sign="`status`: line documents is standing by",
        command="deploy the newer program again, or `leadview drop <generation>`",
        problems=("standing_by",),
        alerts=("StandingBy",),
    ),
    "a rebuild that nobody continues": Row(
        sign="`status` has a note: generation … is not complete, and no rebuild is running",
        command="`leadview rebuild`, or `drop <generation>`",
        notes=("generation_unfilled", "silent"),
    ),
    "Redis refuses writes": Row(
        sign="`status`: Redis refuses writes; what is stored is served",
        command="read Redis's reply in the message; repair its replicas or its disk",
        problems=("redis_refuses_writes",),
        alerts=(*_LATE, "Problem"),
    ),
    "the API's user lacks a right": Row(
        sign="Every request gets 503; `status`: no worker of the API is ready",
        command="read the command in the message, and give the user the rights of `deploy/redis-users.conf.example`",
        problems=("api_unavailable",),
        ready=False,
        answer=_AWAY,
        alerts=("NoApi", "AvailabilityBurnsFast"),
    ),
    "the API's password is changed": Row(
        sign="Every request gets 503; `status`: no worker of the API is ready, … WRONGPASS; or NOAUTH",
        command="correct `LEADVIEW_REDIS_PASSWORD` of the API, or its file, or the user in Redis",
        problems=("api_unavailable",),
        ready=False,
        answer=_AWAY,
        alerts=("NoApi", "AvailabilityBurnsFast", *_LATE, "NotMeasured"),
    ),
    "the projectors' password is changed": Row(
        sign="`status`: no projector is running, although their processes exist; `/healthz` of each: WRONGPASS, NOAUTH",
        command="correct `LEADVIEW_REDIS_PASSWORD` of the projectors, or its file, or the user in Redis",
        problems=("no_projector",),
        reported=("redis_unknown",),
        alerts=("NoProjector", *_LATE, "NotMeasured"),
    ),
    "Redis has a certificate of another CA": _BAD_CERTIFICATE,
    "the certificate of Redis has expired": _BAD_CERTIFICATE,
    "the projectors' password is changed in Kafka": Row(
        sign="`status`: Kafka refuses the user … or its password; what is stored is served",
        command="correct `LEADVIEW_KAFKA_SASL_PASSWORD` of the projectors, or its file, or the user in Kafka",
        problems=("kafka_unknown",),
        alerts=(*_LATE, "NotMeasured"),
    ),
    "the projectors' user lacks a right": Row(
        sign="`status`: …: no step has succeeded for …; what is stored is served",
        command="read the error in the message, and give the user the rights of `deploy/redis-users.conf.example`",
        problems=("no_step",),
        by_one=True,
        alerts=(*_LATE, "Problem"),
    ),
    "the projectors' user lacks a right in Kafka": Row(
        sign="`status`: Kafka refuses the user … the right Read on …; what is stored is served",
        command="the line of the message, or all of `deploy/kafka-acls.sh.example`",
        problems=("kafka_denies",),
        alerts=(*_LATE, "Problem"),
    ),
    "one shard is away": Row(
        servers="shards",
        sign="Requests for its organizations get 503; `status`: Redis cannot be read: … of its … shards",
        command="repair that shard",
        problems=("redis_unknown",),
        answer=_AWAY,
        alerts=(*_LATE, "NotMeasured"),
    ),
    "one shard was emptied, and no projector fills it": Row(
        servers="shards",
        sign="Requests for its organizations get 503; `status`: not complete: … of the … parts",
        command="`leadview run`",
        problems=("no_projector", "incomplete"),
        answer=_AWAY,
        alerts=("NoProjector", *_LATE, "NotMeasured"),
    ),
    "one shard is lost, its slots were given away, and no projector fills them": Row(
        servers="shards",
        sign="Requests for its organizations get 503; `status`: not complete: … of the … parts",
        command="`leadview run`",
        problems=("no_projector", "incomplete"),
        answer=_AWAY,
        alerts=("NoProjector", *_LATE, "NotMeasured"),
    ),
    "one broker of three is away": Row(servers="shards", sign="Nothing: its partitions have other leaders", command=""),
    "all API workers hang": Row(
        sign="Requests are accepted, and never answered; `status`: the metrics of the API cannot be read",
        command="end the API with SIGKILL, start it again, and read its log",
        problems=("api_unknown",),
        ready=False,
        answer=(0, None),
        alerts=("NoApi", "AvailabilityBurnsFast"),
    ),
    "a replica took the place of its master": Row(
        servers="sentinel", sign="Nothing: the Sentinels name the new master", command=""
    ),
    "master and replica are away": Row(
        servers="sentinel",
        sign="Every request gets 503; `status`: Redis cannot be read",
        command="`leadview doctor`; repair Redis, or for NOAUTH set `LEADVIEW_REDIS_PASSWORD` or its file everywhere",
        problems=("redis_unknown",),
        ready=False,
        answer=_AWAY,
        alerts=("NoApi", "AvailabilityBurnsFast", *_LATE, "NotMeasured"),
    ),
    "no API worker": Row(
        sign="No connection is accepted; `status`: the metrics of the API cannot be read",
        command="start the API, and read its log",
        problems=("api_unknown",),
        ready=False,
        answer=(0, None),
        alerts=("NoApi", "AvailabilityBurnsFast"),
    ),
}


def runbook() -> str:
    """Returns the table for people: what they see, and what to run. Troubles that look alike share a row."""
    return table(("what you see first", "what readers get", "alerts", "what to do"), dict.fromkeys(_rows()))


def _rows() -> Iterator[tuple[str, ...]]:
    for row in ROWS.values():
        if not row.command:
            continue
        status, _ = row.answer
        gets = str(status) if status else "nothing"
        alerts = ", ".join(f"[`{name}`](#leadview{name.lower()})" for name in row.alerts)
        yield row.sign, gets, alerts, row.command
