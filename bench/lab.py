"""The conditions of a benchmark: its directory, how long it measures, and what could not be measured here."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from msgspec import Struct, field
from redis import Redis

from bench.cores import Cores, pinned
from devstack.redis_server import RedisServer

_QUICK_SECONDS = 0.4


class Lab(Struct):
    """`directory` is temporary. A quick run shows that everything works; its figures mean little."""

    directory: Path
    quick: bool
    left_out: dict[str, str] = field(default_factory=dict)
    """The reason for each subject or tool that is missing."""

    def seconds(self, full: float) -> float:
        """How long to measure: `full` seconds, and much less in a quick run."""
        return _QUICK_SECONDS if self.quick else full

    def leave_out(self, what: str, why: str) -> None:
        self.left_out[what] = why

    def redis(self, stack: ExitStack, name: str, cores: Cores) -> RedisServer:
        """Start a new, empty Redis on the cores for Redis. `stack` stops it."""
        with pinned(cores.redis):
            return stack.enter_context(RedisServer.start(Path(mkdtemp(dir=self.directory, prefix=name))))


def client(server: RedisServer) -> Redis:
    """A client whose replies are bytes. The caller closes it."""
    return Redis(port=server.port)
