// Kafka's own Java client for the tests: reads a task as JSON, prints each record it consumed as a line of JSON.
// The consumer assigns its partitions itself and so needs no group coordinator.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Assigned {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        JsonNode task = JSON.readTree(System.in);
        String bootstrap = task.get("bootstrap").asText();
        for (JsonNode send : task.get("produce")) produce(bootstrap, send);
        if (!task.get("consume").isEmpty()) consume(bootstrap, task.get("consume"));
    }

    static void produce(String bootstrap, JsonNode send) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "max.request.size", 4 << 20,
            "compression.type", send.get("codec").asText());
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, bytes, bytes)) {
            List<Future<?>> sent = new ArrayList<>();
            for (JsonNode each : send.get("records")) {
                Long timestamp = each.get("timestamp").isNull() ? null : each.get("timestamp").asLong();
                var record = new ProducerRecord<>(send.get("topic").asText(), send.get("partition").asInt(), timestamp,
                    unhex(each.get("key")), unhex(each.get("value")));
                for (JsonNode pair : each.get("headers")) record.headers().add(pair.get(0).asText(), unhex(pair.get(1)));
                sent.add(producer.send(record));
            }
            for (Future<?> each : sent) each.get();
        }
    }

    static void consume(String bootstrap, JsonNode wants) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", false,
            "auto.offset.reset", "none", "fetch.max.wait.ms", 100);
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = new ArrayList<>();
            long left = 0;
            for (JsonNode want : wants) {
                partitions.add(new TopicPartition(want.get("topic").asText(), want.get("partition").asInt()));
                left += want.get("count").asLong();
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    left--;
                    System.out.println(line(record));
                }
            }
        }
    }

    static String line(ConsumerRecord<byte[], byte[]> record) throws Exception {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("topic", record.topic()).put("partition", record.partition()).put("timestamp", record.timestamp());
        fields.put("key", hex(record.key())).put("value", hex(record.value()));
        var headers = fields.putArray("headers");
        for (Header header : record.headers()) headers.addArray().add(header.key()).add(hex(header.value()));
        return JSON.writeValueAsString(fields);
    }

    static String hex(byte[] data) {
        return data == null ? null : HexFormat.of().formatHex(data);
    }

    static byte[] unhex(JsonNode text) {
        return text.isNull() ? null : HexFormat.of().parseHex(text.asText());
    }
}
