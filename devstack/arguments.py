"""The command line of `python -m devstack`, which is `make run ARGS="…"`."""

import argparse
from collections.abc import Sequence

from msgspec import Struct

DESCRIPTION = """Runs Leadview with sample data that keeps changing, on an embedded Redis and Kafka: nothing has to be
installed or set up. Prints a base URL, an API key and curl commands. Ctrl-C ends everything and removes all files."""

EPILOG = """The projector and the API use the settings in your environment (LEADVIEW_…, docs/settings.md), except the
addresses of Redis and Kafka: only --redis-url and --kafka set those, so that no sample data is written to your servers
by accident. With make: make run ARGS="--rate 50 --leads 2000" """

SANDBOX = "the same keys, ids and documents on every machine (docs/sandbox.md); not for production"

MOST_LEADS = 20_000
"""The embedded Kafka keeps 5 MB of each partition. More leads might be dropped before they are read."""


class Arguments(Struct, frozen=True, kw_only=True):
    """The parsed command line."""

    redis_url: str | None = None
    kafka: str | None = None
    apache_kafka: bool = False
    port: int | None = None
    """0 means any free port; None means the port of the settings."""
    rate: float = 3.0
    leads: int = 200
    live: bool = True
    sandbox: bool = False

    @property
    def on_real_servers(self) -> bool:
        """Whether the user's own servers are used. They may hold other data, and the sample data remains there."""
        return self.redis_url is not None or self.kafka is not None


def parse(words: Sequence[str] | None = None) -> Arguments:
    """Parse `words`, or the command line. Raises SystemExit if they are invalid or ask for help."""
    parser = _parser()
    given = vars(parser.parse_args(words))
    arguments = Arguments(**given)
    if arguments.sandbox and (others := given.keys() & {"redis_url", "kafka", "rate", "leads"}):
        options = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in others))
        parser.error(f"--sandbox has its own servers and a fixed set of records; leave out {options}")
    if arguments.leads > MOST_LEADS and not (arguments.kafka or arguments.apache_kafka):
        parser.error(f"--leads: the embedded Kafka holds at most {MOST_LEADS}; add --apache-kafka or --kafka")
    return arguments


def rate(text: str) -> float:
    """Parses the number of changes per second. Raises ValueError."""
    value = float(text)
    if not 0 <= value <= 10_000:  # also rejects nan
        raise ValueError
    return value


def leads(text: str) -> int:
    """Parses the number of leads. Raises ValueError."""
    value = int(text)
    if not 3 <= value <= 10_000_000:
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise ValueError
    return value


_port.__name__ = "port"  # argparse uses the name in its error message


def _parser() -> argparse.ArgumentParser:
    # What is not given is absent, so the defaults are those of Arguments.
    parser = argparse.ArgumentParser(
        prog="python -m devstack", description=DESCRIPTION, epilog=EPILOG, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--sandbox", action="store_true", help=SANDBOX)
    parser.add_argument("--redis-url", metavar="URL", help="use your own Redis; its data is not deleted")
    kafka = parser.add_mutually_exclusive_group()
    kafka.add_argument("--kafka", metavar="HOST:PORT", help="use your own Kafka; missing topics are created")
    kafka.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka (needs Java 17; Maven, once)")
    parser.add_argument(
        "--port", type=_port, help="port of the API (default: 8000, or a free one if it is in use; 0: any)"
    )
    parser.add_argument("--rate", type=rate, help="changes per second (default: 3)")
    parser.add_argument("--leads", type=leads, help="number of sample leads, at least 3 (default: 200)")
    parser.add_argument("--no-live", dest="live", action="store_false", help="no live view")
    return parser
