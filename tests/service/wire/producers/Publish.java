// Publishes lines of standard input with Apache Kafka's own client, as docs/production.md asks for:
// `java Publish.java SERVERS TOPIC`. A line is a key, a tab and a value.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Publish {
  public static void main(String[] arguments) throws Exception {
    Map<String, Object> settings =
        Map.of("bootstrap.servers", arguments[0], "acks", "all", "enable.idempotence", true, "max.block.ms", 20000);
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String[] parts = line.split("\t", 2);
        producer.send(new ProducerRecord<>(arguments[1], parts[0], parts[1])).get();
      }
    }
  }
}
