"""Shows a replay while it runs: a bar on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from projector.kafka import open_reader
from projector.ledger import Ledger
from projector.preflight import duration
from projector.rebuild import Rebuild, progress
from projector.record import DOCUMENT_KINDS
from projector.stop import Stop
from projector.store import Store
from projector.throttle import Throttle
from schemas.settings import ProjectorSettings

_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 5.0


class RebuildView:
    """Reads the progress of all processes from Redis; `run` until `stop`."""

    def __init__(self, store: Store, settings: ProjectorSettings, rebuild: Rebuild, throttle: Throttle) -> None:
        self._store = store
        self._settings = settings
        self._rebuild = rebuild
        self._throttle = throttle
        self._topics = sorted({partition.topic for partition in rebuild.ranges})
        self._began: tuple[float, int] | None = None

    async def run(self, stop: Stop, console: Console) -> None:
        if console.is_terminal:
            await self._bar(stop, console)
        else:
            await self._lines(stop, console)

    async def _bar(self, stop: Stop, console: Console) -> None:
        columns = (TextColumn("replay"), BarColumn(None), TaskProgressColumn(), TextColumn("{task.fields[figures]}"))
        with Bar(*columns, TimeRemainingColumn(), console=console, transient=False) as bar:
            task = bar.add_task("replay", total=None, figures="")
            while True:
                done, total, figures = await self._figures()
                bar.update(task, total=total, completed=done, figures=figures)
                if stop.is_set():
                    return
                await stop.sleep(_REFRESH_SECONDS)

    async def _lines(self, stop: Stop, console: Console) -> None:
        while True:
            done, total, figures = await self._figures()
            console.print(f"replay {done / total if total else 1:.1%}  {done:,} of {total:,}  {figures}")
            if stop.is_set():
                return
            await stop.sleep(_LINE_SECONDS)

    async def _figures(self) -> tuple[int, int, str]:
        found = await progress(self._store, self._rebuild, self._topics)
        now = time.monotonic()
        self._began = self._began or (now, found.done)
        rate = (found.done - self._began[1]) / max(now - self._began[0], 0.001)
        left = duration((found.total - found.done) / rate) if rate > 1 else "?"
        lag = await live_lag(self._store, self._settings)
        slowed = f", waiting {self._throttle.pause * 1000:.0f} ms a slice for the API" if self._throttle.pause else ""
        return found.done, found.total, f"{rate:,.0f}/s, {left} left, live lag {lag:,}{slowed}"


async def live_lag(store: Store, settings: ProjectorSettings) -> int:
    """Records that the running projectors have not applied yet. Raises Unavailable."""
    async with open_reader(settings, DOCUMENT_KINDS) as reader:
        ranges = await reader.range(await reader.partitions())
    positions = await Ledger(store).positions(list(ranges))
    return sum(max(0, last - max(positions[p] or 0, first)) for p, (first, last) in ranges.items())
