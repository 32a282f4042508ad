"""No key reads another organization, and what is erased leaves no byte (promises 5 and 6)."""

import itertools
import re
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from devstack.redis_server import RedisServer
from schemas import api_keys, names, resources
from tests.harness import crm, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer
from tests.harness.crm import CONTACT, LEAD, ORGANIZATION, OTHER_ORGANIZATION, Message
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.services import Kafka
from tests.harness.waiting import wait_until
from tests.service.conftest import everywhere

ORGANIZATIONS = (ORGANIZATION, OTHER_ORGANIZATION)
KEYS = {
    organization: api_keys.mint(organization, digit * 30)
    for organization, digit in zip(ORGANIZATIONS, "12", strict=True)
}
PATHS = (LEADS, CONTACTS)


def entity(path: str, organization: str, *, shared: bool) -> str:
    """Ids are unique within an organization only: one pair is the same in both, one is not."""
    if shared:
        return LEAD if path == LEADS else CONTACT
    return crm.uuid(ORGANIZATIONS.index(organization) * 16 + (1 if path == LEADS else 2) + 0x700)


async def project_both(projection: Projection) -> None:
    for organization in ORGANIZATIONS:
        key = KEYS[organization]
        mine: dict[str, Any] = {"organization_id": organization}
        await projection.apply(
            crm.organization(id=organization, **mine).record(),
            crm.api_key(hash=api_keys.key_hash(key), **mine).record(),
        )
        for shared in (True, False):
            lead, contact = (entity(path, organization, shared=shared) for path in PATHS)
            await projection.apply(
                crm.contact(id=contact, first_name=f"of {organization}", **mine).record(),
                crm.lead(id=lead, contact_id=contact, referrer=f"of {organization}", **mine).record(),
            )


@everywhere
async def test_each_key_reads_its_own_organization_alone(projection: Projection, served: ApiServer) -> None:
    """Every key with every id of every organization: an answer is of the key's own organization, or 404 as for a record
    that does not exist.
    """
    await project_both(projection)
    nobodys = served.get(LEADS + crm.uuid(0xDEAD), key=KEYS[ORGANIZATION])
    for caller, owner, path, shared in itertools.product(ORGANIZATIONS, ORGANIZATIONS, PATHS, (True, False)):
        answer = served.get(path + entity(path, owner, shared=shared), key=KEYS[caller])
        if caller != owner and not shared:
            assert answer.headers.keys() == nobodys.headers.keys()
            assert answer.json | {"request_id": ""} == nobodys.json | {"request_id": ""}
            assert (answer.status, answer.error) == (404, "not_found")
            continue
        assert answer.status == 200
        assert answer.json["organization_id"] == caller
        other = next(organization for organization in ORGANIZATIONS if organization != caller)
        assert other.encode() not in answer.body


@everywhere
async def test_key_and_a_record_of_different_organizations_open_nothing(
    projection: Projection, served: ApiServer
) -> None:
    """The core product made a mistake: the key names one organization, its event another. And where Redis itself holds
    the wrong record under a key's name.
    """
    await project_both(projection)
    misminted = api_keys.mint(OTHER_ORGANIZATION, "x" * 30)
    event = crm.api_key(id=crm.uuid(0xF2), hash=api_keys.key_hash(misminted), organization_id=ORGANIZATION)
    await projection.apply(event.record())
    for path, owner in itertools.product(PATHS, ORGANIZATIONS):
        assert served.get(path + entity(path, owner, shared=False), key=misminted).error == "invalid_api_key"
    own, others = (
        names.api_key(names.organization(organization), api_keys.key_hash(KEYS[organization]))
        for organization in ORGANIZATIONS
    )
    record = cast(bytes, projection.client.get(others))
    projection.client.set(own, record)
    assert served.get(LEADS + LEAD, key=KEYS[ORGANIZATION]).error == "invalid_api_key"


@everywhere
async def test_deleted_contact_leaves_no_byte(projection: Projection, served: ApiServer) -> None:
    secrets: dict[str, Any] = {
        "first_name": "Zaphodia",
        "last_name": "Beeblebrox",
        "email": "zb@example.com",
        "phone": "+1 555 0100",
    }
    await project_both(projection)
    await projection.apply(crm.contact(version=2, custom_fields={"diet": "nutriamatic"}, **secrets).record(offset=1))
    assert b"Zaphodia" in served.get(LEADS + LEAD, key=KEYS[ORGANIZATION]).body
    await projection.apply(crm.deleted(resources.CONTACT, 3).record(offset=2))
    kept = stored.everything(projection.client)
    for secret in (*secrets.values(), "nutriamatic", "diet"):
        assert secret.encode() not in kept
    assert served.get(LEADS + LEAD, key=KEYS[ORGANIZATION]).json["contact"] is None
    assert served.get(CONTACTS + CONTACT, key=KEYS[ORGANIZATION]).status == 404


