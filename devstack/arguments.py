"""The command line of `python -m devstack`, which is `make run ARGS="…"`."""

import argparse
from collections.abc import Sequence

from msgspec import Struct

DESCRIPTION = """Runs Leadview with sample data that keeps changing, on embedded Redis and Kafka: nothing has to be
installed or set up. Prints a base URL, a key and curl lines. Ctrl-C ends everything and leaves nothing behind."""

EPILOG = """The settings of Leadview (LEADVIEW_…, see the README) reach the projector and the API, but where they
listen and which servers they use is said here: a LEADVIEW_REDIS_URL in your environment never makes this write
sample data to your Redis. From make: make run ARGS="--rate 50 --leads 2000" """

MOST_LEADS = 20_000
"""The embedded Kafka keeps 5 MB of each partition: more leads might be dropped before they are read."""


class Arguments(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    redis_url: str | None = None
    kafka: str | None = None
    apache_kafka: bool = False
    port: int | None = None
    """0 is any free one."""
    rate: float = 3.0
    leads: int = 200
    live: bool = True

    @property
    def on_real_servers(self) -> bool:
        """Data of others may be there, and ours stays."""
        return self.redis_url is not None or self.kafka is not None


def parse(words: Sequence[str] | None = None) -> Arguments:
    """Reads `words`, or the command line. Ends the process where they are wrong, or ask for help."""
    parser = _parser()
    arguments = Arguments(**vars(parser.parse_args(words)))
    if arguments.leads > MOST_LEADS and not (arguments.kafka or arguments.apache_kafka):
        parser.error(f"--leads: the embedded Kafka holds no more than {MOST_LEADS}; add --apache-kafka or --kafka")
    return arguments


def rate(text: str) -> float:
    """Changes a second. Raises ValueError."""
    value = float(text)
    if not 0 <= value <= 10_000:  # also refuses nan
        raise ValueError
    return value


def leads(text: str) -> int:
    """How many leads. Raises ValueError."""
    value = int(text)
    if not 3 <= value <= 10_000_000:
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise ValueError
    return value


_port.__name__ = "port"  # argparse names it in its message


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devstack", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "--redis-url", metavar="URL", help="a Redis of yours (redis:// or rediss://); nothing is flushed"
    )
    kafka = parser.add_mutually_exclusive_group()
    kafka.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka of yours; topics that are missing are created")
    kafka.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka (needs Java 17; Maven, once)")
    parser.add_argument("--port", type=_port, help="port of the API: 8000, or a free one where that is taken; 0: any")
    parser.add_argument("--rate", type=rate, default=3.0, help="changes a second (default: 3)")
    parser.add_argument("--leads", type=leads, default=200, help="sample leads, from 3 (default: 200)")
    parser.add_argument("--no-live", dest="live", action="store_false", help="no live view")
    return parser
