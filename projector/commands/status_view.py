"""Prints the status on a console: the verdict first, then what it follows from."""

import asyncio
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from projector.commands import status
from projector.commands.operator import Operator
from projector.commands.status import Status
from projector.operate.words import duration, mib

WATCH_SECONDS = 2.0


def show(found: Status, console: Console) -> None:
    """Print the verdict, the problems, and then projectors, generations and partitions."""
    for part in _parts(found):
        console.print(part)


async def watch(operator: Operator) -> None:
    """Show the status again every two seconds, on the whole screen if this is a terminal, until it is cancelled."""
    if operator.json or not operator.console.is_terminal:
        while True:
            found = await status.read(operator.store, operator.settings)
            operator.print_json_line(found) if operator.json else show(found, operator.console)
            await asyncio.sleep(WATCH_SECONDS)
    with Live(console=operator.console, screen=True, auto_refresh=False) as live:
        while True:
            found = await status.read(operator.store, operator.settings)
            live.update(Group(*_parts(found), "", "[dim]Ctrl-C ends this.[/]"), refresh=True)
            await asyncio.sleep(WATCH_SECONDS)


def _parts(found: Status) -> Iterator[RenderableType]:
    yield Text(found.verdict, style="bold green" if found.well else "bold red")
    if len(found.problems) > 1:
        for problem in found.problems:
            yield f"  [red]problem[/]  {escape(problem)}"
    elif found.problems and found.problems[0] not in found.verdict:
        more = found.problems[0].removeprefix(found.verdict.removeprefix("not well: ")).strip()
        yield f"  {escape(more)}"
    for note in found.notes:
        yield f"  [yellow]note[/]     {escape(note)}"
    yield ""
    if found.epoch is not None:
        live = "none: what is stored is not complete" if found.generation is None else found.generation
        yield f"generation [bold]{live}[/]  mapping version {found.live_mapping_version or '-'}"
    if found.projectors is not None:
        yield f"projectors [bold]{found.projectors}[/]"
    if found.writers:
        yield _writer_table(found)
    if len(found.generations) > 1:
        yield _generation_table(found)
    if found.partitions:
        yield _partition_table(found)
    yield _summary(found)


def _summary(found: Status) -> str:
    lag = "unknown" if found.lag is None else f"{found.lag:,}"
    dead_letters = "unknown" if found.dead_letters is None else f"{found.dead_letters:,}"
    if found.dead_letters:
        dead_letters = f"[yellow]{dead_letters}[/]"
    freshness = _seconds(found.freshness) if found.freshness is not None else "unknown"
    return f"lag {lag}   freshness {freshness}   dead letters {dead_letters}   {_memory(found)}"


def _writer_table(found: Status) -> Table:
    table = _table("program", "id", "mapping", "heartbeat", "lines")
    for writer in found.writers:
        lines = "  ".join(f"{line}: {state.partition(': ')[0]}" for line, state in writer.lines.items())
        heartbeat = _seconds(writer.age, " ago")
        table.add_row(
            "projector" if writer.role == "run" else writer.role,
            escape(writer.id),
            str(writer.mapping_version),
            heartbeat if writer.alive else f"[yellow]silent, {heartbeat}[/]",
            (lines or "-") if writer.alive else "unknown",
        )
    return table


def _generation_table(found: Status) -> Table:
    table = _table("generation", "state", "mapping", "started", "verified")
    for generation in found.generations:
        table.add_row(
            str(generation.number),
            generation.state,
            str(generation.mapping or "-"),
            generation.created_at or "-",
            generation.verified_at or "-",
        )
    return table


def _partition_table(found: Status) -> Table:
    table = _table()
    table.add_column("topic", no_wrap=True)
    for column in ("partition", "position", "end offset", "lag", "waiting", "newest event", "checkpoint"):
        table.add_column(column, justify="right")
    for partition in found.partitions:
        lag = "-" if partition.lag is None else f"{partition.lag:,}"
        table.add_row(
            partition.topic,
            str(partition.partition),
            "-" if partition.position is None else f"{partition.position:,}",
            "-" if partition.head is None else f"{partition.head:,}",
            f"[yellow]{lag}[/]" if partition.lag else lag,
            _seconds(partition.waiting_age),
            _seconds(partition.newest_event_age, " ago"),
            _seconds(partition.checkpoint_age, " ago"),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    return table


def _seconds(age: float | None, suffix: str = "") -> str:
    return "-" if age is None else duration(age) + suffix


def _memory(found: Status) -> str:
    if found.redis_used_memory is None:
        return "Redis unknown"
    used = f"Redis {mib(found.redis_used_memory)}"
    if not found.redis_max_memory:
        return used
    return f"{used} of {mib(found.redis_max_memory)} ({found.redis_used_memory / found.redis_max_memory:.0%})"
