"""Ids that try to reach another organization, and keys that are almost valid."""

from typing import Any
from urllib.parse import quote_from_bytes

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import names
from schemas.layouts import SHORT_ID
from tests.harness.api_server import LEADS, responses
from tests.harness.hostile import Target
from tests.harness.records import Caller, Records

CLOSING = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
NOBODY = names.tagged("0" * SHORT_ID).decode()
"""A worker itself makes the call for nobody, to find out whether it is ready."""

ids = st.text(max_size=40) | st.sampled_from(["}", "{", "*", "..", "x}lv:{y", "\x00", "lv:generations", "}" + "a" * 35])


def test_ids_never_leave_the_hash_tag(api: Target, caller: Caller, records: Records, lead: str) -> None:
    """MONITOR of Redis shows which keys were requested."""

    @settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
    @given(ids | st.tuples(ids, st.just(lead)).map("".join) | st.tuples(st.just(lead), ids).map("".join))
    def fuzz(text: str) -> None:
        segment = quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="}{*:~")
        answer = api.get(LEADS + segment, key=caller.key)
        assert answer.status in ((200,) if text == lead else (400, 404))

    with records.client.monitor() as monitor:  # type: ignore[no-untyped-call]
        fuzz()
        records.client.ping()
        asked = calls(monitor)
    assert len(asked) > 100
    for call in asked:
        _, _, number, *arguments = call.split(" ")
        owner = NOBODY if arguments[0].startswith(NOBODY) else caller.name.decode()
        assert all(key.startswith(owner) for key in arguments[: int(number)]), call


def test_no_near_miss_of_a_key_reaches_redis(api: Target, caller: Caller, records: Records, lead: str) -> None:
    key = caller.key
    misses = {key[:place] + other + key[place + 1 :] for place in range(len(key)) for other in "0Az_"}
    misses |= {key[:place] + key[place + 1 :] for place in range(len(key))}
    misses |= {key[:place] + "0" + key[place:] for place in range(len(key) + 1)}
    misses |= {key[:place] + key[place : place + 2][::-1] + key[place + 2 :] for place in range(len(key) - 1)}
    misses |= {key.swapcase(), key * 2, f'"{key}"', f"{key},", f"{key};{key}", quote_from_bytes(key.encode(), safe="l")}
    misses -= {key}
    sent = b"".join(
        f"GET {LEADS}{lead} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {miss}\r\n\r\n".encode()
        for miss in sorted(misses)
    )
    with records.client.monitor() as monitor:  # type: ignore[no-untyped-call]
        answers = responses(api.exchange(sent + CLOSING))
        records.client.ping()
        asked = calls(monitor)
    assert {answer.status for answer in answers[:-1]} == {401}
    assert {answer.error for answer in answers[:-1]} == {"invalid_api_key"}
    assert len(answers) == len(misses) + 1 > 400
    assert [call for call in asked if NOBODY not in call] == []


def calls(monitor: Any) -> list[str]:
    """Returns the calls of scripts that Redis has executed until a PING."""
    found = []
    for command in monitor.listen():
        if command["command"] == "PING":
            break
        if "EVALSHA" in command["command"]:
            found.append(command["command"])
    return found
