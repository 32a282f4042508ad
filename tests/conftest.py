"""What holds for every test. Servers are in `tests/service`; `tests/unit` needs none."""

import inspect
import logging
import os
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

try:
    from projector import mapping  # noqa: F401
except (AttributeError, TypeError) as error:
    raise pytest.UsageError(
        f"The program cannot be imported: {error}. These have to agree (docs/changing.md): schemas/events.py, "
        "schemas/documents.py, schemas/examples.py, schemas/resources.py, projector/mapping.py."
    ) from error

from devstack.leash import Scratch
from tests.harness.leftovers import no_swallowed_errors, without_leftover_tasks
from tests.harness.services import OLDEST_REDIS

# Programs that tests start use it, too.
if OLDEST_REDIS.is_file():
    os.environ.setdefault("LEADVIEW_TEST_REDIS_SERVER", str(OLDEST_REDIS))

# Services and slow machines make examples slow. In CI the same ones run each time; elsewhere a failure prints its own.
settings.register_profile(
    "leadview",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
)
settings.load_profile("leadview")


_SCRATCH, _FAILED = pytest.StashKey[Scratch](), pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """What programs leave behind that tests kill, in a temporary directory, is in one that goes with the tests."""
    if not hasattr(config, "workerinput"):  # the processes of pytest-xdist inherit it
        config.stash[_SCRATCH] = Scratch()
        config.stash[_SCRATCH].path.chmod(0o711)  # as root, PostgreSQL runs as another user, who has to come through
        os.environ["TMPDIR"] = tempfile.tempdir = str(config.stash[_SCRATCH].path)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if scratch := config.stash.get(_SCRATCH, None):
        with scratch:
            if _FAILED in config.stash:
                scratch.keep()
                print(f"All files of these tests: {scratch.path}")  # noqa: T201 - so that somebody looks there


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.config.stash[_FAILED] = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of whole installations come first, then others that take seconds, so that none of them is what all
    processes wait for in the end."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("apache", "heavy")])


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Leadview runs on asyncio alone. One event loop serves the session, so fixtures may last that long."""
    return "asyncio"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = without_leftover_tasks(pyfuncitem.obj)
    return (yield)


@pytest.fixture(autouse=True)
def _no_swallowed_errors() -> Iterator[None]:
    with no_swallowed_errors():
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Fails if a test leaves logging switched off or at another level: later tests would not see what is logged."""
    before = logging.root.manager.disable, logging.root.level
    yield
    after = logging.root.manager.disable, logging.root.level
    logging.root.manager.disable, logging.root.level = before
    assert after == before, f"the test changed logging from {before} to {after}"
