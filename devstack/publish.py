"""`python -m devstack.publish`: sends sample data that keeps changing to the Kafka that the settings name.

It is for a stack that is already running (compose.yaml). Each run creates new organizations, keys and records, and
deletes nothing of earlier runs.
"""

import argparse
import os
import secrets
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from devstack import arguments, interrupt
from devstack.failure import StackFailed
from devstack.greeting import greeting
from devstack.interrupt import ended_by_signals
from devstack.publisher import Publisher, create_missing_topics
from devstack.sample import Crm, SampleCrm
from devstack.sandbox import CHANGES_PER_SECOND, PERSONAS, UNSTEADY_ORGANIZATION, Sandbox
from devstack.unsteady import unsteady
from schemas.settings import ProjectorSettings, SettingsError, load

_CHECK_SECONDS = 1.0


def main() -> int:
    """Publish until a signal. Returns the exit status: 0 then, 1 if Kafka fails, 2 for invalid settings."""
    options = _parser().parse_args()
    try:
        settings = load(ProjectorSettings, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with ended_by_signals():
            _publish(options, settings)
    except StackFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _publish(options: argparse.Namespace, settings: ProjectorSettings) -> None:
    create_missing_topics(settings)
    crm, rate = _crm(options)
    publisher = Publisher(settings)
    publisher.publish(crm.initial())
    print(f"Sample data was sent and will appear at {options.base_url}.\n", flush=True)
    limits, personas = "100 requests in 10 s, unless the settings differ", PERSONAS if options.sandbox else ()
    print(greeting(options.base_url, crm.tenants, limits=limits, personas=personas), flush=True)
    stop = threading.Event()
    thread = threading.Thread(target=publisher.keep_publishing, args=(crm, rate, stop), daemon=True)
    with ExitStack() as exits:
        thread.start()
        exits.callback(thread.join)
        exits.callback(stop.set)
        if options.sandbox:
            exits.enter_context(unsteady(settings, UNSTEADY_ORGANIZATION))
        _watch(publisher, options.alive_file)


def _crm(options: argparse.Namespace) -> tuple[Crm, float]:
    """Returns the core product, and its changes per second."""
    if options.sandbox:
        return Sandbox(), CHANGES_PER_SECOND
    return SampleCrm(options.seed, contacts=max(3, options.leads * 3 // 5), leads=options.leads), options.rate


def _watch(publisher: Publisher, alive_file: Path | None) -> None:
    """Touch `alive_file` whenever Kafka has acknowledged more records, for a health check. Raises StackFailed."""
    delivered, pause = 0, threading.Event()
    while True:
        interrupt.check()
        publisher.check()
        if alive_file and publisher.delivered > delivered:
            alive_file.touch()
            delivered = publisher.delivered
        pause.wait(_CHECK_SECONDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devstack.publish", description=__doc__)
    parser.add_argument(
        "--sandbox", action="store_true", help=f"{arguments.SANDBOX}; it ignores --rate, --leads and --seed"
    )
    parser.add_argument("--rate", type=arguments.rate, default=3.0, help="changes per second (default: 3)")
    parser.add_argument(
        "--leads", type=arguments.leads, default=200, help="number of sample leads, at least 3 (default: 200)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbits(64),
        help="anyone who knows the seed can compute the API keys (default: a secret seed)",
    )
    parser.add_argument(
        "--base-url", default="http://127.0.0.1:8000", help="base URL of the API, for the commands that are printed"
    )
    parser.add_argument("--alive-file", type=Path, help="file that is touched whenever Kafka has acknowledged records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
