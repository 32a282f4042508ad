"""A batch of records on its way into Redis: decoded slice by slice, then covered by one checkpoint."""

import time
from collections.abc import Iterator, Mapping
from itertools import chain

from projector import mapping
from projector.change import read
from projector.checkpoint import DeadLetter, Position, Step
from projector.errors import BadRecord, LineStopped
from projector.guard import BadRecordGuard
from projector.intent import Intent
from projector.record import Partition, Record


class Batch:
    """Records of several partitions, in order for each. Bad ones become `dead_letters`.

    Where there are too many of them, `slices` ends early and `stopped` says why: then nothing is to be covered.
    """

    def __init__(self, polled: Mapping[Partition, list[Record]], guard: BadRecordGuard) -> None:
        self._polled = polled
        self._guard = guard
        self._event_times: dict[Partition, int] = {}
        self._oldest: int | None = None
        self.dead_letters: list[DeadLetter] = []
        self.stopped: LineStopped | None = None

    def slices(self, size: int) -> Iterator[list[Intent]]:
        """What is to be written, so many records at a time."""
        intents: list[Intent] = []
        for record in chain.from_iterable(self._polled.values()):
            try:
                found = self._intent(record)
            except LineStopped as error:
                self.stopped = error
                return
            if found:
                intents.append(found)
            if len(intents) == size:
                yield intents
                intents = []
        yield intents

    def steps(self, positions: Mapping[Partition, int]) -> dict[Partition, Step]:
        """The step of each partition, from where it stands."""
        now = int(time.time() * 1000)
        return {
            partition: Step(
                positions[partition],
                Position(records[-1].offset + 1, self._event_times.get(partition, 0), now),
            )
            for partition, records in self._polled.items()
            if partition in positions  # it may have been taken away meanwhile
        }

    def freshness(self) -> float | None:
        """Seconds since the oldest event of the batch; None where it had bad records only."""
        return None if self._oldest is None else max(0.0, time.time() - self._oldest / 1000)

    def _intent(self, record: Record) -> Intent | None:
        """What a record asks for; None where it is bad. Raises LineStopped where too many are."""
        try:
            change = read(record)
            intent = mapping.intent(change, record)
        except BadRecord as error:
            letter = DeadLetter.of(record, error.reason)
            self.dead_letters.append(letter)
            self._guard.note(f"{letter.field}: {letter.reason}")
            return None
        self._guard.note(None)
        self._event_times[Partition(record.topic, record.partition)] = change.time
        if self._oldest is None or change.time < self._oldest:
            self._oldest = change.time
        return intent
