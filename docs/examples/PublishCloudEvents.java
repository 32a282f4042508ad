// Publishes CloudEvents with the SDK for Java: `java -cp … PublishCloudEvents.java SERVERS TOPIC [binary]`.
// A line of standard input is a message key, a tab and an event in JSON. Without an event it is a tombstone.
// Needs io.cloudevents:cloudevents-kafka, io.cloudevents:cloudevents-json-jackson and org.apache.kafka:kafka-clients.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.core.message.Encoding;
import io.cloudevents.jackson.JsonCloudEventData;
import io.cloudevents.jackson.JsonFormat;
import io.cloudevents.kafka.CloudEventSerializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.OffsetDateTime;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class PublishCloudEvents {
  public static void main(String[] arguments) throws Exception {
    Map<String, Object> settings =
        Map.of("bootstrap.servers", arguments[0], "acks", "all", "enable.idempotence", true, "max.block.ms", 20000);
    var serializer = new CloudEventSerializer();
    serializer.configure(
        arguments.length > 2 && arguments[2].equals("binary")
            ? Map.of(CloudEventSerializer.ENCODING_CONFIG, Encoding.BINARY)
            : Map.of(
                CloudEventSerializer.ENCODING_CONFIG, Encoding.STRUCTURED,
                CloudEventSerializer.EVENT_FORMAT_CONFIG, JsonFormat.CONTENT_TYPE),
        false);
    var json = new ObjectMapper();
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    // The serializer of events cannot write a null value, so tombstones have a producer of their own. Two producers keep no
    // order between them: wait for each record, as here.
    try (var events = new KafkaProducer<String, CloudEvent>(settings, new StringSerializer(), serializer);
        var tombstones = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String[] parts = line.split("\t", 2);
        if (parts[1].isEmpty()) {
          tombstones.send(new ProducerRecord<>(arguments[1], parts[0], null)).get();
          continue;
        }
        JsonNode event = json.readTree(parts[1]);
        events.send(new ProducerRecord<>(arguments[1], parts[0],
            CloudEventBuilder.v1()
                .withId(event.get("id").asText())
                .withSource(URI.create(event.get("source").asText()))
                .withType(event.get("type").asText())
                .withTime(OffsetDateTime.parse(event.get("time").asText()))
                .withData("application/json", JsonCloudEventData.wrap(event.get("data")))
                .build())).get();
      }
    }
  }
}
