"""The checker of chaos runs finds what is planted: each kind of anomaly, and nothing in what is right. A run that could
not be finished has a verdict as well.
"""

from collections import Counter
from collections.abc import Callable
from math import inf
from unittest.mock import Mock

import pytest

from projector.reference import Entity
from schemas import resources
from tests.chaos.checker import Checker
from tests.chaos.core import ORGANIZATIONS
from tests.chaos.history import Beat, CaughtUp, History, Loss, Outage, Response, Window
from tests.chaos.run import Report, judging, run
from tests.harness.crm import uuid

ORGANIZATION = ORGANIZATIONS[0]
OWNER = (resources.ORGANIZATION, ORGANIZATION, ORGANIZATION)
KEY = (resources.API_KEY, ORGANIZATION, uuid(1))
LEAD = (resources.LEAD, ORGANIZATION, uuid(2))
CONTACT = (resources.CONTACT, ORGANIZATION, uuid(3))

Plant = Callable[[History], None]


def history() -> History:
    """An organization with a key; a lead v1, v2, deleted, v4, and a contact v1, v2, a second apart from 1 on."""
    found = History()
    rows: dict[Entity, list[str | None]] = {
        OWNER: ["on"],
        KEY: ["active"],
        LEAD: ["v1", "v2", None, "v4"],
        CONTACT: ["v1", "v2"],
    }
    for register, values in rows.items():
        for second, value in enumerate(values, start=1):
            found.published.add(register, value, float(second), second + 0.1)
    return found


def answer(status: int, at: float, shown: str = "", **fields: object) -> Response:
    """One that took a tenth of a second."""
    given = {"key": KEY, "wanted": LEAD, "organization_id": ORGANIZATION, "body": b"x"} | fields
    return Response(at, at + 0.1, status=status, shown=shown, **given)  # type: ignore[arg-type]


def waited(status: int, at: float, seconds: float, shown: str = "", **fields: object) -> Response:
    """One that should wait for two seconds until the lead has another tag than `v1`, and took so long."""
    given = {"wait": 2, "other": "v1", "tag": shown, "honoured": True, "body": shown.encode()} | fields
    ended = answer(status, at, shown, **given)
    ended.answered_at = at + seconds
    return ended


def with_answers(*answers: Response) -> Plant:
    return lambda found: found.answers.extend(answers)


def summary(at: float, shown: str | None, lead: str = "v1") -> Response:
    return answer(200, at, lead, contact_id=CONTACT[2], contact_shown=shown)


def access(*changes: tuple[float, str | None], of: tuple[resources.Kind, str, str] = KEY) -> Plant:
    def plant(found: History) -> None:
        for at, value in changes:
            found.published.add(of, value, at, at + 0.1)

    return plant


def together(*plants: Plant) -> Plant:
    def plant(found: History) -> None:
        for one in plants:
            one(found)

    return plant


def caught_up(up_to: float, at: float) -> Plant:
    return lambda found: found.caught_up.append(CaughtUp(up_to, at))


def loss(
    began: float, ended: float, back_to: float, dark: tuple[float, float] = (inf, -inf), *organizations: str
) -> Plant:
    return lambda found: found.losses.append(Loss(began, ended, back_to, dark, frozenset(organizations) or None))


def named(began: float, ended: float) -> Plant:
    """A break that `status` names in this time."""
    return lambda found: found.losses.append(Loss(began, ended, -inf, named=True))


def outage(began: float, ended: float, *organizations: str) -> Plant:
    return lambda found: found.outages.append(Outage(frozenset(organizations), began, ended))


def beats(began: float, ended: float, behind: Callable[[float], int | None] = lambda _: 0, each: float = 0.25) -> Plant:
    """Probes at equal distances."""
    times = [began + number * each for number in range(int((ended - began) / each) + 1)]
    return lambda found: found.beats.extend(Beat(at, behind(at)) for at in times)


def unavailable(began: float, ended: float, process: int = 0) -> Plant:
    """503 once a second, after a fault that has ended, and from which nothing has recovered."""
    fault = Window("a fault", frozenset({503}), began - 2, began - 1, ended)
    seconds = [began + second for second in range(int(ended - began) + 1)]
    return together(
        lambda found: found.windows.append(fault), with_answers(*(answer(503, at, process=process) for at in seconds))
    )


