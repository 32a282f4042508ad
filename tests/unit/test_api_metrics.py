"""What a worker of the API concludes from the heartbeats of the projectors, whatever clocks do."""

import msgspec
import pytest

from api.metrics import READ_SECONDS, RENEWED_SECONDS, UNWRITTEN_SECONDS, Counters, Silence, _note, _of_projectors
from runtime.redis.errors import Unavailable
from schemas.heartbeat import APART_MS, SILENT_MS, Freshness

NOW = 1_000_000_000_000
HOUR_MS = 3_600_000


class World:
    """A worker that reads the heartbeats every few seconds, and a Redis to which connections may be renewed."""

    def __init__(self, *, fails: bool = False) -> None:
        self.now = 0.0
        self.renewed = 0
        self._fails = fails
        self.silence = Silence(lambda: self.now, self._renew)

    async def _renew(self) -> None:
        self.renewed += 1
        if self._fails:
            raise Unavailable("there is no other one")

    async def hear(self, seconds: float, **heartbeats: bytes) -> bool:
        """Returns what is concluded in the end, if the same is read for so long."""
        is_problem, until = False, self.now + seconds
        while self.now < until:
            self.now += READ_SECONDS
            is_problem = await self.silence.hear({name.encode(): value for name, value in heartbeats.items()})
        return is_problem


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("heartbeats", [{}, {"dead": b"1 {}"}])
async def test_silence_renews_connections_and_then_is_a_problem(heartbeats: dict[str, bytes], fails: bool) -> None:
    """No times in heartbeats are compared: Redis may be one whose clock stands at any time."""
    world = World(fails=fails)
    assert not await world.hear(RENEWED_SECONDS, **heartbeats)
    assert world.renewed == 0
    assert not await world.hear(2 * READ_SECONDS, **heartbeats)
    assert world.renewed == 1
    assert await world.hear(UNWRITTEN_SECONDS, **heartbeats), "it stays one"
    assert 2 <= world.renewed <= 4
    assert not await world.hear(READ_SECONDS, **heartbeats, another=b"2 {}"), "somebody writes there"
    assert not await world.hear(RENEWED_SECONDS, **heartbeats, another=b"2 {}")


async def test_what_cannot_be_read_is_not_silent() -> None:
    world = World()
    await world.hear(2 * UNWRITTEN_SECONDS)
    world.silence.forget()
    assert not await world.hear(READ_SECONDS)


def stored(role: str, at: int, measured_at: int) -> bytes:
    return b"%d %b" % (at, msgspec.json.encode(Freshness(role, measured_at, measured_at - 5)))


def test_only_projectors_are_heard() -> None:
    assert _of_projectors([b"a", stored("run", 1, 1), b"b", stored("rebuild", 1, 1)]) == {b"a": stored("run", 1, 1)}


@pytest.mark.parametrize(
    ("at", "alive"),
    [
        pytest.param(NOW - SILENT_MS, 0, id="it is silent"),
        pytest.param(NOW - SILENT_MS + 1, 1, id="it lives"),
        pytest.param(NOW + 100, 1, id="the clock was set back a little"),
        pytest.param(NOW + HOUR_MS, 0, id="the clock was set back, and it has stored none since"),
    ],
)
def test_heartbeat_from_later_than_now_is_of_nobody_who_lives(at: int, alive: int) -> None:
    counters = Counters()
    _note(counters, NOW, [stored("run", at, 1)])
    assert counters.projectors == alive


def test_projector_whose_clock_is_ahead_does_not_hide_the_others() -> None:
    counters = Counters()
    _note(counters, NOW, [stored("run", NOW, NOW + HOUR_MS), stored("run", NOW, NOW - 1)])
    assert (counters.measured_at, counters.complete_until) == (NOW - 1, NOW - 6)
    _note(counters, NOW - HOUR_MS, [stored("run", NOW - HOUR_MS, NOW - HOUR_MS + APART_MS)])
    assert counters.measured_at == NOW - HOUR_MS + APART_MS, "the clock was set back"
