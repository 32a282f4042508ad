"""What problems are called, why errors were raised, and what to do about them: the words of every surface. No program
reads them.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from typing import assert_never

import msgspec

from projector import problem
from projector.problem import Problem, stops
from projector.reason import Reason
from schemas import words
from schemas.control import LAYOUT
from schemas.heartbeat import HaltedLine, KafkaRight, LineTrouble
from schemas.resources import KINDS


class Said(msgspec.Struct, frozen=True):
    """A problem in words: what is not well, and what to do about it.

    `page` is the page in `docs` that says more, with its section. `detail` is more about it, in whole sentences; then
    `command` is a line to paste. `where` are the parts that do not work because of it, and the first one has to be
    repaired: `kafka`, `projectors`, `redis`, `api`; a note has none. `stops` says which lines apply nothing: none, one,
    or all.
    """

    what: str
    advice: str
    page: str
    where: tuple[str, ...]
    stops: str
    detail: str = ""
    command: str = ""

    @property
    def more(self) -> str:
        return " ".join(filter(None, (self.detail, self.command)))

    def __str__(self) -> str:
        verdict = ": ".join(filter(None, (self.what, self.advice)))
        return f"{verdict}. {self.more}" if self.more else verdict


def headline(problems: Sequence[Said]) -> str:
    """Returns the verdict in one line. It says what to do if there is one problem; each of several has its own line."""
    match problems:
        case []:
            return "all is well"
        case [alone]:
            return f"not well: {alone.what}: {alone.advice}"
    return f"not well: {'; '.join(said.what for said in problems)}"


def say(about: Problem) -> Said:
    """Returns a problem in words."""
    what, advice, page, *more = _words(about)
    return Said(what, advice, page, about.parts, stops(about), *more)


def why(about: Reason | Problem | str) -> str:
    """Returns why something cannot be done, in words. A text was made at the edge, or comes from elsewhere."""
    if not isinstance(about, Reason):
        return about if isinstance(about, str) else str(say(about))
    data = msgspec.structs.asdict(about)
    shown = {name: ", ".join(value) if isinstance(value, tuple) else value for name, value in data.items()}
    return REASONS[about.kind].format_map(shown)


_PROTOCOL = "LEADVIEW_KAFKA_SECURITY_PROTOCOL ({protocol})"
_UNREACHABLE = "start it, or correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
REASONS: Mapping[str, str] = {
    "kafka_failed": "Kafka: {detail}",
    "kafka_away": "Kafka: no broker answers",
    "kafka_back": "Kafka: the brokers were not available a moment ago, and answer now",
    "kafka_closes": "Kafka at {at} closes the connection: it is starting or stopping, or "
    f"{_PROTOCOL} is not that of this port",
    "kafka_silent": f"Kafka cannot be reached at {{at}} (it does not answer): {_UNREACHABLE}",
    "kafka_hangs": "Kafka at {at} accepts connections, and does not answer within {seconds:g} s: look whether the "
    "process of the broker stands still or is overloaded, and whether its disk and its controllers respond",
    "kafka_unreachable": f"Kafka cannot be reached at {{at}} ({{detail}}): {_UNREACHABLE}",
    "not_kafka": "what answers at {at} is not Kafka 0.11 or later: correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS",
    "tls_failed": f"no TLS connection to Kafka at {{at}} ({{detail}}): correct {_PROTOCOL}, the port in "
    "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS, or the client certificate (LEADVIEW_KAFKA_SSL_CERT_FILE)",
    "certificate_not_accepted": "the certificate of Kafka at {at} is not accepted ({detail}): correct "
    "LEADVIEW_KAFKA_SSL_CA_FILE, or the host in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS",
    "mechanism_not_accepted": "Kafka does not accept LEADVIEW_KAFKA_SASL_MECHANISM ({detail}) on this port: correct "
    f"it, {_PROTOCOL}, or the port in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS",
    "user_refused": "Kafka refuses the user {user!r} or its password: correct LEADVIEW_KAFKA_SASL_USERNAME and "
    "{detail}",
    "token_refused": "Kafka refuses the token ({detail}): correct LEADVIEW_KAFKA_OAUTH_CLIENT_ID, "
    "LEADVIEW_KAFKA_OAUTH_SCOPE or the token provider, or let the brokers accept its issuer and its audience",
    "no_token": "there is no token to sign in to Kafka: {detail}",
    "redis_failed": "Redis: {detail}",
    "restarted": "Redis: it restarted or failed over while a batch was being written",
    "servers_restart": "Redis: servers restart or fail over again and again",
    "one_of_cluster": "Redis cannot be used like this: it is one node of a cluster: write redis+cluster:// (or "
    "rediss+cluster://) in LEADVIEW_REDIS_URL.",
    "copies_disagree": "Redis: the copies of the control record disagree, because they are being changed",
    "record_changed": "Another command, or a projector, has just changed the control record: check `status`, then try "
    "again.",
    "session_ended": "Redis: the control record has changed while a batch was being written",
    "positions_reset": "the line has no session, because its positions were reset",
    "deleted_topic_named": "Kafka: a broker still names a topic that was deleted: {topics}",
    "recreated_unnoticed": "{topics} was created again, and no projector has noticed it yet, so nothing can be "
    "verified: see `status`, and try again when projectors are running.",
    "recreated_meanwhile": "Kafka: {topics} was created again while it was compared with Redis",
    "other_topic": "Kafka: {topics} is another topic than the one that was applied",
    "ends_before_position": "Kafka: {topics} ends before the position in Redis",
    "too_many_partitions": "topic {topics} has more than {number:,} partitions, which Leadview cannot read",
    "revoked_early": "Kafka: {number} partitions were revoked before they were sought",
    "generation_gone": "Generation {generation} is gone: it was dropped while it was being filled, or Redis was "
    "emptied.",
    "generation_not_dropping": "Redis was emptied or went back in time: generation {generation} is not being dropped "
    "any more. Check `status`, then run `drop` again if there is still something to drop.",
    "generation_lost_history": "Topic {topics} has lost its history while generation {generation} was being filled: "
    "`drop {generation}`, then run `rebuild` again.",
    "no_dead_letter": "There is no dead letter {others}. `dead-letters list` shows all of them.",
    "no_dead_letter_matches": "No dead letter matches. `dead-letters list` shows all of them. The records that have "
    "halted a line are not stored as dead letters yet: name the range that its message shows.",
    "no_topic": "{named} is not a topic of Leadview. Its topics are {others}.",
    "no_partition": "The topic {named} has no partition {number}.",
    "no_records": "{named} does not exist: the partition has no records.",
    "no_offset": "{named} does not exist: the partition has no records after the offset {number}.",
    "accepted_late": "the accepted bad records could not be changed in time",
    "group_without_offsets": "Kafka: the coordinator of the group {named} did not return its offsets of {others}",
    "text_not_ours": "What the consumer group {named} holds for {others} was not written by this program "
    "({detail}). Delete the offsets of this group in Kafka, then accept the records again.",
    "text_too_long": "Nothing was changed: the list of accepted records of a partition would have {number:,} "
    "characters, which is more than Kafka stores for a partition (offset.metadata.max.bytes of the brokers, by default "
    "4096). Name whole ranges instead of single records, such as {detail}. A range replaces what was accepted inside "
    "it.",
}


_OfKafka = (
    problem.KafkaUnknown
    | problem.KafkaDenies
    | problem.TopicMissing
    | problem.TopicUnserved
    | problem.TopicNotCompacted
    | problem.OtherCluster
)
_OfRecords = (
    problem.TopicRecreated
    | problem.TopicTruncated
    | problem.OpenTransaction
    | problem.RecordsMissed
    | problem.DeletesMissed
    | problem.PartitionsRaised
    | problem.OlderPublished
    | problem.Misplaced
)
_OfBadRecords = problem.AccessAsBefore | problem.DocumentsAsBefore | problem.DeadLetters
_OfRedis = (
    problem.RedisUnknown
    | problem.Evicted
    | problem.RedisEvicts
    | problem.RedisFull
    | problem.RedisRefusesWrites
    | problem.ClockDiffers
    | problem.RedisNearlyFull
    | problem.OtherLayout
    | problem.RedisEmpty
    | problem.Incomplete
)
_OfLine = (
    problem.Halted
    | problem.Failing
    | problem.StandingBy
    | problem.NotAdvancing
    | problem.NoPartitions
    | problem.Reported
)
_OfApi = problem.ApiUnknown | problem.ApiUnavailable | problem.ApiReports
_OfProjectors = (
    problem.NoProjector
    | problem.FewProjectors
    | problem.OtherSettings
    | problem.ForeignMember
    | problem.Stale
    | problem.Silent
)
_OfGenerations = problem.RebuildDue | problem.GenerationUnfilled | problem.GenerationUnwritten


def _words(about: Problem) -> tuple[str, ...]:
    """Returns what is wrong, what to do, the page that says more, and perhaps a detail and a command to paste."""
    page = f"runbook.md#{about.label}"
    if isinstance(about, _OfKafka):
        return _of_kafka(about, page)
    if isinstance(about, _OfRecords):
        return _of_records(about, page)
    if isinstance(about, _OfBadRecords):
        return _of_bad_records(about)
    if isinstance(about, _OfRedis):
        return _of_redis(about, page)
    if isinstance(about, _OfLine):
        return _of_line(about, page)
    if isinstance(about, _OfApi):
        return _of_api(about, page)
    if isinstance(about, _OfProjectors):
        return _of_projectors(about, page)
    return _of_generations(about)


def _of_kafka(about: _OfKafka, page: str) -> tuple[str, ...]:
    """Returns what `_words` returns about the brokers and the topics."""
    match about:
        case problem.KafkaUnknown(reason):
            return "Kafka cannot be read", f"{reason.rstrip('.')}. `doctor` finds out more", page
        case problem.KafkaDenies(programs, right):
            who = f"the user of {some(programs)}" if programs and not right.principal else _user(right.principal)
            advice = "let an administrator grant it; deploy/kafka-acls.sh.example has all rights"
            return f"Kafka refuses {who} {words.right(right)}", advice, page, *_granting(right)
        case problem.TopicMissing(topics, False, principal):
            return (
                f"{_topics(topics)}: {_user(principal)} may not read it",
                "let the user of the projector read and describe it, or correct LEADVIEW_TOPIC_PREFIX",
                page,
                *_granting(KafkaRight("Read", "topic", topics, principal)),
            )
        case problem.TopicMissing(topics):
            return (
                f"{_topics(topics)}: missing",
                "create what is missing, compacted (cleanup.policy=compact), or correct LEADVIEW_TOPIC_PREFIX",
                page,
            )
        case problem.TopicUnserved(topics):
            return (
                f"{_topics(topics)}: not served, because partitions have no leader",
                "repair the brokers of Kafka",
                page,
            )
        case problem.TopicNotCompacted(topics, policies, compacted):
            named = _topics([f"{topic} ({policy})" for topic, policy in zip(topics, policies, strict=True)])
            state = "compacted, but its old records are deleted as well" if compacted else "not compacted"
            return f"{named}: {state}", "records that are still needed would vanish: set cleanup.policy=compact", page
        case problem.OtherCluster(known, met, accepted=False):
            what = f"another Kafka cluster answers: its id is {met}, and what is served comes from {known}"
            advice = (
                "nothing of it is applied. Correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS, and everything continues by "
                f"itself; or, if this cluster replaces the former one, run `rebuild --accept-cluster {met}`"
            )
            return what, advice, page
        case problem.OtherCluster(known, met, access=access):
            what = f"the Kafka cluster {met} has replaced {known}, so what is served may be what it does not have"
            both = "; `verify --access` does the same for organizations and API keys" if access else ""
            return what, _publish_again(access=False) + both, page
        case _:
            assert_never(about)


def _of_records(about: _OfRecords, page: str) -> tuple[str, ...]:
    """Returns what `_words` returns about the records that Kafka has, or no longer has."""
    match about:
        case problem.TopicRecreated(topics, noticed_at, former_id, topic_id, access):
            lost = isinstance(about, problem.TopicTruncated)
            happened = "has lost records that were applied" if lost else "was deleted and created again"
            detail = (
                f"Noticed at {noticed_at}; the topic id was {former_id or 'not known'}, and is "
                f"{topic_id or 'not known'}."
            )
            what = f"{_topics(topics)} {happened}, so what is served may be what Kafka no longer has"
            return what, _publish_again(access=access), page, detail
        case problem.OpenTransaction(topics, held, access):
            return _open_transaction(topics[0], held, access=access, page=page)
        case problem.RecordsMissed(topics, noticed_at, access):
            what = f"{_topics(topics)}: Kafka deleted records before they were read, so what is served may be older"
            return what, _publish_again(access=access), page, f"Noticed at {noticed_at}."
        case problem.DeletesMissed(topics, since):
            what = f"{_topics(topics)}: Kafka may have removed deletions before they were read, so what was deleted "
            detail = f"The topic was not read to its end for longer than its `delete.retention.ms`, since {since}."
            return f"{what}may still be served", _COMPARED, page, detail
        case problem.PartitionsRaised(topics, noticed_at, access):
            what = f"{_topics(topics)}: partitions were added, so what is deleted by a null value may come back"
            advice = "delete by events, or publish the null values to the former partitions as well; then run"
            verify = f"`verify{' --access' if access else ''}`, which ends this problem if nothing differs"
            return what, f"{advice} {verify}", page, f"Noticed at {noticed_at}."
        case problem.OlderPublished(entities, reused, more):
            older, twice = "an older version was published behind a newer one", "one version was published twice"
            happened = f"{older}, or {twice}" if reused else older
            if reused and reused == len(entities) and not more:
                happened = f"{twice}, with different content"
            they = _Entities(entities, more)
            has = "has" if they.is_one else "have"
            served = "the last record, which would be served then, also if what it shows was deleted or revoked."
            return (
                f"{they.count} {has} a last record in Kafka that is not the newest one: {happened}",
                f"let the core product publish {they.them} again with a higher version, which ends this problem",
                "runbook.md#leadviewolderpublished",
                f"{they.named} {_BEFORE_A_REBUILD} {served}".strip(),
            )
        case problem.Misplaced(topics):
            return (
                f"{', '.join(topics)}: records are in other partitions than murmur2 gives for their message keys",
                "set the partitioner of their producer, so that an entity has all its records in one partition",
                "events.md#topics-and-message-keys",
            )
        case _:
            assert_never(about)


def _of_bad_records(about: _OfBadRecords) -> tuple[str, ...]:
    """Returns what `_words` returns about bad records."""
    match about:
        case problem.AccessAsBefore(keys):
            they = _Entities([f"{'api-keys' if ':' in key else 'organizations'}:{key}" for key in keys])
            what = "is as before, because a record of it is bad"
            if not they.is_one:
                what = "are as before, because records of them are bad"
            return (
                f"{they.count} {what}; a revoked key may still work",
                f"`dead-letters list` says why; let the core product publish {they.them} again",
                "runbook.md#leadviewaccessrecordsparked",
                they.named,
            )
        case problem.DocumentsAsBefore(entities, unknown):
            they = _Entities(entities)
            not_known = (
                f" Of {unknown:,} more dead letters it is not known whether they do the same." if unknown else ""
            )
            shows = "shows an old state, because its" if they.is_one else "show an old state, because their"
            missing = f"the newest record, so no such document would be there then.{not_known}"
            return (
                f"{they.count} {shows} newest record is bad",
                f"`dead-letters list` says why; let the core product publish {they.them} again with a higher version",
                "runbook.md#leadviewdocumentsasbefore",
                f"{they.named} {_BEFORE_A_REBUILD} {missing}".strip(),
            )
        case problem.DeadLetters(count, unknown, named):
            letters = f"{'other ' if named else ''}dead {'letter' if count == 1 else 'letters'}"
            not_known = f"; of {unknown:,} it is not known whether readers see an older state" if unknown else ""
            return (
                f"{count:,} {letters}{not_known}",
                "`dead-letters list` says why these records are bad (docs/dead-letters.md)",
                "dead-letters.md",
            )
        case _:
            assert_never(about)


def _of_redis(about: _OfRedis, page: str) -> tuple[str, ...]:
    """Returns what `_words` returns about Redis."""
    match about:
        case problem.RedisUnknown(reason):
            advice = remedy(reason) or "Correct LEADVIEW_REDIS_URL, or repair Redis; `doctor` finds out more"
            return "Redis cannot be read", f"{reason.rstrip('.')}. {advice}", page
        case problem.Evicted(noticed_at):
            what = "Redis has evicted keys, so documents and API keys may be missing"
            advice = f"set its maxmemory-policy to noeviction; {_COMPARED}"
            return what, advice, page, f"Noticed at {noticed_at}."
        case problem.RedisEvicts(policies):
            return (
                f"Redis evicts keys when its memory is full (maxmemory-policy is {', '.join(policies)})",
                "documents would vanish. Set its maxmemory-policy to noeviction",
                page,
                f"This does it {_UNTIL_RESTART}:",
                f"{_REDIS_CLI} CONFIG SET maxmemory-policy noeviction",
            )
        case problem.RedisFull(used, limit):
            return (
                "Redis is full",
                "it refuses writes, so nothing is applied: raise its maxmemory (docs/capacity.md)",
                page,
                f"{used:.0%} of maxmemory are used. If the machine has the memory, this adds a half {_UNTIL_RESTART}:",
                f"{_REDIS_CLI} CONFIG SET maxmemory {ceil(limit * 1.5 / 1048576)}mb",
            )
        case problem.RedisRefusesWrites(reason):
            return (
                "Redis refuses writes",
                f"{reason.rstrip('.')}. Nothing is applied until Redis accepts writes: repair its replicas or its disk",
                page,
            )
        case problem.ClockDiffers(programs, clocks):
            whose = f"that of {some(programs)}" if programs else "that of this machine"
            return (
                f"the clocks differ: that of Redis says {words.utc(clocks.redis)}, {whose} {words.utc(clocks.own)}",
                "API keys expire by the clock of Redis, and Data-As-Of is not known meanwhile. Let NTP set both clocks",
                page,
            )
        case problem.RedisNearlyFull(used):
            return (
                f"the memory of Redis is {used:.0%} used",
                "raise its maxmemory (docs/capacity.md)",
                "runbook.md#leadviewredismemory",
            )
        case problem.OtherLayout(layout):
            return (
                f"Redis also holds data of layout {layout} (this program: {LAYOUT}), which uses memory",
                "if no program uses it any more, remove it",
                "upgrading.md#remove-what-another-layout-left",
            )
        case problem.RedisEmpty() | problem.Incomplete():
            return _not_complete(about)
        case _:
            assert_never(about)


def _not_complete(about: problem.RedisEmpty | problem.Incomplete) -> tuple[str, ...]:
    """Returns what `_words` returns about a Redis that does not hold everything."""
    match about:
        case problem.RedisEmpty(filling):
            advice = (
                "a projector fills it from the topics, and the API answers 503 until then"
                if filling
                else "the API answers 503 until a projector has filled it from the topics. If projectors are running, "
                "LEADVIEW_REDIS_URL here names another Redis than theirs"
            )
            return "Redis is empty, so nothing is served", advice, _NOT_COMPLETE
        case problem.Incomplete(of=1):
            return (
                "not complete: Redis",
                "the API answers 503 until a projector has read all topics to their end",
                _NOT_COMPLETE,
            )
        case problem.Incomplete(shards, of, addresses):
            parts = f"all {of} parts" if shards == of else f"{shards} of the {of} parts"
            for_whom = "all organizations" if shards == of else "the organizations there, and no others"
            what = ", ".join(filter(None, (f"not complete: {parts} (shards) of Redis", some(addresses))))
            return what, f"for {for_whom}, the API answers 503 until a projector has filled them", _NOT_COMPLETE
        case _:
            assert_never(about)


def _of_line(about: _OfLine, page: str) -> tuple[str, ...]:
    """Returns what `_words` returns about a line."""
    match about:
        case problem.Halted(line, _, trouble):
            text, *more = _halted(trouble)
            return (
                f"line {line} is stopped: {text}",
                "fix the producer, or deploy a projector that can read them (docs/dead-letters.md)",
                "dead-letters.md#a-halted-line",
                *more,
            )
        case problem.Failing(line, programs, trouble):
            return f"line {line} is {trouble.state}: {words.trouble(trouble)}", _log(programs), "runbook.md#failing"
        case problem.StandingBy(line, programs, trouble):
            on = f" on {some(programs)}" if programs else ""
            return (
                f"line {line} is standing by: {words.trouble(trouble)}",
                f"deploy the newer program{on} again, or drop the newer generation (docs/upgrading.md)",
                "runbook.md#leadviewstandingby",
            )
        case problem.NotAdvancing(line, programs, records, seconds, partitions):
            where = some(partitions)
            return (
                f"{line}: {records:,} records behind, and has not advanced{_for(seconds)} ({where})",
                _log(programs),
                page,
            )
        case problem.NoPartitions(line, _, partitions, spare):
            own = ". This line has none" if spare else ""
            return (
                f"{line}: {partitions} partitions belong to no projector{own}",
                "check that every projector may join the consumer group, and that none stands by",
                page,
            )
        case problem.Reported(_, programs, label, text, seconds):
            return f"{text.rstrip('.')}{_for(seconds)}", _log(programs), f"runbook.md#{label or 'leadviewproblem'}"
        case _:
            assert_never(about)


def _of_api(about: _OfApi, page: str) -> tuple[str, ...]:
    """Returns what `_words` returns about the API."""
    no_api = "runbook.md#leadviewnoapi"
    match about:
        case problem.ApiUnknown(unread):
            return "the metrics of the API cannot be read", f"{unread}. Look whether it runs, and its address", no_api
        case problem.ApiUnavailable(ready, workers, causes, unavailable, filling):
            what = f"{unavailable:.1f} requests a second get 503"
            if not ready:
                what = "no worker of the API is ready, so that every request gets 503 or no answer"
            elif ready < workers:
                of = f"{workers - ready} of {workers} workers of the API"
                what = f"{of}: not ready, so that their requests get 503 or no answer"
            if filling:
                return what, "wait: projectors fill Redis from the topics, and the API serves when that is done", no_api
            told = f"{'; '.join(cause.rstrip('.') for cause in causes[:_MOST_NAMED])}. " if causes else ""
            more = "`doctor --api` with the environment of the API, and its log, say more"
            return what, told + "; ".join(filter(None, (remedy(told), more))), no_api
        case problem.ApiReports("not_written"):
            return (
                "no projector writes to the Redis that the API reads",
                "correct LEADVIEW_REDIS_URL of the API, or that of the projectors: they lead to different servers",
                page,
            )
        case problem.ApiReports("clock_differs"):
            return "the clock of Redis and that of the API's machine differ", "let NTP set both", page
        case problem.ApiReports(reported, workers):
            return f"{workers} workers of the API report {reported}", "read `/healthz` on its metrics port", no_api
        case _:
            assert_never(about)


def _of_projectors(about: _OfProjectors, page: str) -> tuple[str, ...]:
    """Returns what `_words` returns about the projectors."""
    match about:
        case problem.NoProjector(silent):
            start = f"start one with `{words.as_called('run')}`"
            if silent:  # beside one that stands still, a new one would only hide it
                do, it = ("exists and stands", "it") if len(silent) == 1 else ("exist and stand", "them")
                start = f"look whether {some(silent)} still {do} still: continue {it}, or end {it} and {start}"
            return (
                "no projector is running",
                f"nothing is applied; {start} (docs/runbook.md#leadviewnoprojector)",
                "runbook.md#leadviewnoprojector",
            )
        case problem.FewProjectors(alive, expected):
            return (
                f"{alive} of {expected} projectors are running",
                "start the others, or correct LEADVIEW_EXPECTED_PROJECTORS of the projectors and of this program",
                page,
            )
        case problem.OtherSettings(programs, setting, theirs, others, alone):
            where = "this program" if alone else "others"
            return (
                f"{setting} is {theirs} in {some(programs)}, and {others} in {where}",
                "correct the one that is wrong, and restart it: all programs need the same value",
                page,
            )
        case problem.ForeignMember(strangers):
            advice = (
                "nobody applies here what it is given: stop it, or give it another group. Another installation of "
                "Leadview needs a LEADVIEW_GROUP_ID of its own"
            )
            what = "not a projector of this installation, and a member of its consumer group"
            return f"{what}: {_strangers(strangers)}", advice, page
        case problem.Stale(records, seconds, hindered, enough):
            wait = "record waits" if records == 1 else "records wait"
            if hindered:
                advice = f"{some(hindered)} cannot apply them now: {_log(hindered)}"
            elif enough:
                advice = "more projectors would not help, because there are as many as partitions (docs/capacity.md)"
            else:
                advice = "the projectors are too slow: start more of them (docs/capacity.md)"
            return (
                f"stale: {records:,} {wait} to be applied, the oldest for {duration(seconds)}",
                advice,
                "runbook.md#leadviewstale",
            )
        case problem.Silent(programs, role, seconds):
            number = len(programs)
            who = f"{program_of(role)} {some(programs)}"
            return (
                f"silent for {seconds:.0f} s: {who if number == 1 else f'{number:,} programs ({who})'}",
                f"{'it has' if number == 1 else 'each has'} crashed, stands still, or cannot reach Redis",
                "runbook.md#few_projectors",
            )
        case _:
            assert_never(about)


def _of_generations(about: _OfGenerations) -> tuple[str, ...]:
    """Returns what `_words` returns about generations."""
    match about:
        case problem.RebuildDue(live, program):
            return (
                f"rebuild due: this program has mapping version {program}, the live generation {live}",
                "run `rebuild` (docs/rebuild.md), or deploy the older version again",
                "runbook.md#leadviewrebuilddue",
            )
        case problem.GenerationUnfilled(number):
            return (
                f"generation {number} is not complete, and no rebuild is running",
                f"run `rebuild` to continue it, or run `drop {number}`",
                "rebuild.md",
            )
        case problem.GenerationUnwritten(number, mapping):
            return (
                f"generation {number} is not written any more: no projector has mapping version {mapping}",
                f"deploy that program again before you promote it, or run `drop {number}`",
                "rebuild.md",
            )
        case _:
            assert_never(about)


def _open_transaction(topic: str, held: Sequence[problem.HeldPartition], *, access: bool, page: str) -> tuple[str, ...]:
    """Returns the words of `_words`. The command is for the oldest transaction."""
    oldest, records = held[0], sum(partition.records for partition in held)
    named = [f"{topic}:{partition.partition}" for partition in held]
    what = f"a transaction is open in {some(named)} since {oldest.since} ({duration(oldest.seconds)})"
    abort = f"abort --topic {topic} --partition {oldest.partition} --start-offset {oldest.first}"
    shown = "a revoked key may still work" if access else "readers see an older state"
    return (
        f"{what}: {records:,} {'record waits' if records == 1 else 'records wait'} for its end",
        f"nobody can read what Kafka has acknowledged behind it, so {shown}; let its producer end it, or abort it",
        page,
        f"It begins at offset {oldest.first} of {topic}:{oldest.partition}. If its producer is gone:",
        f'kafka-transactions.sh --bootstrap-server "$LEADVIEW_KAFKA_BOOTSTRAP_SERVERS" {abort}',
    )


_OF_REPLIES = {
    "NOAUTH": "Redis wants a password: set LEADVIEW_REDIS_PASSWORD (or LEADVIEW_REDIS_PASSWORD_FILE)",
    "WRONGPASS": "Redis refuses the user or the password: correct LEADVIEW_REDIS_USERNAME and LEADVIEW_REDIS_PASSWORD "
    "(or LEADVIEW_REDIS_PASSWORD_FILE), or the user in Redis",
    "NOPERM": "The user lacks a right: grant what deploy/redis-users.conf.example has",
}
"""By the code of the error with which Redis replies."""


def remedy(said: str) -> str:
    """Returns what to do about a refusal of Redis; empty if it said nothing of the kind."""
    return next((advice for code, advice in _OF_REPLIES.items() if code in said), "")


class _Entities:
    """Entities in words, each given by its topic without the prefix and its message key. `more` are only counted."""

    def __init__(self, entities: Sequence[str], more: int = 0) -> None:
        self._entities = entities
        self._more = more
        self._number = len(entities) + more

    @property
    def is_one(self) -> bool:
        return self._number == 1

    @property
    def them(self) -> str:
        return "it" if self.is_one else "them"

    @property
    def count(self) -> str:
        """How many there are, such as `50 leads`; which one it is if there is only one."""
        if self.is_one and self._entities:
            return self._some
        if self._more:
            return f"{self._number:,} {'entity' if self.is_one else 'entities'}"
        nouns = Counter(_noun(entity.partition(":")[0]) for entity in self._entities)
        return " and ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in sorted(nouns.items()))

    @property
    def named(self) -> str:
        """A sentence that says which ones they are, or some of them; empty if `count` says it. Each organization is
        named once, and so is its own entity.
        """
        if self.is_one and self._entities:
            return ""
        if not self._entities:
            return f"{'It is' if self.is_one else 'They are'} not among those that are remembered."
        more = self._number - len(self._entities[:_MOST_NAMED])
        return f"They are {self._some}{f' and {more:,} more' if more else ''}."

    @property
    def _some(self) -> str:
        of: dict[tuple[str, bool], list[str]] = {}
        for entity in self._entities[:_MOST_NAMED]:
            topic, organization, *id_ = entity.split(":", 2)
            of.setdefault((organization, bool(id_)), []).extend(f"{_noun(topic)} {it}" for it in id_)
        shown = [
            f"{', '.join(ids)} of organization {organization}" if ids else f"organization {organization}"
            for (organization, _), ids in of.items()
        ]
        return ", ".join(shown)


def _noun(topic: str) -> str:
    """Returns what an entity of a topic is called."""
    return next(kind.noun for kind in KINDS if kind.topic == topic).replace("api_key", "API key")


_MOST_NAMED = 3
"""More are counted."""
_REDIS_CLI = 'redis-cli -u "$LEADVIEW_REDIS_URL"'
_UNTIL_RESTART = "until Redis restarts, unless you also run CONFIG REWRITE"
_BEFORE_A_REBUILD = "Do it before a rebuild, and before Redis is emptied: Kafka keeps only"
_COMPARED = "projectors compare everything with Kafka, and end this problem by themselves: keep one running"
_NOT_COMPLETE = "runbook.md#redis-is-empty-or-not-complete"


def _halted(trouble: LineTrouble) -> tuple[str, ...]:
    """Returns how many bad records there are; then which was the last one, and the command that accepts them."""
    if not isinstance(trouble, HaltedLine):
        return (words.trouble(trouble),)
    detail = f"The last one is {words.last(trouble)}."
    if not trouble.ranges:
        return words.halt(trouble), detail
    return words.halt(trouble), f"{detail} {words.acceptable(trouble)}:", words.accept_command(trouble)


def _topics(names: Sequence[str]) -> str:
    return f"{'topic' if len(names) == 1 else 'topics'} {', '.join(names)}"


def _user(principal: str) -> str:
    return f"the user {principal.removeprefix('User:')}" if principal else "this user"


def _granting(right: KafkaRight) -> tuple[str, str]:
    """Returns a detail, and the command that grants a right."""
    user = shlex.quote(right.principal) if right.principal else '"User:$LEADVIEW_USER"'
    option = " ".join(f"--{right.resource} {shlex.quote(name)}" for name in right.names) or f"--{right.resource}"
    return "Unless another rule denies it, this grants it:", (
        'kafka-acls.sh --bootstrap-server "$LEADVIEW_KAFKA_BOOTSTRAP_SERVERS" --command-config admin.properties --add '
        f"--allow-principal {user} --operation {right.operation} {option}"
    )


def _strangers(strangers: Sequence[problem.Stranger]) -> str:
    named = [
        f"{it.client_id or 'a program without a client id'} at {it.host} in {it.group} "
        f"({some(it.partitions) or 'no partitions'})"
        for it in strangers
    ]
    return some(named, "; ")


def some(names: Sequence[str], separator: str = ", ") -> str:
    """Returns three of these names at most, and how many more there are."""
    named, more = separator.join(names[:_MOST_NAMED]), len(names) - _MOST_NAMED
    return f"{named} and {more:,} more" if more > 0 else named


def _for(seconds: float) -> str:
    return f" for {duration(seconds)}" if seconds >= 1 else ""


def _log(programs: Sequence[str]) -> str:
    return f"read the log of {some(programs)}" if programs else ""


def _publish_again(*, access: bool) -> str:
    publish = "let the core product publish all of its entities again, then"
    if access:
        return (
            f"{publish} run `verify --access`, which ends this problem if nothing differs; what is `extra` has to be "
            "deleted by an event"
        )
    return (
        f"{publish} run `verify`, which ends this problem if nothing differs. If something does, run `rebuild`, look "
        "at `verify --next`, and `promote`, with --force only if what is missing is gone on purpose"
    )


def program_of(role: str) -> str:
    """Returns what a program that writes is called: a projector, or by its command."""
    return "projector" if role == "run" else role


def duration(seconds: float) -> str:
    """Returns a duration for people to read, such as `3 min`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


def mib(count: int) -> str:
    """Returns a number of bytes for people to read, such as `1.5 MiB`."""
    return f"{count / 1048576:,.1f} MiB"
