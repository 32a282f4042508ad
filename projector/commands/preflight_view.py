"""Prints what a rebuild will cost."""

from rich.console import Console

from projector.rebuild.preflight import RATE, Preflight, duration, mib


def show(preflight: Preflight, console: Console) -> None:
    """Print the cost of a rebuild, and what prevents it."""
    verb = "resumes" if preflight.resumed else "begins"
    console.print(
        f"[bold]rebuild[/] of generation [bold]{preflight.generation}[/] {verb}, mapping version {preflight.mapping} "
        f"(the live one: {preflight.live_mapping or 'unknown'})"
    )
    console.print(f"  records to replay   {preflight.records:,}, about {duration(preflight.seconds)} at {RATE:,}/s")
    console.print(
        f"  memory              about {mib(preflight.memory_needed)} more, "
        f"{mib(preflight.memory_free)} free of {preflight.memory_bound}"
    )
    for note in preflight.notes:
        console.print(f"  [yellow]note[/]              {note}")
    for problem in preflight.problems:
        console.print(f"  [red]problem[/]           {problem}")
