"""Threads that work until they are stopped."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


@contextmanager
def in_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run this function in a thread while the block runs. It must return soon after its event is set."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def loop_in_thread(name: str) -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread of this name while the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Repeating(threading.Thread):
    """Waits for `pause` seconds and calls `_work`, again and again until `stop`. A context manager that runs it."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._pause = pause
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                self._work()
        except BaseException as error:  # raised again by `stop`
            self._failure = error
            raise

    def stop(self, timeout: float | None = None) -> None:
        """End, and raise what `_work` raised. After `timeout` seconds, it may still be at work, and end later."""
        self._ended.set()
        self.join(timeout)
        if self._failure:
            raise self._failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _work(self) -> None:
        raise NotImplementedError
