// One run of Debezium's engine on a slot: its events are made, as typed values with their schemas, counted by operation
// and dropped. Prints one JSON line with what it cost. Seconds run from the start of the connector's task to the last event.

import io.debezium.embedded.Connect;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.FileInputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

public class CountEvents {
    private static final Map<String, Long> counted = new TreeMap<>();
    private static volatile long began;
    private static volatile long ended;
    private static volatile String failure = "";

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            properties.load(file);
        }
        long wanted = Long.parseLong(arguments[1]);
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
                DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                        .using(properties)
                        .using(new DebeziumEngine.ConnectorCallback() {
                            @Override
                            public void taskStarted() {
                                began = System.nanoTime();
                            }
                        })
                        .using((success, message, error) -> {
                            failure = success ? "" : String.valueOf(message) + " " + String.valueOf(error);
                            done.countDown();
                        })
                        .notifying((List<RecordChangeEvent<SourceRecord>> events,
                                DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                            for (RecordChangeEvent<SourceRecord> event : events) {
                                count(event.record());
                                committer.markProcessed(event);
                            }
                            committer.markBatchFinished();
                            if (counted.values().stream().mapToLong(Long::longValue).sum() >= wanted) {
                                ended = System.nanoTime();
                                done.countDown();
                            }
                        })
                        .build();
        ExecutorService executor = Executors.newSingleThreadExecutor();
        executor.execute(engine);
        boolean inTime = done.await(800, TimeUnit.SECONDS);
        long cpu = ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
        if (!inTime || ended == 0) {
            System.err.println("the engine ended before all events came: " + counted + " " + failure);
            System.exit(1);
        }
        System.out.printf("{\"seconds\": %f, \"cpu_s\": %f, \"peak_rss_mb\": %f, \"counted\": {%s}}%n",
                (ended - began) / 1e9, cpu / 1e9, peak(), shown());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void count(SourceRecord record) {
        if (record.value() instanceof Struct value && value.schema().field("op") != null) {
            counted.merge(value.getString("op"), 1L, Long::sum);
        }
    }

    private static double peak() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM")) {
                return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
            }
        }
        return 0;
    }

    private static String shown() {
        StringBuilder text = new StringBuilder();
        counted.forEach((op, number) -> text.append(text.isEmpty() ? "" : ", ").append('"').append(op).append("\": ").append(number));
        return text.toString();
    }
}
