// Publishes lines of standard input with kafkajs, as docs/production.md asks for: `node publish.mjs SERVERS TOPIC`.
// kafkajs 2 chooses the partition by murmur2, like Java. Other clients have to be told to (docs/events.md).
// A line is a key, a tab and a value.
import { readFileSync } from "node:fs";
import { Kafka, logLevel } from "kafkajs";

const [servers, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR, retry: { retries: 3 } });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
await producer.connect();
for (const line of readFileSync(0, "utf8").trimEnd().split("\n")) {
  const [key, value] = line.split("\t");
  if (!value) throw new Error(`no tab between a key and a value: ${line.slice(0, 60)}`);
  await producer.send({ topic, acks: -1, messages: [{ key, value }] });
}
await producer.disconnect();
