"""Numbered records with times of their own: `fill.py BOOTSTRAP TOPIC COUNT` prints what was acknowledged, as JSON.

Record n is a millisecond younger than the one before, but the last one is hours younger: it closes every window.
Partitions get them in turn, so that all of them come to the same time together. The checksum is the sum of every
record's CRC-32, which is the same in whatever order they are read.
"""

from __future__ import annotations

import json
import sys
import zlib

from confluent_kafka import KafkaError, Message, Producer

BEGIN = 1_769_860_800_000
"""2026-01-31 12:00 UTC."""
KEYS = 20
LAST_AFTER = 7_200_000


def fill(bootstrap: str, topic: str, count: int) -> dict[str, object]:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 20},
    )
    partitions = len(producer.list_topics(topic, timeout=60).topics[topic].partitions)
    acked = checksum = 0
    failed: set[str] = set()

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal acked
        if error is None:
            acked += 1
        else:
            failed.add(error.name())

    for n in range(count):
        key, value = b"key-%d" % (n % KEYS), b"record %d of %d" % (n, count)
        checksum += zlib.crc32(key + b"=" + value)
        at = BEGIN + (n if n < count - 1 else LAST_AFTER)
        while True:
            try:
                producer.produce(topic, value, key, partition=n % partitions, timestamp=at, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if n % 1000 == 0:
            producer.poll(0)
    producer.flush(120)
    return {"acked": acked, "checksum": checksum, "failed": sorted(failed)}


if __name__ == "__main__":
    print(json.dumps(fill(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)  # noqa: T201 - its output
