"""`serve.lua` alone, on a single Redis: every reply that its header describes.

The clock is Redis's own, so a row says how many microseconds from now a bucket is full again.
"""

import struct
from itertools import takewhile
from typing import Any
from uuid import uuid4

import pytest

from api.redis.scripts import serve
from api.redis.store import Reply, read_reply
from schemas import api_keys, names, resources
from schemas.layouts import HEAD, JOB_DUE, JOB_REPLAY, LEAD_BODY, WHOLE, Outcome
from tests.harness.generations import generation
from tests.harness.records import Caller, Records

SECOND = 1_000_000
ETAG = b"twelve bytes"
DAY = 24 * 3600
"""A window in which nothing comes back while a test runs, however slow the machine is."""
# Time goes by between writing a bucket and reading it.
SLACK = 600 * SECOND


def bucket_names(caller: Caller) -> tuple[bytes, bytes]:
    hashed = api_keys.key_hash(caller.key)
    return names.key_limit(caller.name, hashed), names.organization_limit(caller.name)


def run(records: Records, caller: Caller, document: bytes | None, *tags: bytes, waits: bool = False) -> Reply:
    key_limit, organization_limit = bucket_names(caller)
    command = serve(
        key=names.api_key(caller.name, api_keys.key_hash(caller.key)),
        organization=caller.name,
        key_limit=key_limit,
        organization_limit=organization_limit,
        document=document,
        limits=struct.pack("<IIII", 100, 10_000, 300, 10_000) + b"-" * waits,
        etags=tags,
    )
    return read_reply(records.client.eval(serve.text, len(command.keys), *command.keys, *command.arguments))


def remaining(reply: Reply) -> tuple[int, int]:
    key, organization = reply.buckets()
    return key.remaining, organization.remaining


def waits(reply: Reply) -> tuple[int, int]:
    key, organization = reply.buckets()
    return key.wait, organization.wait


def lead_name(records: Records, caller: Caller, **how: Any) -> bytes:
    lead_id = records.lead(caller.organization_id, {"id": "x"}, **how)
    return names.document(resources.LEAD, caller.name, generation(1), lead_id)


def fill(records: Records, name: bytes, full_in: int) -> None:
    seconds, microseconds = records.client.time()
    records.client.set(name, seconds * SECOND + microseconds + full_in)


def assert_expires(records: Records, bucket: bytes) -> None:
    """The bucket expires when it is full again, or up to ten seconds later."""
    full_at = int(records.read(bucket)) // 1000
    now = "redis.call('TIME')[1] * 1000 + math.floor(redis.call('TIME')[2] / 1000)"
    # Time may go by between the two parts of a sum. So one of them is not later than the expiry, and one not earlier.
    not_later = records.client.eval(f"local now = {now} return now + redis.call('PTTL', KEYS[1])", 1, bucket)
    not_earlier = records.client.eval(f"local left = redis.call('PTTL', KEYS[1]) return left + {now} + 1", 1, bucket)
    assert full_at <= not_earlier
    assert not_later <= full_at + 10_000


def test_200_returns_the_whole_value_and_charges_both(records: Records) -> None:
    caller = records.caller()
    name = lead_name(records, caller)
    reply = run(records, caller, name)
    value = records.read(name)
    assert value[LEAD_BODY:] == b'{"id":"x"}'
    of_key, of_organization = (100, 10_000, 100_000_000), (300, 10_000, 33_333_334)
    assert reply == Reply(Outcome.SERVED, reply.now, *of_key, *of_organization, charged=1, value=value)
    assert remaining(reply) == (99, 299)
    for bucket, full_in in zip(bucket_names(caller), (100_000_000, 33_333_334), strict=True):
        assert records.client.get(bucket) == b"%d" % (reply.now + full_in)
        assert_expires(records, bucket)


@pytest.mark.parametrize(
    ("quota", "charges"),
    [pytest.param(10, 4, id="each charge is ten seconds"), pytest.param(100, 40, id="each charge is a second")],
)
def test_a_bucket_does_not_expire_before_it_is_full_again(records: Records, quota: int, charges: int) -> None:
    caller = records.caller(key_limit=(quota, 100))
    for _ in range(charges):
        run(records, caller, None)
    assert_expires(records, bucket_names(caller)[0])


