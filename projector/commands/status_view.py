"""Prints the status on a console."""

from rich.console import Console
from rich.table import Table

from projector.commands.status import Status


def show(status: Status, console: Console) -> None:
    """Print the status: generations, partitions, and a summary."""
    live = "none yet: the first projection is not complete" if status.generation is None else status.generation
    console.print(
        f"[bold]Leadview[/]  generation [bold]{live}[/]  mapping version {status.live_mapping_version or '-'}"
    )
    if status.rebuild_due:
        console.print(f"[yellow]rebuild due:[/] this program has mapping version {status.mapping_version}")
    if status.incomplete_shards:
        console.print(
            f"[red]not complete:[/] {status.incomplete_shards} of the parts (shards) of Redis. For the organizations "
            "there, the API answers 503 until a projector has filled them"
        )
    for writer in status.writers:
        if not writer.alive:
            console.print(f"[yellow]silent:[/] {writer.role} {writer.id}, for {_seconds(writer.age)}")
        for line, state in writer.lines.items():
            if state != "running":
                console.print(f"[yellow]{line}:[/] {state} ({writer.role} {writer.id})")
    if not any(writer.alive and writer.role == "run" for writer in status.writers):
        console.print("[red]no projector is running:[/] start one, or nothing is applied")
    if len(status.generations) > 1:
        console.print(_generation_table(status))
    console.print(_partition_table(status))
    dead_letters = f"[red]{status.dead_letters}[/]" if status.dead_letters else "0"
    console.print(
        f"lag {status.lag:,}   freshness {_seconds(status.freshness)}   dead letters {dead_letters}   {_memory(status)}"
    )


def _generation_table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("generation", "state", "mapping", "started", "verified"):
        table.add_column(column)
    for generation in status.generations:
        table.add_row(
            str(generation.number),
            generation.state,
            str(generation.mapping or "-"),
            generation.created_at or "-",
            generation.verified_at or "-",
        )
    return table


def _partition_table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("topic")
    for column in ("partition", "position", "end offset", "lag", "newest event", "checkpoint"):
        table.add_column(column, justify="right")
    for partition in status.partitions:
        table.add_row(
            partition.topic,
            str(partition.partition),
            "-" if partition.position is None else f"{partition.position:,}",
            f"{partition.head:,}",
            f"[yellow]{partition.lag:,}[/]" if partition.lag else "0",
            _seconds(partition.newest_event_age, " ago"),
            _seconds(partition.checkpoint_age, " ago"),
        )
    return table


def _seconds(age: float | None, suffix: str = "") -> str:
    if age is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= 2 * size:
            return f"{age / size:.0f} {unit}{suffix}"
    return f"{age:.1f} s{suffix}" if age < 10 else f"{age:.0f} s{suffix}"


def _memory(status: Status) -> str:
    used = f"Redis {status.redis_used_memory / 1048576:,.1f} MiB"
    if not status.redis_max_memory:
        return used
    return (
        f"{used} of {status.redis_max_memory / 1048576:,.0f} ({status.redis_used_memory / status.redis_max_memory:.0%})"
    )
