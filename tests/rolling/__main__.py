"""`python -m tests.rolling`: a distributed installation on one machine, of which every part is restarted under load.

It needs Apache Kafka (Java), Redis and Caddy, and prints a line for each restart. The exit status is 1 if a request
failed or an acknowledged event was lost.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial as bind
from itertools import cycle
from pathlib import Path
from tempfile import mkdtemp

from devstack.jars import KAFKA
from tests.rolling.load import ORGANIZATIONS, Journal, Publisher, Reader, Tally
from tests.rolling.parts import APIS, BROKERS, FRONTS, PROJECTORS, SHARDS, Parts
from tests.rolling.places import INSIDE, Places, enter_namespace

_SHOWN_FAILURES = 10
_ROW = "{:<42} {:>8} {:>9} {:>7} {:>11} {:>7}"


def main() -> int:
    """Returns 1 if anything was wrong. Then the logs stay in the directory that is printed."""
    chosen = _arguments()
    if reason := KAFKA.why_unavailable():
        sys.exit(reason)
    if not shutil.which("caddy"):
        sys.exit("Caddy is not installed, which is the front here. On Debian: apt install caddy")
    KAFKA.fetch()  # while there is a network
    if not chosen.inside_namespace:
        enter_namespace(sys.argv[1:])
        print("network namespaces are not permitted here, so the parts are on loopback", flush=True)
    directory = Path(mkdtemp(prefix="leadview-rolling-"))
    print(f"logs in {directory}", flush=True)
    with ExitStack() as stack:
        places = Places(stack, directory, inside=chosen.inside_namespace)
        installation = Parts(stack, directory, places, chosen.redis_timeout)
        print(places.description, flush=True)
        failures = _run(installation, chosen)
    if failures:
        print(f"{len(failures)} failures; the logs are in {directory}")
        return 1
    print("all is right: no request failed, and no acknowledged event was lost")
    shutil.rmtree(directory)
    return 0


def _run(installation: Parts, chosen: argparse.Namespace) -> list[str]:
    """Restart every part under load. Returns everything that went wrong."""
    journal = Journal()
    publisher = Publisher(installation.leadview, journal, chosen.rate)
    fronts = installation.fronts
    # Half of them try the second front first.
    orders = cycle([fronts, fronts[::-1]])
    readers = [Reader(*it, journal, chosen.requests) for it in zip(ORGANIZATIONS, orders, strict=False)]
    publisher.publish_first()
    installation.wait_until_ready()
    threads: list[Publisher | Reader] = [publisher, *readers]
    for thread in threads:
        thread.start()
    print(_ROW.format("step", "seconds", "requests", "failed", "slowest, ms", "events"), flush=True)
    failures: list[str] = []
    try:
        for name, restart in _steps(installation):
            failures += _step(name, restart, journal)
    finally:
        for thread in threads:
            thread.stop()
    failures += _step("everything is read once more", bind(_read_all, installation, readers), journal)
    lost = publisher.missing()
    for what in lost:
        print(f"  LOST {what}", flush=True)
    return failures + lost


def _steps(installation: Parts) -> Iterator[tuple[str, Callable[[], None]]]:
    for index in range(BROKERS):
        yield f"kafka-{index + 1} restarted", bind(installation.restart_broker, index)
    for number in range(SHARDS):
        yield f"redis shard {number + 1}: replica restarted", bind(installation.restart_replica, number)
        yield f"redis shard {number + 1}: primary hands over", bind(installation.hand_over, number)
        yield f"redis shard {number + 1}: former primary restarted", bind(installation.restart_replica, number)
    for index in range(PROJECTORS):
        yield f"projector-{index + 1} restarted", bind(installation.restart_projector, index)
    for index in range(APIS):
        yield f"api-{index + 1} restarted", bind(installation.restart_api, index)
    for index in range(FRONTS):
        yield f"front-{index + 1} restarted", bind(installation.restart_front, index)


def _step(name: str, action: Callable[[], None], journal: Journal) -> list[str]:
    """Do it, and print what has happened since the step before. Returns the failures."""
    began_at = time.monotonic()
    action()
    seconds = time.monotonic() - began_at
    tally = journal.take()
    _print(name, seconds, tally)
    return tally.failures


def _print(name: str, seconds: float, tally: Tally) -> None:
    slowest = f"{tally.slowest * 1000:.0f}"
    print(_ROW.format(name, f"{seconds:.1f}", tally.requests, len(tally.failures), slowest, tally.events), flush=True)
    for failure in tally.failures[:_SHOWN_FAILURES]:
        print(f"  FAILED {failure}", flush=True)


def _read_all(installation: Parts, readers: list[Reader]) -> None:
    installation.wait_until_ready()
    for reader in readers:
        reader.read_all()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rolling", description=__doc__)
    parser.add_argument("--rate", type=float, default=50.0, help="events a second")
    parser.add_argument("--requests", type=float, default=20.0, help="requests a second of each of six readers")
    parser.add_argument("--redis-timeout", type=float, default=0.5, help="LEADVIEW_API_REDIS_TIMEOUT of the APIs")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
