"""The pure parts of the console: what it understands, what it says, and who may ask."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from operate.api_figures import SECONDS, Figures, RecentFigures, counts, figures
from operate.console import pages
from operate.console.feed import SHARE, pause
from operate.console.picture import Totals, picture, totals
from operate.console.server import checked_tokens
from projector.errors import Refused
from projector.health.observe import Observation
from runtime.metrics_port import url
from schemas.settings import ApiSettings
from tests.harness import control
from tests.harness.console import observation_of

METRICS = """
leadview_api_requests_total{{route="r",status="200"}} {ok}
leadview_api_requests_total{{route="r",status="401"}} {refused}
leadview_api_request_seconds_bucket{{le="0.01",route="r"}} {fast}
leadview_api_request_seconds_bucket{{le="0.1",route="r"}} {all}
leadview_api_request_seconds_bucket{{le="+Inf",route="r"}} {all}
leadview_api_ready_workers 2
leadview_api_workers 3
leadview_api_problems{{problem="not_written"}} 1
leadview_api_waiting 3
"""


def taken(at: float, ok: int, refused: int, fast: int, all: int) -> Figures:  # noqa: A002
    return counts([METRICS.format(ok=ok, refused=refused, fast=fast, all=all)] * 2, at)


def test_figures_of_two_metrics_ports_are_summed() -> None:
    found = figures(taken(10, 100, 0, 100, 100), taken(12, 150, 10, 150, 160))
    assert (found.answers, found.requests) == ({"200": 50.0, "401": 10.0}, 60.0)
    assert (found.ready_workers, found.waiting) == (4, 6)
    assert found.p50 == pytest.approx(6.0)
    assert 10 < (found.p99 or 0) <= 100
    assert (found.workers, found.reported, found.unavailable) == (6, {"not_written": 2}, 0)


def test_503_counts_for_documents_alone() -> None:
    """`/readyz` of a worker that is about to end answers it as well."""
    text = 'leadview_api_requests_total{{route="{}",status="503"}} {}\n'
    before, after = (counts([text.format("lead", at) + text.format("readyz", 9 * at)], at) for at in (1, 3))
    found = figures(before, after)
    assert (found.unavailable, found.answers, found.workers) == (1.0, {"503": 10.0}, None)


@pytest.mark.parametrize(
    ("rebuilding", "causes", "fills", "expected"),
    [
        pytest.param(1, (), False, True, id="each 503 was for that"),
        pytest.param(0, (), False, False, id="no 503 was"),
        pytest.param(1, ("not complete",), True, True, id="nor is a worker ready"),
        pytest.param(1, ("WRONGPASS",), False, False, id="a worker is not ready for another reason"),
    ],
)
def test_api_that_only_waits_until_redis_is_filled_says_so(
    rebuilding: int, causes: tuple[str, ...], fills: bool, expected: bool
) -> None:
    text = (
        'leadview_api_requests_total{{route="lead",status="503"}} {}\n'
        'leadview_api_redis_errors_total{{reason="rebuilding"}} {}\n'
    )
    before, after = (counts([text.format(at, at * rebuilding)], at) for at in (1, 3))
    assert figures(before, after, causes, filling=fills).filling is expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(taken(10, 100, 5, 9, 9), taken(12, 3, 5, 1, 1), id="restarted: no rate is negative"),
        pytest.param(taken(10, 5, 5, 9, 9), taken(12, 5, 5, 9, 9), id="no request"),
    ],
)
def test_without_requests_there_is_no_latency(before: Figures, after: Figures) -> None:
    found = figures(before, after)
    assert (found.requests, found.p50, found.p99) == (0.0, None, None)


@pytest.mark.parametrize("asked", [0.0, 0.02, 0.5, 2.0])
def test_redis_is_asked_for_a_twentieth_of_the_time_at_most(asked: float) -> None:
    took = asked + 0.1
    assert asked / (took + pause(asked, took)) <= SHARE


def arguments(**given: object) -> argparse.Namespace:
    usual = {"host": "127.0.0.1", "port": 8001, "token_file": None}
    return argparse.Namespace(**{**usual, "show_documents": False, **given})


def test_console_listens_on_this_machine_alone_by_default() -> None:
    assert checked_tokens(arguments(), ApiSettings()) == {}
    assert checked_tokens(arguments(host="::1"), ApiSettings()) == {}
    assert url("::1", 8001) == "http://[::1]:8001"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"host": "0.0.0.0"}, "needs --token-file", id="open to strangers"),  # noqa: S104
        pytest.param({"host": "console.example.org"}, "needs --token-file", id="a name"),
        pytest.param({"port": 8000}, "is that of the API", id="the port of the API"),
        pytest.param({"token_file": "ada secret"}, "write <name>:<token>", id="no colon"),
        pytest.param({"token_file": "ada:secret"}, "at least 32 characters", id="short"),
        pytest.param({"token_file": "# nobody\n"}, "has no token", id="nobody"),
    ],
)
def test_wrong_option_of_the_console_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    if text := given.get("token_file"):
        (tmp_path / "tokens").write_text(text)
        given["token_file"] = tmp_path / "tokens"
    with pytest.raises(Refused, match=said) as refused:
        checked_tokens(arguments(**given), ApiSettings())
    assert "secret" not in str(refused.value), "a token is never quoted"


def test_token_file_gives_each_person_a_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who may look\nada:{'a' * 32}\n\ngrace@night:{'g' * 40}\n")
    found = checked_tokens(arguments(token_file=path, host="0.0.0.0"), ApiSettings())  # noqa: S104
    assert found == {"a" * 32: "ada", "g" * 40: "grace@night"}


def test_pages_of_the_documentation_have_their_anchors() -> None:
    html = pages.page("runbook.md") or ""
    assert [mark for mark in ('<h3 id="redis_full">', '<h2 id="leadviewnoprojector">') if mark not in html] == []
    # The marks of generated parts are not for readers.
    assert [mark for mark in ("style=", "&lt;!--") if mark in html] == []
    assert [pages.page(name) for name in ("../README.md", "no-such-page.md")] == [None, None]
    assert "<script>" not in pages.render("# a\n\n<script>alert(1)</script>", "a.md")


def test_rates_are_of_the_last_seconds() -> None:
    readings: RecentFigures[int] = RecentFigures()
    for second in range(20):
        readings.add(second, second)
    assert readings.oldest == (19 - SECONDS, 15)
    readings.add(100, 100)
    assert readings.oldest == (19, 19), "there is always one to compare with"


def test_what_is_applied_is_zero_soon_after_a_stop() -> None:
    def observation(second: int, applied: int) -> Observation:
        shown = observation_of(0)
        assert shown.redis
        assert shown.kafka
        record = control.record_of(control.state_of(), dict.fromkeys(shown.kafka.ranges, applied))
        return replace(shown, redis=replace(shown.redis, record=record), at=shown.at + second * 1000)

    readings: RecentFigures[Totals] = RecentFigures()
    applied = []
    for second in range(12):
        found = observation(second, min(second, 5) * 10)
        applied.append([topic.applied for topic in picture(found, readings.oldest, None, []).topics])
        sums = totals(found)
        assert sums
        readings.add(found.at / 1000, sums)
    assert applied[5] == [30.0] * 4
    assert applied[5 + int(SECONDS) + 1] == [0.0] * 4