@pytest.mark.parametrize(
    ("outcome", "how", "tags", "read"),
    [
        pytest.param(Outcome.KEY_REFUSED, {"revoked": True}, [b"*"], [], id="401"),
        pytest.param(Outcome.NO_ACCESS, {"access": False}, [b"*"], [], id="403"),
        pytest.param(Outcome.LIMITED, {"key_limit": (1, DAY)}, [b"*"], [], id="429"),
        pytest.param(Outcome.UNCHANGED, {}, [b"*"], ["GETRANGE 0 33"], id="304"),
        pytest.param(Outcome.MISSING, {"state": b"D"}, [], ["GETRANGE 0 65535"], id="404, deleted"),
        pytest.param(Outcome.MISSING, {"state": b"D"}, [b"*"], ["GETRANGE 0 33"], id="404, deleted, with a tag"),
        pytest.param(Outcome.LARGE, {}, [], ["GETRANGE 0 65535"], id="200"),
        pytest.param(
            Outcome.LARGE, {}, [b"twelve bytes"], ["GETRANGE 0 33", "GETRANGE 0 65535"], id="200 with another tag"
        ),
    ],
)
def test_no_more_of_the_document_is_read_than_is_needed(
    records: Records, outcome: int, how: dict[str, Any], tags: list[bytes], read: list[str]
) -> None:
    """What is refused or free costs the same for a document of any size. So the document has a megabyte here."""
    limits = {name: how[name] for name in ("access", "key_limit") if name in how}
    caller = records.caller(**limits)
    lead_id = records.lead(caller.organization_id, {"pad": "x" * 1_000_000}, state=how.get("state", b"L"))
    name = names.document(resources.LEAD, caller.name, generation(1), lead_id)
    if how.get("revoked"):
        records.revoke(caller.key)
    if "key_limit" in how:
        fill(records, bucket_names(caller)[0], DAY * SECOND)
    client: Any = records.client
    with client.monitor() as monitor:
        reply = run(records, caller, name, *tags)
        client.echo("over")
        seen = list(takewhile(lambda each: "over" not in each["command"], monitor.listen()))
    commands = [each["command"].split() for each in seen if each["client_type"] == "lua"]
    seen = [f"{words[0]} {words[2]} {words[3]}" for words in commands if words[1:2] == [name.decode()]]
    assert (reply.outcome, seen, len(reply.value)) == (outcome, read, 34 if outcome == Outcome.UNCHANGED else 0)


@pytest.mark.parametrize("more", [-1, 0])
def test_a_value_that_is_too_long_is_left_to_the_caller(records: Records, more: int) -> None:
    caller = records.caller()
    name = lead_name(records, caller)
    records.client.append(name, b"x" * (WHOLE.stop - len(records.read(name)) + more))
    reply = run(records, caller, name)
    assert (reply.outcome, len(reply.value)) == ((Outcome.SERVED, WHOLE.stop - 1) if more < 0 else (Outcome.LARGE, 0))
    assert (remaining(reply), reply.charged) == ((99, 299), 1)


