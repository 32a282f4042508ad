"""Publishes events with Confluent's serializer for JSON Schema, which puts the frame of a schema registry before them.

Takes the addresses of Kafka and of the registry, a topic, and the file of a JSON Schema in docs/schemas. Reads one
event in each line of standard input. Needs `pip install "confluent-kafka[json]"`.
"""

import argparse
import json
import sys
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap_servers", "registry_url", "topic", "schema"):
        parser.add_argument(name)
    parser.add_argument("--id-in-header", action="store_true", help="send the id of the schema in a header")
    chosen = parser.parse_args()

    place = header_schema_id_serializer if chosen.id_in_header else prefix_schema_id_serializer
    registry = SchemaRegistryClient.new_client({"url": chosen.registry_url})
    serialize = JSONSerializer(Path(chosen.schema).read_text(), registry, conf={"schema.id.serializer": place})
    producer = Producer({"bootstrap.servers": chosen.bootstrap_servers, "partitioner": "murmur2_random"})
    for line in sys.stdin:
        event = json.loads(line)
        data, headers = event["data"], []
        value = serialize(event, SerializationContext(chosen.topic, MessageField.VALUE, headers))
        # The message key is plain text: a frame before it would change the partition with each new schema.
        producer.produce(chosen.topic, value, f"{data['organization_id']}:{data['id']}", headers=headers)
    if producer.flush(60):
        sys.exit("Kafka did not confirm every record in 60 s")


main()
