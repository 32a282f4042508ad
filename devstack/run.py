"""Runs all of Leadview on this machine, with sample data that keeps changing: what `make run` calls."""

import argparse
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from devstack.child import StackFailed
from devstack.greeting import greeting
from devstack.interrupt import uninterrupted
from devstack.leash import Scratch
from devstack.live_view import LiveView
from devstack.ports import claim, free_port
from devstack.publish import SANDBOX
from devstack.sample import Crm, SampleCrm
from devstack.sandbox import CHANGES_PER_SECOND, PERSONAS, UNSTEADY_ORGANIZATION, Sandbox
from devstack.stack import Stack
from runtime.metrics_port import listen, url
from runtime.redis.errors import TooOld
from runtime.redis.version import check_version
from schemas.redis_url import redis_url
from schemas.settings import PREFIX, ApiSettings, ProjectorSettings, SettingsError, load

DESCRIPTION = """Runs Leadview with sample data that keeps changing, on an embedded Valkey and Kafka: nothing has to be
installed or set up. Prints a base URL, an API key and curl commands. Ctrl-C ends everything and removes all files."""

EPILOG = """The projector and the API use the settings in your environment (LEADVIEW_…, docs/settings.md), except the
addresses of Redis and Kafka: only --redis-url and --kafka set those, so that no sample data is written to your servers
by accident. With make: make run ARGS="--rate 50 --leads 2000" """

EMBEDDED_KAFKA = (
    "This Kafka is embedded: clients of librdkafka, kafkajs and aiokafka can publish to it, those in Java and Go and "
    "kafka-python cannot. It refuses transactions, and creates each topic that is published to, also one whose name is "
    "wrong. For a Kafka without these limits, add --apache-kafka."
)

N = TypeVar("N", int, float)

_KNOWN_SEED = 1
_CHECK_SECONDS = 0.2
_CONSOLE_PORT = 8001
# If the user's servers already hold many records, the API serves the first generation only after reading all of them.
_READY_SECONDS, _READY_SECONDS_ON_REAL_SERVERS = 60.0, 900.0


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


def _number(name: str, kind: Callable[[str], N], least: float, most: float) -> Callable[[str], N]:
    """Returns a parser of numbers within these bounds, for argparse: its errors call them by this name."""

    def parse(text: str) -> N:
        value = kind(text)
        if not least <= value <= most:  # also rejects nan
            raise ValueError
        return value

    parse.__name__ = name
    return parse


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
        "--port",
        type=_number("port", int, 0, 65_535),
        help="port of the API (default: 8000, or a free one if it is in use; 0: any)",
    )
    parser.add_argument("--rate", type=_number("rate", float, 0, 10_000), help="changes per second (default: 3)")
    parser.add_argument(
        "--leads", type=_number("leads", int, 3, 10_000_000), help="number of sample leads, at least 3 (default: 200)"
    )
    parser.add_argument("--no-live", dest="live", action="store_false", help="no live view")
    return parser


def run(started: float) -> int:
    """Run until Interrupted is raised. Returns the exit status: 1 after a failure, 2 for invalid settings.

    `started` is the start of the process on the monotonic clock.
    """
    arguments = parse()
    with uninterrupted():
        scratch = Scratch()
    with scratch:
        try:
            load(ProjectorSettings, os.environ)  # report invalid settings of the projector before anything starts
            settings = load(ApiSettings, os.environ)
            _run(arguments, settings, scratch, started)
        except (SettingsError, TooOld) as error:
            print(error, file=sys.stderr)
            return 2
        except (StackFailed, TimeoutError) as error:
            print(f"\n{error}", file=sys.stderr)
            if any(scratch.path.rglob("*.log")):
                scratch.keep()
                print(f"\nAll logs: {scratch.path}", file=sys.stderr)
            return 1
        except BrokenPipeError:  # `make run | head`: the reader has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(arguments: Arguments, settings: ApiSettings, scratch: Scratch, started: float) -> None:
    addresses = {"redis_url": arguments.redis_url, "kafka": arguments.kafka}
    for note in unused(os.environ, **addresses):
        print(note)
    port = _port(arguments.port, settings)
    variables = of_stack(os.environ, **addresses, port=port, scratch=scratch.path)
    if arguments.redis_url:
        reach_redis(load(ApiSettings, variables))
    crm = _sample_crm(arguments, settings)
    with Stack(variables, scratch.path, crm, _console_port(arguments.port)) as stack:
        stack.start(
            CHANGES_PER_SECOND if arguments.sandbox else arguments.rate,
            apache_kafka=arguments.apache_kafka,
            unsteady_organization=UNSTEADY_ORGANIZATION if arguments.sandbox else None,
        )
        etag = stack.wait_until_readable(
            _READY_SECONDS_ON_REAL_SERVERS if arguments.on_real_servers else _READY_SECONDS
        )
        print(f"Leadview is ready, {time.monotonic() - started:.1f} s after the start. Ctrl-C ends it.\n")
        limits = f"{settings.key_rate_limit} per key, {settings.organization_rate_limit} per organization"
        settings_, hidden = stack.for_commands
        text = greeting(
            stack.base_url,
            crm.tenants,
            limits=limits,
            etag=etag,
            addresses=stack.addresses,
            variables=settings_,
            hidden=hidden,
            personas=PERSONAS if arguments.sandbox else (),
            notes=() if arguments.kafka or arguments.apache_kafka else (EMBEDDED_KAFKA,),
        )
        print(text, end="\n\n", flush=True)
        _watch(stack, live=arguments.live)


