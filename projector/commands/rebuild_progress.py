"""Shows the progress of a replay: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import AsyncIterator
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from projector.errors import Unavailable
from projector.kafka.reader import Reader, open_reader
from projector.ledger.ledger import lag
from projector.line.pace import Pacer
from projector.operate.words import duration
from projector.rebuild.replay import Rebuild, progress
from projector.redis.store import Store
from projector.stop import Stop
from schemas.resources import RESOURCES
from schemas.settings import ProjectorSettings

_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 5.0


class RebuildView:
    """Shows the progress of all processes, which it reads from Redis."""

    def __init__(self, store: Store, settings: ProjectorSettings, rebuild: Rebuild, pacer: Pacer) -> None:
        self._store = store
        self._settings = settings
        self._rebuild = rebuild
        self._pacer = pacer
        self._topics = sorted({partition.topic for partition in rebuild.ranges})
        self._started: tuple[float, int] | None = None

    async def run(self, stop: Stop, console: Console) -> None:
        """Show the progress until `stop` is set, and once more at the end."""
        async with open_reader(self._settings, RESOURCES) as reader:
            if console.is_terminal:
                await self._bar(reader, stop, console)
            else:
                await self._lines(reader, stop, console)

    async def _bar(self, reader: Reader, stop: Stop, console: Console) -> None:
        columns = (TextColumn("replay"), BarColumn(None), TaskProgressColumn(), TextColumn("{task.fields[figures]}"))
        with Bar(*columns, console=console, transient=False) as bar:
            task = bar.add_task("replay", total=None, figures="")
            async for done, total, figures in self._frames(reader, stop, _REFRESH_SECONDS):
                bar.update(task, total=total, completed=done, figures=figures)

    async def _lines(self, reader: Reader, stop: Stop, console: Console) -> None:
        async for done, total, figures in self._frames(reader, stop, _LINE_SECONDS):
            console.print(f"replay {done / total if total else 1:.1%}  {done:,} of {total:,}  {figures}")

    async def _frames(self, reader: Reader, stop: Stop, pause: float) -> AsyncIterator[tuple[int, int, str]]:
        while True:
            last = stop.is_set()
            with suppress(Unavailable):  # the replay resumes as soon as it can, and so does this view
                yield await self._figures(reader)
            if last:
                return
            await stop.sleep(pause)

    async def _figures(self, reader: Reader) -> tuple[int, int, str]:
        replayed = await progress(self._store, self._rebuild, self._topics)
        now = time.monotonic()
        self._started = self._started or (now, replayed.done)
        rate = (replayed.done - self._started[1]) / max(now - self._started[0], 0.001)
        left = "done" if replayed.finished else f"{duration(replayed.left / rate) if rate > 1 else '?'} left"
        behind = await lag(self._store, await reader.range(list(self._rebuild.ranges)))
        return replayed.done, replayed.total, f"{rate:,.0f}/s, {left}, live lag {behind:,}{self._yielding()}"

    def _yielding(self) -> str:
        if self._pacer.pause:
            return f", pausing {self._pacer.pause * 1000:.0f} ms per batch for the API"
        return ", in small batches for the API" if self._pacer.yields else ""