@pytest.mark.parametrize(
    ("outcome", "expires_in", "organization", "lead", "tags"),
    [
        pytest.param(Outcome.KEY_REFUSED, None, {}, b"L", [], id="an unknown key"),
        pytest.param(Outcome.KEY_REFUSED, -1, {}, b"L", [], id="a key that has just expired"),
        pytest.param(Outcome.SERVED, 1000 * DAY, {}, b"L", [], id="a key that will expire"),
        pytest.param(Outcome.NO_ACCESS, 0, {"access": False}, b"L", [], id="access is off"),
        pytest.param(Outcome.NO_ACCESS, 0, {"state": b"D"}, b"L", [], id="a deleted organization"),
        pytest.param(Outcome.NO_ACCESS, 0, {"state": b"T"}, b"L", [], id="an organization with a tombstone"),
        pytest.param(Outcome.NO_ACCESS, 0, None, b"L", [], id="an organization never heard of"),
        pytest.param(Outcome.NO_ID, 0, {}, None, [], id="no id"),
        pytest.param(Outcome.MISSING, 0, {}, b"", [b"*"], id="a lead never heard of"),
        pytest.param(Outcome.MISSING, 0, {}, b"D", [b"*"], id="a deleted lead"),
        pytest.param(Outcome.MISSING, 0, {}, b"T", [b"*"], id="a lead with a tombstone"),
        pytest.param(Outcome.UNCHANGED, 0, {}, b"L", [b"other  bytes", ETAG], id="its tag"),
        pytest.param(Outcome.UNCHANGED, 0, {}, b"L", [b"*"], id="any tag"),
    ],
)
def test_the_answers_and_what_is_charged(
    records: Records,
    outcome: int,
    expires_in: int | None,
    organization: dict[str, Any] | None,
    lead: bytes | None,
    tags: list[bytes],
) -> None:
    """The key expires after `expires_in` milliseconds by the clock of Redis, and never with 0; None: there is no key.
    The lead has this state, and is not there with an empty one.
    """
    caller = Caller()
    if expires_in is not None:
        expires_at = records.client.time()[0] * 1000 + expires_in if expires_in else 0
        records.key(caller.key, caller.organization_id, expires_at=expires_at)
    if organization is not None:
        records.organization(caller.organization_id, **organization)
    name = None if lead is None else names.document(resources.LEAD, caller.name, generation(1), str(uuid4()))
    value = (lead or b"") + bytes(HEAD - 1)  # all that a deleted one has
    if lead == b"L":
        value += ETAG + bytes(100)
    if name and lead:
        records.client.set(name, value)
    reply = run(records, caller, name, *tags)
    assert reply.outcome == outcome
    returned: dict[int, bytes] = {Outcome.SERVED: value, Outcome.UNCHANGED: b"L" + bytes(21) + ETAG}
    assert reply.value == returned.get(outcome, b"")
    refused = outcome in (Outcome.KEY_REFUSED, Outcome.NO_ACCESS)
    charged = outcome in (Outcome.SERVED, Outcome.NO_ID, Outcome.MISSING)
    if refused:
        assert reply == Reply(outcome)
    else:
        assert remaining(reply) == (100 - charged, 300 - charged)
    assert records.client.exists(*bucket_names(caller)) == 2 * charged


def test_401_for_a_key_that_is_another_organizations(records: Records) -> None:
    caller, other = records.caller(), records.caller()
    stored = records.read(names.api_key(other.name, api_keys.key_hash(other.key)))
    records.client.set(names.api_key(caller.name, api_keys.key_hash(caller.key)), stored)
    assert run(records, caller, None) == Reply(Outcome.KEY_REFUSED)


def test_nothing_is_served_while_the_records_of_an_organization_are_applied_again(records: Records) -> None:
    caller = records.caller()
    name = lead_name(records, caller)
    records.client.setrange(caller.name, JOB_DUE.start, JOB_REPLAY)
    assert run(records, caller, name) == Reply(Outcome.BEING_APPLIED)


@pytest.mark.parametrize(
    ("lead", "key_full_in", "outcome", "charged"),
    [
        pytest.param(b"", 0, Outcome.MISSING, False, id="there is none yet"),
        pytest.param(b"L", 0, Outcome.SERVED, True, id="there is one"),
        pytest.param(None, 0, Outcome.NO_ID, True, id="no id"),
        pytest.param(b"", 100_000 * SECOND, Outcome.LIMITED, False, id="no request is left"),
    ],
)
def test_a_request_that_waits_for_a_document_is_not_charged_while_there_is_none(
    records: Records, lead: bytes | None, key_full_in: int, outcome: int, charged: bool
) -> None:
    """But it is refused like any other."""
    caller = records.caller(key_limit=(10, 100_000))
    name = None if lead is None else lead_name(records, caller, state=lead or b"D")
    fill(records, bucket_names(caller)[0], key_full_in)
    before = records.client.get(bucket_names(caller)[0])
    assert run(records, caller, name, waits=True).outcome == outcome
    assert (records.client.get(bucket_names(caller)[0]) != before) is charged


@pytest.mark.parametrize(
    ("key_full_in", "organization_full_in"),
    [
        # One request a day for each: it fits when the bucket is full again.
        pytest.param(50_000 * SECOND, 0, id="the key's"),
        pytest.param(0, 50_000 * SECOND, id="the organization's"),
        pytest.param(50_000 * SECOND, 70_000 * SECOND, id="both"),
    ],
)
def test_429_charges_neither_and_says_when(records: Records, key_full_in: int, organization_full_in: int) -> None:
    caller = records.caller(key_limit=(1, DAY), organization_limit=(1, DAY))
    by_key, by_organization = bucket_names(caller)
    fill(records, by_key, key_full_in)
    fill(records, by_organization, organization_full_in)
    before = records.client.mget(by_key, by_organization)
    reply = run(records, caller, lead_name(records, caller), b"*")
    assert (reply.outcome, reply.value) == (Outcome.LIMITED, b"")
    for wait, full_in in zip(waits(reply), (key_full_in, organization_full_in), strict=True):
        assert max(0, full_in - SLACK) <= wait <= full_in
    assert records.client.mget(by_key, by_organization) == before
    for bucket in (by_key, by_organization):
        records.client.decrby(bucket, max(waits(reply)))  # as if so much time had passed
    assert run(records, caller, None).outcome == Outcome.NO_ID, "waiting so long is enough"


