// Publishes CloudEvents with the SDK for Node.js and kafkajs: `node publish_cloudevents.mjs SERVERS TOPIC [binary]`.
// A line of standard input is a message key, a tab and an event in JSON. Without an event it is a tombstone.
// Needs `npm install cloudevents kafkajs`.
import { readFileSync } from "node:fs";
import { CloudEvent, Kafka as Binding } from "cloudevents";
import { Kafka, logLevel } from "kafkajs";

const [servers, topic, mode] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR, retry: { retries: 3 } });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });

/** Returns what kafkajs sends: it accepts no header that is undefined, and no value that is an object. */
function message(event) {
  const { headers, value } = mode === "binary" ? Binding.binary(event) : Binding.structured(event);
  return {
    headers: Object.fromEntries(Object.entries(headers).filter(([, header]) => header !== undefined)),
    value: typeof value === "object" ? JSON.stringify(value) : value,
  };
}

await producer.connect();
for (const line of readFileSync(0, "utf8").trimEnd().split("\n")) {
  const [key, text] = line.split("\t");
  const { headers, value } = text ? message(new CloudEvent(JSON.parse(text))) : { value: null };
  await producer.send({ topic, acks: -1, messages: [{ key, headers, value }] });
}
await producer.disconnect();
