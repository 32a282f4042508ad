"""What runs beside the lines is repeated, whatever it raises, except what an operator has to repair."""

from collections.abc import Iterator

import pytest

from projector.errors import Refused, Unavailable
from projector.stop import Stop, repeat


async def run(*errors: Exception) -> int:
    """Returns how often a turn was called that raises these errors first, and then ends the repetition."""
    stop, coming, turns = Stop(), iter(errors), 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        _raise_next(coming, stop)

    await repeat("the test", turn, stop, lambda: 0.0)
    return turns


def _raise_next(coming: Iterator[Exception], stop: Stop) -> None:
    error = next(coming, None)
    if error:
        raise error
    stop.set()


async def test_it_is_retried_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    assert await run(Unavailable("Redis"), TypeError("a value of a record"), Unavailable("Kafka")) == 4
    said = [line.message for line in caplog.records]
    assert said[0] == "the test cannot continue now, and will be retried"
    assert said[1].startswith("the test failed, which is a defect of Leadview")
    assert "a value of a record" not in str([vars(line) for line in caplog.records])


async def test_what_an_operator_has_to_mend_ends_it() -> None:
    with pytest.raises(Refused):
        await run(Refused("the layout is another one"))
