"""`verify`: compares documents, or organizations and API keys, with the topics.

With `--continuous` it audits Redis until SIGTERM, logs what differs, and exports it as metrics.
"""

import argparse
import logging
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column

from operate.commands.operator import Operator, table
from operate.rebuild import generations
from operate.rebuild.generations import Criteria
from operate.verify import causes, rolling
from operate.verify.rolling import Turn
from projector.errors import Refused, Unavailable
from projector.health.watch import metrics_port
from projector.kafka.reader import held_back
from projector.ledger import breaks, copies
from projector.ledger.control import ACCESS
from projector.line.metrics import DIFFERENCES, PASSES, VERIFICATION, VERIFIED
from projector.stop import Stop
from projector.verify import comparison
from projector.verify.report import Report, Unread, unread
from projector.verify.topics import noticed
from projector.words import some
from runtime.metrics_port import HealthAnswer
from schemas.resources import ACCESS_KINDS, KINDS, ORGANIZATION, RESOURCES

_RETRY_SECONDS = 5.0

logger = logging.getLogger(__name__)


async def run_verify(arguments: argparse.Namespace, operator: Operator) -> int:
    """`verify`: compare the live generation or the access with the topics, or the next generation with the live one."""
    if arguments.continuous:
        return await _continuously(operator)
    criteria = criteria_of(arguments)
    record = await (copies.require(operator.store) if arguments.next else noticed(operator.store, operator.settings))
    held = await held_back(operator.settings, ACCESS_KINDS if arguments.access else (ORGANIZATION, *RESOURCES))
    seen = record.state
    if arguments.access:
        verified = await comparison.access(operator.store, operator.settings)
    elif arguments.next:
        _, verified = await generations.verify_next(operator.store, criteria, held)
    elif not record.serves:
        raise Refused("The live generation is not complete yet: there is nothing to verify.")
    else:
        verified = await comparison.documents(operator.store, operator.settings, seen.live, allowed=criteria.allowed)
    if not arguments.next:
        verified.unread.extend(unread(held))
    if seen.breaks and verified.is_exact and not arguments.next:
        # If this is exactly what Kafka has, no topic that had lost its history before concerns it any more.
        await breaks.confirm(operator.store, ACCESS if arguments.access else seen.live, seen.breaks)
    await causes.note_causes(operator.store, operator.settings, verified)
    if not arguments.next:
        await causes.end_count(operator.store, verified)
    if operator.json:
        operator.print_json(verified.to_json())
    else:
        show_report(verified, operator.console)
    return 0 if verified.passes(criteria.threshold) else 1


def criteria_of(arguments: argparse.Namespace) -> Criteria:
    """Returns what `--allow` and `--threshold` say."""
    return Criteria(frozenset(arguments.allow), arguments.threshold)


def show_report(report: Report, console: Console) -> None:
    """Print the result of a verification as text."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in report.checked.items())
    console.print(f"[bold]verified[/] {report.of}: {counts}")
    for note in report.notes:
        console.print(f"[yellow]note[/] {note}")
    if report.unread:
        console.print(f"[red]not compared[/]: {escape(say_unread(report.unread))}", soft_wrap=True)
    if not (report.differences or report.allowed):
        rest = report.unread or report.changing
        console.print("no difference in the rest" if rest else "[green]no difference[/]")
        return
    former = f", {report.former:,} only in former partitions" if report.former else ""
    console.print(
        f"[red]{report.differences:,} differ[/]: {report.missing:,} missing, {report.extra:,} extra, "
        f"{report.changed:,} changed{former}; allowed {report.allowed:,}"
    )
    if report.former:
        console.print(
            "[yellow]note[/] What is only in former partitions was deleted, and Kafka still has a record of it in a "
            "partition from before partitions were added. Delete it once more by events. Do not publish it again: it "
            "would come back."
        )
    fields = table("field", Column("count", justify="right"))
    for field, count in sorted(report.by_field.items(), key=lambda item: -item[1]):
        fields.add_row(field, f"{count:,}")
    console.print(fields)
    for example in report.examples:
        console.print(
            f"  {example.kind} {example.organization} {example.id}: {', '.join(example.fields)}", soft_wrap=True
        )
    if (more := report.differences - len(report.examples)) > 0:
        console.print(f"  and {more:,} more")


async def _continuously(operator: Operator) -> int:
    """Audit until SIGTERM or SIGINT. Returns 1 if anything differed, else 0.

    Waits while Redis or Kafka is unavailable, Redis is empty or a topic is missing, and says so in the health.
    """
    settings = operator.settings
    stop = Stop.on_signals()
    problems: list[str] = []
    differences = 0
    for kind in KINDS:
        for counter in (VERIFIED, DIFFERENCES, PASSES):
            counter.labels(f"{settings.topic_prefix}{kind.topic}")  # 0, and not absent, before the first turn
    with metrics_port(settings, VERIFICATION, lambda: _health(problems)):
        logger.info("continuous verification starts", extra={"share": rolling.SHARE})
        while not stop.is_set():
            try:
                async for turn in rolling.audit(operator.store, settings, stop):
                    problems.clear()
                    differences += _note(turn)
            except (Refused, Unavailable) as error:
                problems[:] = [str(error)]
                logger.warning("cannot verify now, and will try again", extra={"error": str(error)})
                await stop.sleep(_RETRY_SECONDS)
    return 1 if differences else 0


def _note(turn: Turn) -> int:
    VERIFIED.labels(turn.topic).inc(turn.checked)
    DIFFERENCES.labels(turn.topic).inc(len(turn.differences))
    PASSES.labels(turn.topic).inc(turn.passed)
    for found in turn.differences:
        logger.warning(
            "Redis differs from the topic; `verify` compares everything, `rebuild --organization` repairs documents",
            extra={
                "kind": found.kind,
                "organization": found.organization,
                "entity": found.id,
                "fields": list(found.fields),
            },
        )
    return len(turn.differences)


def _health(problems: list[str]) -> HealthAnswer:
    """Called in threads of the metrics server."""
    found = list(problems)
    return HealthAnswer(not found, {"status": "unhealthy" if found else "ok", "problems": found})


def say_unread(unread: Sequence[Unread]) -> str:
    """Returns, in whole sentences, what could not be compared because transactions are open."""
    records = sum(part.records for part in unread)
    where = some([f"{part.topic}:{part.partition} since {part.since or 'an unknown time'}" for part in unread])
    wait = "record" if records == 1 else "records"
    return (
        f"A transaction is open in {where}, and {records:,} {wait} behind it cannot be read; `status` says what to do."
    )
