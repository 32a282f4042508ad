"""Publishes CloudEvents with the SDK for Python: `publish_cloudevents.py SERVERS TOPIC [binary]`.

A line of standard input is a message key, a tab and an event in JSON. Without an event it is a tombstone.
Needs `pip install cloudevents confluent-kafka`.
"""

import json
import sys
from datetime import datetime

from cloudevents.core.bindings.kafka import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import KafkaError, Producer


def main(servers: str, topic: str, mode: str = "structured") -> None:
    # The partition of a key has to be the one that all other producers choose.
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "partitioner": "murmur2_random"})
    failed: list[KafkaError | None] = []
    for line in sys.stdin:
        key, _, text = line.rstrip("\n").partition("\t")
        value, headers = None, {}
        if text:
            attributes = json.loads(text)
            data = attributes.pop("data")  # an object: of bytes the SDK makes `data_base64`
            attributes |= {"time": datetime.fromisoformat(attributes["time"]), "datacontenttype": "application/json"}
            message = (to_binary if mode == "binary" else to_structured)(CloudEvent(attributes, data), JSONFormat())
            value, headers = message.value, message.headers
        producer.produce(topic, value, key, headers=headers, on_delivery=lambda error, _: failed.append(error))
    producer.flush()
    if any(failed):
        sys.exit(f"not published: {failed}")


main(*sys.argv[1:])
