"""Each trouble of the table, on real servers: every surface says what its row says and nothing else. After it was
repaired, every surface says that all is well. `make troubles` runs this.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

import pytest

from devstack.apache_kafka import ApacheKafka
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from docs.generate.troubles import ROWS, Row, Servers
from tests.harness.programs import Expected, Value, evaluate
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.troubles.installation import LOGIN, LOOK_SECONDS, RULES, WELL, Installation, Redis, Series, installation
from tests.troubles.troubles import TROUBLES

pytestmark = pytest.mark.troubles

_GROUPS = 3
"""So many installations with one server of Redis share these troubles, if there are as many processes."""
STEP_SECONDS, STEPS = 30, 64
"""So long is each: all is well, the trouble, all is well again. The alerts here look at half an hour at most."""
_LONE_SHARDS = ("--cluster-require-full-coverage", "no")  # as docs/production.md says
_RENEWED_SECONDS = 15.0
"""A greater age is not that of a measurement which is repeated every second: it grows."""
# The alerts that look at days have tests of their own.
_ALERTS = 'ALERTS{alertstate="firing", alertname!~".*Slowly"}'
FIRING, FIRED = f"group by (alertname) ({_ALERTS})", f"group by (alertname) (count_over_time({_ALERTS}[29m]))"


class Stage:
    """The servers, and one installation for all troubles. After one that was not repaired there is a new one: what it
    has left behind must not be seen in the next one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._here: Installation | None = None
        self._kind = ""

    def here(self, servers: str) -> Installation:
        if self._here is None or self._kind != servers:
            self.close()
            self._kind, folder = servers, Path(mkdtemp(dir=self._folder))
            shards = servers == "shards"
            started = ApacheKafka.start(folder / "kafka", 3 if shards else 1, login=LOGIN, acls=True)
            kafka = self._stack.enter_context(started)
            redis: Redis
            match servers:
                case "shards":
                    redis = RedisCluster(folder / "redis", appendonly=True, options=_LONE_SHARDS)
                case "sentinel":
                    redis = RedisSentinel(folder / "redis")
                case _:
                    redis = RedisServer.start(folder / "redis", appendonly=True)
            self._stack.enter_context(redis)
            self._here = self._stack.enter_context(installation(kafka, redis, folder / "leadview"))
        return self._here

    def close(self) -> None:
        self._here = None
        with suppress(Exception):  # servers that stand still do not end as they should
            self._stack.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("troubles"))
    yield stage
    stage.close()


def test_each_row_has_a_trouble() -> None:
    assert TROUBLES.keys() == ROWS.keys()


def in_groups() -> Iterator[Any]:
    """Yields the rows, those of the same servers one after the other. Each group may be run by a process of its own
    (pytest-xdist), with servers of its own: what takes time is mostly to wait.
    """
    for servers in get_args(Servers):
        names = [name for name, row in ROWS.items() if row.servers == servers]
        for number, name in enumerate(names):
            group = f"one-{number * _GROUPS // len(names)}" if servers == "one" else "others"
            yield pytest.param(name, id=name, marks=pytest.mark.xdist_group(group))


@pytest.mark.parametrize("name", [*in_groups()])
def test_every_surface_says_it(stage: Stage, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    here = stage.here(row.servers)
    try:
        here.well = here.well or scraped(here, tmp_path, [], WELL)
        with contextmanager(TROUBLES[name])(here):
            here.wait_for(row)
            during = scraped(here, tmp_path, [here.well], row)
        here.wait_for(WELL)
        here.well = scraped(here, tmp_path, [here.well, during], WELL)
    except BaseException:
        stage.close()
        raise


def scraped(here: Installation, folder: Path, earlier: Sequence[Series], row: Row) -> Series:
    """Returns what is scraped as soon as it makes these alerts fire, and no others, if it lasts for half an hour after
    half an hour of each of the earlier ones. Once all is well, none fires at the end.
    """
    firing = [{"alertname": f"Leadview{alert}"} for alert in sorted(row.alerts)]
    found: Series = {}
    why = ""

    def fire() -> bool:
        nonlocal found, why
        found = here.scrape()
        is_late = any(value > _RENEWED_SECONDS for name, value in found.items() if "_age_seconds" in name)
        if is_late != ("Stale" in row.alerts):
            why = f"the ages are not those of {row.alerts}: {found}"
            return False  # promtool takes a second of a core
        values: dict[str, list[Value]] = {name: [] for series in (*earlier, found) for name in series}
        for series in (*earlier, found):
            for name in values:
                values[name] += lasting(name, series.get(name, "gone"))
        end = (len(earlier) + 1) * STEPS * STEP_SECONDS // 60 - 1
        expected: list[Expected] = [(end, FIRED if row.alerts else FIRING, firing)]
        try:
            evaluate(folder, RULES, f"{STEP_SECONDS}s", values, expected)
        except AssertionError as error:
            why = str(error)
            return False
        return True

    wait_until(fire, lambda: f"these alerts fire, and no others: {why}", 2 * PATIENCE_SECONDS, LOOK_SECONDS)
    return found


def lasting(name: str, value: Value) -> list[Value]:
    """Returns the values of a series if what was scraped lasts."""
    grows = "_age_seconds" in name and isinstance(value, float) and value > _RENEWED_SECONDS
    return [value + STEP_SECONDS * step if grows and isinstance(value, float) else value for step in range(STEPS)]