def _watch(stack: Stack, *, live: bool) -> None:
    """Show figures until a signal. Raises StackFailed as soon as a process ends that should run."""
    view = LiveView(stack.processes["projector"].metrics_port, stack.processes["api"].metrics_port)
    while True:
        stack.check()
        if live:
            view.show()
        time.sleep(_CHECK_SECONDS)


def _sample_crm(arguments: Arguments, settings: ApiSettings) -> Crm:
    """Returns sample data; with the same keys every time if only this machine can use them and nothing is kept."""
    if arguments.sandbox:
        return Sandbox()
    private = settings.api_host in ("127.0.0.1", "::1", "localhost") and not arguments.on_real_servers
    seed = _KNOWN_SEED if private else secrets.randbits(64)
    return SampleCrm(seed, contacts=max(3, arguments.leads * 3 // 5), leads=arguments.leads)


def _port(wanted: int | None, settings: ApiSettings) -> int:
    """Returns the given port; otherwise that of the settings, or a free one if it is in use. Raises StackFailed."""
    port = settings.api_port if wanted is None else wanted
    if port == 0:
        return free_port()
    if _is_ours(settings.api_host, port):
        return port
    if wanted is not None:
        raise StackFailed(f"Port {port} of {settings.api_host} is not available. Choose another one, or use --port 0.")
    chosen = free_port()
    print(
        f"Port {port} is in use, so the API listens on {chosen}. For a reference of this API: "
        f'make docs ARGS="--server {url(settings.api_host, chosen)}"'
    )
    return chosen


def _console_port(api_port: int | None) -> int:
    """Returns the usual port of the console, or a free one if it is in use, or if the API has any port."""
    return _CONSOLE_PORT if api_port != 0 and _is_ours("127.0.0.1", _CONSOLE_PORT) else free_port()


def _is_ours(host: str, port: int) -> bool:
    """Returns whether a program can listen there in a moment. Another `make run` that starts has claimed its ports."""
    if not claim(port):
        return False
    try:
        listen(host, port).close()
    except OSError:
        return False
    return True


# These settings apply only to the user's own servers: embedded servers have no passwords and no TLS.
_REDIS_ACCESS = ("REDIS_USERNAME", "REDIS_PASSWORD", "REDIS_SENTINEL_", "REDIS_TLS_")
_KAFKA_ACCESS = ("KAFKA_SECURITY_", "KAFKA_SSL_", "KAFKA_SASL_", "KAFKA_OAUTH_")


def of_stack(
    environment: Mapping[str, str], *, redis_url: str | None, kafka: str | None, port: int, scratch: Path
) -> dict[str, str]:
    """Returns the variables of both processes. `redis_url` and `kafka` are the user's own servers, or None."""
    dropped = ("REDIS_URL_FILE", *(() if redis_url else _REDIS_ACCESS), *(() if kafka else _KAFKA_ACCESS))
    prefixes = tuple(PREFIX + name for name in dropped)
    kept = {name: value for name, value in environment.items() if not name.startswith(prefixes)}
    return kept | {
        f"{PREFIX}REDIS_URL": redis_url or "",
        f"{PREFIX}KAFKA_BOOTSTRAP_SERVERS": kafka or "",
        f"{PREFIX}API_PORT": str(port),
        f"{PREFIX}METRICS_HOST": "127.0.0.1",
        "TMPDIR": str(scratch),  # what killed processes leave there is removed with the scratch directory
    }


def unused(environment: Mapping[str, str], *, redis_url: str | None, kafka: str | None) -> Iterator[str]:
    """Yields a note for each server address that is set in the environment but not used."""
    for name, option, chosen in (
        ("REDIS_URL", "--redis-url", redis_url),
        ("REDIS_URL_FILE", "--redis-url", redis_url),
        ("KAFKA_BOOTSTRAP_SERVERS", "--kafka", kafka),
    ):
        if environment.get(PREFIX + name) and not chosen:
            yield f"{PREFIX}{name} is set, but an embedded server is used. To use your own server, add {option}."


_REACH_SECONDS = 5.0


def reach_redis(settings: ApiSettings) -> None:
    """Raises StackFailed if no host of the URL accepts a connection, and TooOld. The projector and the API check the
    login.
    """
    failures = []
    for host, port in redis_url(settings.redis_url).hosts:
        try:
            socket.create_connection((host, port), _REACH_SECONDS).close()
        except OSError as error:
            failures.append(f"Redis at {host}:{port} cannot be reached: {error.strerror or error}")
        else:
            check_version(settings)
            return
    raise StackFailed("; ".join(failures))
