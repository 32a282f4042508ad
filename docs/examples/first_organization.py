"""Makes an organization and its first API key: `python -m docs.examples.first_organization`, with a Python that has
Leadview. It prints shell commands that publish both with kcat, and that set ORGANIZATION and API_KEY.

They need KAFKA, the address of a broker, and with TLS or SASL also KCAT_CONFIG, a file with the options of kcat.
Nothing else contains the key: keep it.
"""

from datetime import UTC, datetime
from uuid import uuid4

import orjson

from schemas.api_keys import key_hash, mint


def publish(topic: str, message_key: str, type_: str, **fields: object) -> str:
    data = {"organization_id": organization, "version": 1, **fields}
    event = {"specversion": "1.0", "id": str(uuid4()), "source": "/first-organization", "type": type_, "data": data}
    line = f"{message_key}|{orjson.dumps(event).decode()}"
    options = "-X message.timeout.ms=10000 -X partitioner=murmur2_random"
    return f"kcat -P -b \"$KAFKA\" {options} -t {topic} -K '|' <<'END'\n{line}\nEND"


organization, key_id = str(uuid4()), str(uuid4())
key = mint(organization)
access = {"id": key_id, "hash": key_hash(key), "status": "active", "created_at": datetime.now(UTC)}
print("# With TLS or SASL, export KCAT_CONFIG: the name of a file with the options of kcat, such as sasl.username=crm.")
print(': "${KAFKA:?is the address of a broker, such as 127.0.0.1:9092}"')
print(publish("crm.organizations", organization, "crm.organization.changed", id=organization, api_access=True))
print(publish("crm.api-keys", f"{organization}:{key_id}", "crm.api_key.changed", **access))
print(f"export ORGANIZATION={organization} API_KEY={key}")