def window(began: float, recovered: float, *allows: int) -> Plant:
    return lambda found: found.windows.append(Window("a fault", frozenset(allows), began, recovered, recovered))


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        pytest.param(with_answers(answer(200, 1, "v1"), answer(200, 2, "v2"), answer(404, 3)), [], id="as published"),
        pytest.param(with_answers(answer(200, 2.5, "v1"), answer(200, 9, "v1")), [], id="behind, and not back"),
        pytest.param(
            with_answers(answer(200, 3, "v2", as_of=2.5), answer(404, 3.5, as_of=3.2)), [], id="as of, and true"
        ),
        pytest.param(with_answers(answer(200, 5, "v4", as_of=3.5)), [], id="as of, and newer"),
        pytest.param(with_answers(waited(200, 1.5, 0.7, "v2"), waited(304, 9, 2, "v4", other="v4")), [], id="waited"),
        pytest.param(with_answers(waited(404, 2.5, 0.6), waited(404, 9, 2, other="")), [], id="waited, and gone"),
        pytest.param(with_answers(waited(304, 1.5, 0.1, "v1", honoured=False)), [], id="no place to wait"),
        pytest.param(
            together(access((5, "revoked")), with_answers(waited(401, 4.5, 1.5))),
            [],
            id="a wait that a revoked key ends",
        ),
        pytest.param(
            together(window(1, 9), with_answers(waited(304, 1.5, 1, "v1"))),
            [],
            id="a wait that ends with its worker",
        ),
        pytest.param(
            together(window(1, 9), access((5, "revoked")), with_answers(waited(401, 4.5, 3))),
            [],
            id="a wait that ends late while a fault is at work",
        ),
        pytest.param(with_answers(answer(200, 5, "v4", as_of=5.1)), [], id="as of this moment"),
        pytest.param(
            together(named(5, 8), with_answers(answer(200, 4.5, "v4"), answer(404, 6, as_of=5.9))),
            [],
            id="anything that was published while status names a break",
        ),
        pytest.param(
            together(named(5, 8), caught_up(5, 5.5), with_answers(answer(404, 6))),
            [],
            id="what comes back while status names a break",
        ),
        pytest.param(
            with_answers(answer(200, 2.5, "v2"), answer(404, 3), answer(200, 4, "v4")), [], id="created again"
        ),
        pytest.param(
            with_answers(answer(200, 2.5, "v2"), answer(200, 2.45, "v1")), [], id="at the same time, any order"
        ),
        pytest.param(
            together(with_answers(answer(200, 2.5, "v2"), answer(200, 6, "v1")), loss(5, 5.5, 2)),
            [],
            id="Redis went back",
        ),
        pytest.param(with_answers(answer(200, 2, "v1"), answer(304, 2.5, "v1")), [], id="304 of what it is still"),
        pytest.param(together(with_answers(answer(503, 5)), window(4, 6, 503)), [], id="503 in a fault"),
        pytest.param(with_answers(summary(3, "v1"), summary(4, "v2"), summary(5, "v2")), [], id="a contact in a lead"),
        pytest.param(
            together(access((5, "revoked")), with_answers(answer(200, 5.5, "v4"), answer(401, 5.6))), [], id="revoked"
        ),
        pytest.param(
            together(
                access((5, "revoked"), (6, "active")),
                caught_up(6.5, 6.6),
                with_answers(answer(401, 5.5), answer(401, 6.9)),
            ),
            [],
            id="refused from memory",
        ),
        pytest.param(
            together(access((5, "revoked")), with_answers(answer(200, 8, "v4")), window(4, 9)),
            [],
            id="revoked in a fault",
        ),
        pytest.param(together(access((5, "off"), of=OWNER), with_answers(answer(403, 5.5))), [], id="access off"),
        pytest.param(
            together(
                access((5, None), (6, "on"), of=OWNER),
                caught_up(7, 7.5),
                with_answers(
                    answer(200, 4.5, "v4"),
                    answer(401, 5.5),
                    answer(503, 6.5),
                    answer(200, 7, "v4"),
                    answer(200, 8, "v4"),
                ),
            ),
            [],
            id="an organization created again is replayed",
        ),
        pytest.param(
            together(outage(5, 6, ORGANIZATION), with_answers(answer(503, 5.5))), [], id="503 while its shard is filled"
        ),
        pytest.param(
            together(
                with_answers(answer(200, 2.5, "v2"), answer(200, 6, "v1")), loss(5, 5.5, 2, (inf, -inf), ORGANIZATION)
            ),
            [],
            id="its shard went back",
        ),
        pytest.param(
            together(
                loss(5, 8, -inf, (5, 8)),
                window(5, 9, 503),
                with_answers(answer(200, 4.95, "v2"), answer(503, 7), answer(200, 8.5, "v4")),
            ),
            [],
            id="Redis was emptied",
        ),
        pytest.param(
            together(
                with_answers(
                    answer(200, 2.5, "v2"), answer(200, 5.1, "v2"), answer(200, 5.3, "v1"), answer(200, 5.5, "v2")
                ),
                loss(5, 6, 2),
            ),
            [],
            id="while Redis goes back, what was before and what is left",
        ),
        pytest.param(
            together(with_answers(answer(200, 4.5, "v4"), answer(200, 4.95, "v1")), loss(5, 5.5, 2)),
            [],
            id="asked before Redis went back, answered afterwards",
        ),
        pytest.param(
            together(
                access((5, "revoked"), (6, "active")),
                caught_up(5.2, 5.3),
                with_answers(answer(200, 6.3, "v4", process=1), answer(401, 6.6, process=2)),
            ),
            [],
            id="refused from memory after another process served it",
        ),
        pytest.param(
            together(unavailable(10, 60), beats(8, 61, lambda at: int(1000 - at))),
            [],
            id="503 while records are applied",
        ),
        pytest.param(
            together(unavailable(10, 60), beats(8, 61, lambda _: None)), [], id="503 while no projector lives"
        ),
        pytest.param(together(unavailable(10, 60), beats(8, 61, each=0.75)), [], id="503 while Redis or Kafka is slow"),
        pytest.param(
            together(unavailable(10, 60), beats(8, 61), window(25, 26), window(45, 46)),
            [],
            id="503 between other faults",
        ),
        pytest.param(
            together(unavailable(10, 35), beats(8, 61), with_answers(answer(200, 36, "v4")), unavailable(37, 60)),
            [],
            id="503 twice, but not for long",
        ),
        pytest.param(
            together(
                access((4, None), (4.9, "on"), of=OWNER), loss(5, 8, -inf, (5, 8)), with_answers(answer(401, 5.1))
            ),
            [],
            id="refused from memory, because the organization was deleted before Redis was emptied",
        ),
        pytest.param(
            together(
                access((5, "revoked")),
                loss(5.5, 5.6, 4.9),
                window(5.4, 9),
                with_answers(answer(200, 4.5, "v4"), answer(401, 5.7), answer(200, 6.2, "v4"), answer(401, 7)),
            ),
            [],
            id="refused from memory after Redis lost the revocation",
        ),
        pytest.param(
            with_answers(answer(200, 2.5, "v2", process=1), answer(200, 3, "v1", process=2)),
            ["went back"],
            id="went back at another process",
        ),
        pytest.param(
            with_answers(answer(200, 2, "v2"), answer(404, 3, process=1), answer(304, 3.5, "v2", process=2)),
            ["resurrected"],
            id="resurrected at another process",
        ),
        pytest.param(
            together(
                access((5, "revoked"), (6, "active")),
                caught_up(5.2, 5.3),
                with_answers(answer(200, 6.3, "v4", process=1), answer(401, 7.2, process=2)),
            ),
            ["access"],
            id="refused from memory long after another process served it",
        ),
        pytest.param(
            together(with_answers(answer(200, 2.5, "v2"), answer(200, 5.2, "v1")), loss(5, 5.5, 3)),
            ["went back"],
            id="while Redis goes back, older than what is left",
        ),
        pytest.param(
            together(
                with_answers(answer(200, 2.5, "v2", wanted=CONTACT), answer(404, 5.2, wanted=CONTACT)), loss(5, 5.5, 3)
            ),
            ["lost"],
            id="while Redis goes back, 404 of what is left",
        ),
        pytest.param(
            together(with_answers(answer(200, 1.5, "v2")), loss(1.4, 6, 1)),
            ["invented"],
            id="while Redis goes back, before it was published",
        ),
        pytest.param(
            together(caught_up(4, 4.5), with_answers(answer(401, 5.2)), loss(5, 5.5, 4.8)),
            ["access"],
            id="while Redis goes back, 401 with a key that was never revoked",
        ),
        pytest.param(
            together(loss(5, 8, -inf, (5, 8)), with_answers(answer(200, 5.1, "v4"))),
            ["emptied"],
            id="200 of an emptied Redis",
        ),
        pytest.param(
            together(loss(5, 8, -inf, (5, 8)), with_answers(answer(200, 4.5, "v4"), answer(200, 8.5, "v2"))),
            ["went back"],
            id="older after Redis was filled again",
        ),
        pytest.param(
            together(loss(5, 8, -inf, (5, 8), ORGANIZATION), with_answers(answer(200, 4, "v4"), answer(404, 4.95))),
            ["lost"],
            id="404 while a shard is being lost",
        ),
        pytest.param(together(unavailable(10, 60), beats(8, 61)), ["stuck"], id="503 without an end"),
        pytest.param(
            together(
                unavailable(10, 60, process=1),
                beats(8, 61),
                with_answers(*(answer(200, at + 0.5, "v4", process=2) for at in range(10, 60))),
            ),
            ["stuck"],
            id="503 without an end at one of two processes",
        ),
        pytest.param(
            together(unavailable(10, 60), beats(8, 61, lambda at: 5 if at < 20 else 4)),
            ["stuck"],
            id="503 without an end after all that could be applied was applied",
        ),
        pytest.param(with_answers(waited(200, 1.5, 0.5, "v1")), ["wait"], id="a wait that ends with the same"),
        pytest.param(with_answers(waited(304, 1.5, 1, "v1")), ["wait"], id="a wait that ends with 304 too soon"),
        pytest.param(with_answers(waited(404, 9, 1, other="")), ["wait"], id="a wait that ends with 404 too soon"),
        pytest.param(with_answers(waited(200, 4.5, 3.5, "v4")), ["wait"], id="a wait without an end"),
        pytest.param(
            with_answers(answer(200, 2.5, "v2"), waited(200, 3, 1, "v1", other="v2")),
            ["went back"],
            id="waited for less",
        ),
        pytest.param(
            together(access((5, "revoked")), with_answers(waited(401, 4.5, 1.9))),
            ["late"],
            id="revoked too late in a wait",
        ),
        pytest.param(
            together(access((5, "off"), of=OWNER), with_answers(waited(403, 4.5, 1.9))),
            ["late"],
            id="switched off too late in a wait",
        ),
        pytest.param(
            together(access((5, "revoked")), with_answers(waited(304, 4.9, 2, "v4", other="v4"))),
            ["late"],
            id="a wait that a revoked key does not end",
        ),
        pytest.param(with_answers(answer(200, 2.5, "v2"), answer(200, 3, "v1")), ["went back"], id="went back"),
        pytest.param(
            with_answers(answer(200, 2.5, "v2"), answer(404, 3), answer(200, 3.5, "v2")),
            ["resurrected"],
            id="resurrected",
        ),
        pytest.param(
            with_answers(answer(200, 2.5, "v1", as_of=2.3)), ["as of"], id="as of a change that it does not show"
        ),
        pytest.param(with_answers(answer(404, 4.5, as_of=4.3)), ["as of"], id="as of a record that it does not know"),
        pytest.param(
            with_answers(answer(304, 3.5, "v2", as_of=3.3)), ["as of"], id="as of a delete that it does not know"
        ),
        pytest.param(
            with_answers(answer(200, 2.5, "v2", as_of=2.3, contact_id=CONTACT[2], contact_shown="v1")),
            ["as of"],
            id="as of a contact's change that its lead does not show",
        ),
        pytest.param(
            together(access((5, "revoked")), with_answers(answer(200, 5.5, "v4", as_of=5.3))),
            ["as of"],
            id="as of a revocation that it does not know",
        ),
        pytest.param(
            together(access((5, "off"), of=OWNER), with_answers(answer(404, 5.5, as_of=5.3, wanted=CONTACT))),
            ["as of", "as of"],
            id="as of a change of access and a contact that it does not know",
        ),
        pytest.param(with_answers(answer(200, 5, "v4", as_of=5.5)), ["future"], id="as of a time that has not come"),
        pytest.param(
            together(loss(5, 8, -inf), with_answers(answer(404, 6, as_of=5.9))),
            ["as of"],
            id="as of a record that is missing while status says that all is well",
        ),
        pytest.param(
            together(named(5, 8), with_answers(answer(200, 6, "v9"))), ["invented"], id="invented in spite of a break"
        ),
        pytest.param(
            together(named(5, 8), caught_up(8, 8.5), with_answers(answer(404, 9, as_of=8.9))),
            ["lost", "as of"],
            id="lost after a break has ended",
        ),
        pytest.param(with_answers(answer(200, 4, "v4"), answer(404, 5)), ["lost"], id="lost after it was seen"),
        pytest.param(together(caught_up(5, 6), with_answers(answer(404, 7))), ["lost"], id="lost after it was applied"),
        pytest.param(
            together(caught_up(5, 6), with_answers(answer(200, 7, "v2"))), ["went back"], id="behind what was applied"
        ),
        pytest.param(
            with_answers(answer(200, 2.5, "v2"), answer(304, 3, "v1")), ["went back"], id="304 of an older one"
        ),
        pytest.param(with_answers(answer(200, 1.5, "v2")), ["invented"], id="before it was published"),
        pytest.param(with_answers(answer(200, 5, "v9")), ["invented"], id="never published"),
        pytest.param(
            with_answers(answer(200, 2, "v1", organization_id=ORGANIZATIONS[1])),
            ["isolation"],
            id="another organization's",
        ),
        pytest.param(with_answers(answer(200, 2, "v1", body=b"y")), ["content"], id="torn"),
        pytest.param(
            with_answers(answer(200, 2, "v1", tag="a"), answer(304, 2.2, "v1", tag="b")),
            ["etag"],
            id="two ETags of the same",
        ),
        pytest.param(with_answers(answer(503, 5)), ["unavailable"], id="503 without a fault"),
        pytest.param(
            together(with_answers(answer(0, 5)), window(4, 6, 503)), ["unavailable"], id="no answer, wrong fault"
        ),
        pytest.param(with_answers(answer(429, 5)), ["status"], id="429 without a limit"),
        pytest.param(
            together(caught_up(4, 4.5), with_answers(answer(401, 5))), ["access"], id="401 with an active key"
        ),
        pytest.param(together(caught_up(4, 4.5), with_answers(answer(403, 5))), ["access"], id="403 with access"),
        pytest.param(
            together(
                access((5, "revoked"), (6, "active")),
                caught_up(6.5, 6.6),
                with_answers(answer(401, 5.5), answer(401, 7.2)),
            ),
            ["access"],
            id="refused from memory for too long",
        ),
        pytest.param(
            together(
                access((5, "revoked"), (6, "active")),
                caught_up(5.2, 5.3),
                with_answers(answer(200, 6.3, "v4"), answer(401, 6.6)),
            ),
            ["access"],
            id="refused from memory after it was served",
        ),
        pytest.param(
            together(caught_up(4, 4.5), access((5, "revoked")), with_answers(answer(401, 5.3), answer(200, 5.5, "v4"))),
            ["access"],
            id="served after it was revoked",
        ),
        pytest.param(
            together(access((5, "revoked")), with_answers(answer(200, 6.2, "v4"))), ["late"], id="revoked too late"
        ),
        pytest.param(
            together(
                access((5, None), (7, "on"), of=OWNER),
                access((5.5, "revoked")),
                caught_up(6, 6.5),
                with_answers(answer(200, 7.5, "v4")),
            ),
            ["access"],
            id="revoked while its organization was deleted",
        ),
        pytest.param(
            together(
                access((5, None), (6, "on"), of=OWNER),
                caught_up(4, 4.5),
                with_answers(answer(401, 5.5), answer(200, 6.5, "v4"), answer(401, 6.8)),
            ),
            ["access"],
            id="401 after its organization was created again",
        ),
        pytest.param(
            together(access((5, None), (6, "on"), of=OWNER), with_answers(answer(200, 4.5, "v4"), answer(404, 6.5))),
            ["lost"],
            id="404 while its organization is replayed",
        ),
        pytest.param(
            together(outage(5, 6, ORGANIZATIONS[1]), with_answers(answer(503, 5.5))),
            ["unavailable"],
            id="503 while another shard is filled",
        ),
        pytest.param(
            together(
                with_answers(answer(200, 2.5, "v2"), answer(200, 6, "v1")),
                loss(5, 5.5, 2, (inf, -inf), ORGANIZATIONS[1]),
            ),
            ["went back"],
            id="another shard went back",
        ),
        pytest.param(
            together(access((5, None), (6, "on"), of=OWNER), caught_up(7, 7.5), with_answers(answer(503, 8))),
            ["unavailable"],
            id="503 after an organization was replayed",
        ),
        pytest.param(
            together(access((5, "off"), of=OWNER), with_answers(answer(200, 6.2, "v4"))), ["late"], id="off too late"
        ),
        pytest.param(
            with_answers(summary(4, "v2"), summary(5, "v1")), ["went back"], id="a contact in a lead went back"
        ),
        pytest.param(with_answers(summary(4, "v2"), summary(5, None)), ["lost"], id="a contact in a lead was lost"),
        pytest.param(
            with_answers(summary(4, "v2"), answer(200, 5, "v1", wanted=CONTACT)),
            ["went back"],
            id="a contact is older than what its lead has shown",
        ),
        pytest.param(
            together(loss(5, 8, -inf, (5, 8)), with_answers(answer(404, 5.1))),
            ["emptied"],
            id="404 of an emptied Redis",
        ),
        pytest.param(
            together(loss(5, 8, -inf, (5, 8)), with_answers(answer(401, 5.1))),
            ["emptied"],
            id="401 of an emptied Redis",
        ),
        pytest.param(
            together(access((2, "revoked"), (3, "active")), loss(5, 8, -inf, (5, 8)), with_answers(answer(401, 5.1))),
            ["emptied"],
            id="401 of an emptied Redis, long after the key was not active",
        ),
        pytest.param(
            together(with_answers(answer(200, 2.5, "v2"), answer(200, 6, "v1")), loss(5, 5.5, 3)),
            ["went back"],
            id="further back than Redis went",
        ),
        pytest.param(
            together(
                access((5, "revoked")),
                loss(5.5, 5.6, 4.9),
                window(5.4, 9),
                with_answers(answer(200, 4.5, "v4"), answer(401, 6.2), answer(200, 6.4, "v4")),
            ),
            ["access"],
            id="served after the revocation that Redis lost was applied again",
        ),
    ],
)
def test_what_is_wrong_is_found_and_nothing_in_what_is_right(plant: Plant, kinds: list[str]) -> None:
    found = history()
    plant(found)
    verdict = Checker(found, lambda _, shown, __: {b"x", shown.encode()}).check()
    assert [anomaly.kind for anomaly in verdict.anomalies] == kinds


