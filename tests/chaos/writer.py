"""The writer: publishes the events of the core product, and notes when."""

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

from tests.chaos.bodies import Bodies
from tests.chaos.core import Change
from tests.chaos.history import now
from tests.chaos.world import World

_TICK_SECONDS = 0.05
_WORK_SECONDS, _REST_SECONDS = (2.0, 12.0), (1.0, 10.0)
"""It rests now and then: some holes exist only while nothing is written."""


class Writer(threading.Thread):
    """Publishes about `rate` changes per second until `stop`, except while it rests."""

    def __init__(self, world: World, changes: Iterator[Change], rate: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._changes = changes
        self._random = Random(seed)
        self._each = max(1, round(rate * _TICK_SECONDS))
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self.bodies = Bodies()
        self.number = 0

    def run(self) -> None:
        try:
            rest_at = now() + self._random.uniform(*_WORK_SECONDS)
            while not self._ended.wait(_TICK_SECONDS):
                self.publish(islice(self._changes, self._each))
                if now() > rest_at:
                    self._ended.wait(self._random.uniform(*_REST_SECONDS))
                    rest_at = now() + self._random.uniform(*_WORK_SECONDS)
        except BaseException as error:  # raised again by `stop`
            self._failure = error
            raise

    def publish(self, changes: Iterable[Change]) -> None:
        """Send these, and return when Kafka has them."""
        published = self._world.history.published
        with self._world.publishing:
            sent = list(changes)
            states = [published.add(change.register, change.value) for change in sent if change.register]
            self._world.leadview.topics.bad_keys |= {change.message.key for change in sent if change.bad}
            self._world.leadview.publish_all(change.message for change in sent)
            for state in states:
                state.acked_at = now()
            for change in sent:
                if change.register:
                    self.bodies.add(change.register, change.value, change.message)
            self.number += len(sent)
            self._world.bad_keys |= {change.message.key.decode() for change in sent if change.bad}

    def stop(self) -> None:
        """End, and raise what the writer raised."""
        self._ended.set()
        self.join()
        if self._failure:
            raise self._failure
