"""`python -m tests.rolling`: a distributed installation on one machine, of which every part is restarted under load.

The world, the core product, the readers and the checker are those of chaos runs (`tests.chaos`): but here, nothing
explains a request that fails. It needs Apache Kafka (Java), Redis and Caddy, and prints a line for each restart. The
exit status is 1 if a request failed, an answer was wrong, or an acknowledged event was lost.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial as bind
from pathlib import Path
from tempfile import mkdtemp

from devstack.jars import KAFKA
from devstack.threads import Repeating
from tests.chaos.core import Core, Writer
from tests.chaos.history import now
from tests.chaos.reader import Reader, check
from tests.rolling.parts import APIS, BROKERS, FRONTS, SHARDS, FrontConnection, Parts

_SHOWN_FAILURES = 10
_EVENTS, _READERS, _QUESTIONS = 50, 6, 20
"""Events a second, readers, and requests a second of each of these."""
_RIGHT = (200, 304, 404)
"""404 is right for what was deleted; the checker knows."""
_ROW = "{:<42} {:>8} {:>9} {:>7} {:>11} {:>7}"


def main() -> int:
    """Returns 1 if anything was wrong. Then the logs stay in the directory that is printed."""
    chosen = _arguments()
    if reason := KAFKA.why_unavailable():
        sys.exit(reason)
    if not shutil.which("caddy"):
        sys.exit("Caddy is not installed, which is the front here. On Debian: apt install caddy")
    KAFKA.fetch()  # while there is a network
    directory = Path(mkdtemp(prefix="leadview-rolling-"))
    print(f"logs in {directory}", flush=True)
    with ExitStack() as stack:
        installation = Parts(stack, directory, chosen.redis_timeout)
        failures = _run(installation)
    if failures:
        print(f"{len(failures)} failures; the logs are in {directory}")
        return 1
    print("all is right: no request failed, and no acknowledged event was lost")
    shutil.rmtree(directory)
    return 0


def _run(installation: Parts) -> list[str]:
    core = Core(1, leads=12, contacts=4, calm=True)
    writer = Writer(installation, core, _EVENTS)
    # Half of them try the second front first.
    orders = [installation.fronts, installation.fronts[::-1]]
    readers = [Reader([FrontConnection(orders[number % 2])], core, number, _QUESTIONS) for number in range(_READERS)]
    writer.publish(core.first())
    installation.wait_until_ready()
    threads: list[Repeating] = [writer, *readers]
    for thread in threads:
        thread.start()
    print(_ROW.format("step", "seconds", "requests", "failed", "slowest, ms", "events"), flush=True)
    log = _Log(installation, writer, readers)
    try:
        for name, restart in _steps(installation):
            log.step(name, restart)
    finally:
        for thread in threads:
            thread.stop()
    installation.wait_until_ready()
    log.step("everything is read once more", bind(_read_all, readers))
    for reader in readers:
        reader.stop()
    wrong = [str(anomaly) for anomaly in check(writer, readers).anomalies]
    for anomaly in wrong[:_SHOWN_FAILURES]:
        print(f"  WRONG {anomaly}", flush=True)
    return wrong


def _read_all(readers: Sequence[Reader]) -> None:
    for reader in readers:
        reader.read_all()


class _Log:
    def __init__(self, installation: Parts, writer: Writer, readers: Sequence[Reader]) -> None:
        self._installation, self._writer, self._readers = installation, writer, readers
        self._published, self._seen = writer.number, [0] * len(readers)

    def step(self, name: str, action: Callable[[], object]) -> None:
        """Do it, wait until all is applied again, and print what has happened since the step before."""
        began_at = now()
        action()
        self._installation.catch_up()
        seconds = now() - began_at
        every = [list(reader.answers) for reader in self._readers]
        answers = [answer for of_one, seen in zip(every, self._seen, strict=True) for answer in of_one[seen:]]
        self._seen = [*map(len, every)]
        failures = [each for each in answers if each.status not in _RIGHT]
        slowest = max((answer.answered_at - answer.asked_at for answer in answers), default=0.0) * 1000
        events, self._published = self._writer.number - self._published, self._writer.number
        row = (name, f"{seconds:.1f}", len(answers), len(failures), f"{slowest:.0f}", events)
        print(_ROW.format(*row), flush=True)
        for each in failures[:_SHOWN_FAILURES]:
            print(f"  FAILED {each.wanted[0].noun} {each.wanted[2]}: {each.status}", flush=True)


def _steps(installation: Parts) -> Iterator[tuple[str, Callable[[], None]]]:
    for index in range(BROKERS):
        yield f"kafka-{index + 1} restarted", bind(installation.restart_broker, index)
    for number in range(SHARDS):
        yield f"redis shard {number + 1}: replica restarted", bind(installation.restart_replica, number)
        yield f"redis shard {number + 1}: primary hands over", bind(installation.hand_over, number)
        yield f"redis shard {number + 1}: former primary restarted", bind(installation.restart_replica, number)
    for name in [*installation.projectors]:
        yield f"{name} restarted", bind(installation.restart_projector, name)
    for index in range(APIS):
        yield f"api-{index + 1} restarted", bind(installation.restart_an_api, index)
    for index in range(FRONTS):
        yield f"front-{index + 1} restarted", installation.fronts[index].restart


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rolling", description=__doc__)
    parser.add_argument("--redis-timeout", type=float, default=0.5, help="LEADVIEW_API_REDIS_TIMEOUT of the APIs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