@pytest.mark.parametrize(
    ("errors", "status", "lines"),
    [
        pytest.param(
            [ConnectionError("the server is away"), KeyError("later")],
            2,
            [
                "NOT FINISHED: ConnectionError: the server is away",
                "not finished, and nothing wrong until then",
            ],
            id="something that the run needs",
        ),
        pytest.param(
            [TimeoutError("no end"), ConnectionError("away")],
            1,
            ["WRONG in the end: it took too long: no end", "NOT FINISHED: ConnectionError: away", "1 anomalies"],
            id="Leadview does not recover",
        ),
    ],
)
def test_every_run_ends_with_a_verdict(errors: list[Exception], status: int, lines: list[str]) -> None:
    report = Report(1, 0.0)
    for error in errors:
        with judging(report):
            raise error
    assert (report.status, str(report).splitlines()[-len(lines) :]) == (status, lines)


def test_what_was_answered_until_a_run_failed_is_checked() -> None:
    found = history()
    found.answers += [answer(404, 3.5), answer(503, 4.5)]
    world = Mock(history=found, ports=[1], wrong=[], done=Counter(), told_after=0.0)
    world.leadview.kafka.bootstrap_servers = "127.0.0.1:1"
    world.leadview.expected.return_value = {}
    world.start.side_effect = ConnectionError("the server is away")
    report = run(world, 1, 0.0, [])
    kinds = [anomaly.kind for anomaly in report.verdict.anomalies]
    assert (kinds, report.verdict.checked) == (["unavailable"], {404: 1, 503: 1})
    assert "NOT FINISHED: ConnectionError: the server is away" in str(report)
