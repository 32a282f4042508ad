"""A Redis that is too old. None is to be had any more, so a server says that it is one, and nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from devstack.programs import ROOT, environment
from runtime.redis.version import Version
from tests.harness.waiting import PATIENCE_SECONDS

INFO = b"# Server\r\nredis_version:6.0.16\r\nserver_time_usec:1\r\n"


class Old(StreamRequestHandler):
    def handle(self) -> None:
        """Answers each command, which is an array of texts."""
        while head := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
            self.wfile.write(b"$%d\r\n%s\r\n" % (len(INFO), INFO) if words[0] == b"INFO" else b"+OK\r\n")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingTCPServer(("127.0.0.1", 0), Old) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()


@pytest.mark.parametrize(
    "words",
    [
        ("leadview", "run"),
        ("leadview", "run", "--processes", "2"),
        ("leadview", "api"),
        ("leadview", "console", "--port", "8999"),
        ("leadview", "status"),
        ("leadview", "rebuild"),
        ("devstack", "--no-live", "--port", "0", "--redis-url", "URL"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_each_program_says_so_at_its_start(url: str, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", *(url if word == "URL" else word for word in words)]
    settings = environment() if words[0] == "devstack" else environment(redis_url=url)
    done = subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    sentence = "Redis 6.0.16 is too old: Leadview needs Redis 6.2 or later, or Valkey. Upgrade Redis.\n"
    assert (done.returncode, done.stderr) == (2, sentence), done


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ({"redis_version": "8.0.2"}, "Redis 8.0.2"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, "Valkey 9.1.2"),
        ({"redis_version": "255.255.255"}, "Redis 255.255.255"),
        ({}, "Redis ?"),
    ],
)
def test_server_that_is_new_enough_has_its_own_name(info: dict[str, str], name: str) -> None:
    Version.of(info).check()
    assert str(Version.of(info)) == name