PERSON: dict[str, Any] = {
    "first_name": "canary-first",
    "last_name": "canary-last",
    "email": "canary-mail@example.com",
    "phone": "canary-phone",
    "custom_fields": {"canary-field": "canary-text"},
}
OF_SUMMARY = {"canary-first", "canary-last", "canary-mail", "canary-phone"}
OF_PERSON = OF_SUMMARY | {"canary-field", "canary-text"}
OF_LEAD = {"canary-referrer"}


def bad_records() -> list[Message]:
    """Each of them becomes a dead letter. They are bad because of a canary, or have one beside what is bad."""
    return [
        replace(crm.contact(2), value=b'{"first_name": "canary-broken"'),
        crm.contact(2, id=crm.uuid(0xB0), first_name=["canary-list"]),
        crm.contact(2, id=crm.uuid(0xB1), custom_fields={"canary-key": {"canary-inner": 1}}),
        crm.lead(2, id=crm.uuid(0xB2), stage="canary-stage"),
        crm.lead(2, id=crm.uuid(0xB3), created_at="canary-time"),
        crm.binary(crm.with_attributes(crm.lead(2, id=crm.uuid(0xB4)), type="canary-type")),
    ]


def canaries(text: bytes) -> set[str]:
    return {found.decode() for found in re.findall(rb"canary-[a-z]+", text)}


def in_redis(client: Any) -> set[str]:
    """Returns the canaries in what Redis would write of any type into its files."""
    return canaries(b"\n".join(part for name in client.scan_iter() for part in (name, client.dump(name) or b"")))


def in_files(client: Any, directory: Path) -> set[str]:
    """Returns the canaries in the files of Redis after it has rewritten them."""
    client.save()
    client.bgrewriteaof()
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the append-only file is rewritten")
    # Since Redis 7 there are two, and what a rewrite has replaced is deleted a little later.
    wait_until(lambda: 1 <= len(list(directory.rglob("*.aof"))) <= 2, "the former append-only files are deleted")
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert ".rdb" in {path.suffix for path in files}
    return canaries(b"\n".join(path.read_bytes() for path in files))


@pytest.mark.apache
def test_an_erasure_leaves_no_byte_in_redis_its_files_and_the_logs(
    kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """Of a contact that is deleted, then of its organization. docs/security.md says how an operator proves the same."""
    files, logs = tmp_path / "redis", tmp_path / "logs"
    logs.mkdir()
    # Everything that is written is plain, so that it can be found.
    plain = ["--appendfsync", "always", "--rdbcompression", "no", "--aof-use-rdb-preamble", "no"]
    settings = {"log_level": "debug", "request_log": "all", "kafka_session_timeout": 2}
    with (
        RedisServer.start(files, appendonly=True, options=plain) as server,
        Leadview(kafka, topic_prefix, server, logs, **settings) as leadview,
    ):
        redis, key, bad = leadview.redis, KEYS[ORGANIZATION], bad_records()
        leadview.topics.create()
        access = (crm.organization(), crm.api_key(hash=api_keys.key_hash(key), name="canary-name"))
        leadview.serve(*access, crm.contact(1, **PERSON), crm.lead(1, referrer="canary-referrer"), *bad)
        with leadview.api() as api:
            assert canaries(api.get(LEADS + LEAD, key=key).body) == OF_SUMMARY | OF_LEAD
            assert canaries(api.get(CONTACTS + CONTACT, key=key).body) == OF_PERSON
            assert redis.hlen(names.DEAD_LETTERS) == len(bad)
            assert in_redis(redis) == in_files(redis, files) == OF_PERSON | OF_LEAD

            leadview.publish(crm.deleted(resources.CONTACT, 9))
            leadview.wait_until_current()
            assert api.get(LEADS + LEAD, key=key).json["contact"] is None
            assert in_redis(redis) == in_files(redis, files) == OF_LEAD
            show = ("show", "contact", ORGANIZATION, CONTACT, "--records")
            held = "Kafka holds 3 records of it: 2 with data, and 1 without"
            leadview.run(*show).ends(0, "is deleted", "by version 9", "was replaced since by version 9", held)
            shown = leadview.run(*show, "--json").json
            assert [(each["version"], each["data"]) for each in shown["records"]] == [
                (9, False),
                (None, True),
                (1, True),
            ]

            leadview.publish(crm.deleted(resources.ORGANIZATION, 9))
            wait_until(lambda: leadview.caught_up() and not redis.exists(names.JOBS), "the organization is erased")
            assert api.get(LEADS + LEAD, key=key).error == "invalid_api_key"
        assert in_redis(redis) == in_files(redis, files) == set()
        owner = names.organization(ORGANIZATION)
        assert (redis.hlen(names.DEAD_LETTERS), redis.keys(owner + b"*")) == (0, [owner])
        leadview.run("verify").ends(0)
        leadview.run("verify", "--access").ends(0)
    written = b"\n".join(path.read_bytes() for path in logs.rglob("*.log"))
    assert LEAD.encode() in written, "requests are logged"
    assert (canaries(written), key.encode() in written) == (set(), False)
