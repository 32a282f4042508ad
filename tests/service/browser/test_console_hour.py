"""The page of the console draws every picture that it gets, so it says what changes within two seconds, and an hour of
pictures grows no memory."""

import sys
from pathlib import Path

import pytest

from projector.console.feed import EVERY_SECONDS, HISTORY_SECONDS, pause
from tests.harness.chromium import open_page
from tests.harness.console import REPEATS, fed_console, picture_of, show

pytestmark = pytest.mark.browser

_HOUR = 3600
_MOST_GROWTH = 300_000
"""Bytes: a tenth of a kilobyte for each picture after the window is full."""


def test_every_picture_is_drawn(tmp_path: Path) -> None:
    """So the page says what `status --json` says within two seconds, which is shown without a clock: the console takes
    a picture at least once a second as long as Redis is quick, and a page draws each one that it gets.
    """
    assert EVERY_SECONDS <= 1.0
    assert pause(0.01, 0.3) <= 0.7
    with fed_console() as console, open_page(tmp_path) as page:
        page.open(console.url)
        for second in (1, 2, 31, 40):
            show(page, console, picture_of(second))
            assert page.text("#verdict-text")[2:] == picture_of(second).status.verdict


def test_an_hour_open_grows_no_memory(tmp_path: Path) -> None:
    """3,600 pictures through the stream of events, each drawn before the next one is sent. What the page holds is
    measured when its window of 15 minutes is full, and at the end, in seconds that show the same.
    """
    assert HISTORY_SECONDS % REPEATS == _HOUR % REPEATS == 0
    with fed_console() as console, open_page(tmp_path) as page:
        page.open(console.url)
        for second in range(HISTORY_SECONDS + REPEATS + 1):
            show(page, console, picture_of(second))
        full = page.held()
        for second in range(HISTORY_SECONDS + REPEATS + 1, _HOUR + 1):
            show(page, console, picture_of(second))
        ended = page.held()
        sys.stdout.write(f"\n{full} when the window was full, {ended} after an hour\n")
        assert ended.heap - full.heap < _MOST_GROWTH
        assert ended.nodes <= full.nodes + REPEATS, "no node is kept"
        assert ended.listeners == full.listeners
        assert page.complaints == []
