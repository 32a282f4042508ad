"""Where a benchmark runs: its directory, its cores, its duration, and what it had to leave out."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from msgspec import Struct, field
from redis import Redis

from bench.cores import Cores, pinned
from devstack.redis_server import RedisServer

_QUICK_SECONDS = 0.4


class Lab(Struct):
    directory: Path
    quick: bool
    left_out: dict[str, str] = field(default_factory=dict)
    """Why, by what."""

    def seconds(self, full: float) -> float:
        """How long to measure, where `full` seconds are right and nobody is in a hurry."""
        return _QUICK_SECONDS if self.quick else full

    def leave_out(self, what: str, why: str) -> None:
        self.left_out[what] = why

    def redis(self, stack: ExitStack, name: str, cores: Cores) -> RedisServer:
        """A new, empty Redis on the core that is Redis's."""
        with pinned(cores.redis):
            return stack.enter_context(RedisServer.start(Path(mkdtemp(dir=self.directory, prefix=name))))


def client(server: RedisServer) -> Redis:
    """A client that answers bytes; the caller closes it."""
    return Redis(port=server.port)