@pytest.mark.parametrize("lowered", [pytest.param(0, id="the key's"), pytest.param(1, id="the organization's")])
def test_a_bucket_is_never_fuller_than_its_limit_allows(records: Records, lowered: int) -> None:
    """After a limit was lowered, the charges under the old limit do not count beyond the new one. If that cannot be
    written, no request is refused: the bucket could not drain, whatever the worker says. The other bucket stays as it
    is."""
    limits: dict[str, Any] = {("key_limit", "organization_limit")[lowered]: (10, DAY)}
    caller = records.caller(**limits)
    bucket, other = bucket_names(caller)[lowered], bucket_names(caller)[1 - lowered]
    fill(records, bucket, 2 * DAY * SECOND)
    with records.full():
        reply = run(records, caller, None)
    assert (reply.outcome, reply.charged) == (Outcome.NO_ID, 0)
    reply = run(records, caller, None)
    full_in = (reply.key_full_in, reply.organization_full_in)
    assert (reply.outcome, waits(reply)[lowered], full_in[lowered]) == (Outcome.LIMITED, 8640 * SECOND, DAY * SECOND)
    assert (waits(reply)[1 - lowered], full_in[1 - lowered], records.client.exists(other)) == (0, 0, 0)
    assert_expires(records, bucket)


@pytest.mark.parametrize(
    ("key_limit", "organization_limit", "seen"),
    [
        pytest.param((0, 0), (0, 0), (100, 10_000, 300, 10_000), id="the settings'"),
        pytest.param((7, 3), (0, 0), (7, 3, 300, 10_000), id="its own for keys"),
        pytest.param((0, 0), (9, 60), (100, 10_000, 9, 60), id="its own for all"),
        pytest.param((1_000_000_000, 31_536_000), (1, 1), (1_000_000_000, 31_536_000, 1, 1), id="extremes"),
    ],
)
def test_limits(
    records: Records,
    key_limit: tuple[int, int],
    organization_limit: tuple[int, int],
    seen: tuple[int, int, int, int],
) -> None:
    caller = records.caller(key_limit=key_limit, organization_limit=organization_limit)
    reply = run(records, caller, None)
    assert (
        reply.key_quota,
        reply.key_window,
        reply.organization_quota,
        reply.organization_window,
    ) == seen
    assert remaining(reply) == (seen[0] - 1, seen[2] - 1)


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param((1, DAY), id="one"),
        pytest.param((3, DAY), id="an interval that is a whole number of seconds"),
        pytest.param((7, DAY), id="one that is no whole number of microseconds"),
        pytest.param((300, 10 * DAY), id="many"),
    ],
)
def test_exactly_the_quota_fits(records: Records, limit: tuple[int, int]) -> None:
    caller = records.caller(key_limit=limit, organization_limit=(1_000_000, 1))
    assert [run(records, caller, None).outcome for _ in range(limit[0] + 1)] == [Outcome.NO_ID] * limit[0] + [
        Outcome.LIMITED
    ]


def test_served_if_only_the_charge_cannot_be_written(records: Records) -> None:
    caller = records.caller()
    name = lead_name(records, caller)
    with records.full():
        reply = run(records, caller, name)
    assert (reply.outcome, reply.charged) == (Outcome.SERVED, 0)
    assert not records.client.exists(*bucket_names(caller))


def test_time_brings_room_back(records: Records) -> None:
    caller = records.caller(key_limit=(10, 100_000))
    fill(records, bucket_names(caller)[0], 50_000 * SECOND)
    reply = run(records, caller, None)
    assert remaining(reply)[0] == 4
    assert 60_000 * SECOND - SLACK < reply.key_full_in <= 60_000 * SECOND
