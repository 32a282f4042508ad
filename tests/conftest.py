"""What holds for every test. Servers are in `tests/service`; `tests/unit` needs none."""

import inspect
from collections.abc import Generator, Iterator

import pytest

from tests.leftovers import no_swallowed_errors, without_leftover_tasks


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
