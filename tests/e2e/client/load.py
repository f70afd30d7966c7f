"""Load on a cluster, with a ledger: `run` produces and consumes until its input ends, `check` reads it all again.

`run BOOTSTRAP TOPIC RATE LEDGER` writes what was acknowledged to LEDGER (a line each: number, partition, offset) and
prints a JSON summary. A member of a group reads along, so that a coordinator's failure would be seen.
`check BOOTSTRAP TOPIC LEDGER` reads every partition from its start and prints what is missing, doubled or changed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

GROUP_CATCHES_UP_SECONDS = 180.0
READ_SECONDS = 240.0


class Load:
    """Numbered records at a steady rate, and one group member that reads them."""

    def __init__(self, bootstrap: str, topic: str, rate: float, ledger: str) -> None:
        self._topic = topic
        self._rate = rate
        self._ledger = open(ledger, "w", buffering=1)  # noqa: SIM115 - closed at the end of run()
        self._stop = threading.Event()
        self.acked = 0
        self.slowest = 0.0
        self.failed: Counter[str] = Counter()
        self.group: list[str] = []
        """What happened to the group member, for whoever asks why it fell behind."""
        self.wanted: set[tuple[int, int]] = set()
        self.seen: set[tuple[int, int]] = set()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 120_000,
                "request.timeout.ms": 10_000,
                "retry.backoff.max.ms": 500,
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 10_000,
                "error_cb": lambda error: self._note(error.str()),
            }
        )

    def run(self) -> dict[str, object]:
        threading.Thread(target=self._wait_for_end_of_input, daemon=True).start()
        reader = threading.Thread(target=self._read)
        reader.start()
        sent = self._produce()
        left = self._producer.flush(130)
        self._stop.set()
        reader.join()
        self._ledger.close()
        return {
            "sent": sent,
            "acked": self.acked,
            "unanswered": left,
            "failed": dict(self.failed),
            "slowest": round(self.slowest, 2),
            "unseen_by_group": len(self.wanted - self.seen),
            "group": self.group[-40:],
        }

    def _wait_for_end_of_input(self) -> None:
        sys.stdin.read()
        self._stop.set()

    def _produce(self) -> int:
        number = 0
        begin = time.monotonic()
        while not self._stop.is_set():
            sent_at = time.monotonic()
            try:
                self._producer.produce(self._topic, str(number).encode(), on_delivery=self._delivery(number, sent_at))
                number += 1
            except BufferError:
                self._producer.poll(0.5)
            self._producer.poll(0)
            ahead = begin + number / self._rate - time.monotonic()
            if ahead > 0:
                self._producer.poll(ahead)
        return number

    def _delivery(self, number: int, sent_at: float):  # type: ignore[no-untyped-def]
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed[error.name()] += 1
                return
            self.acked += 1
            self.slowest = max(self.slowest, time.monotonic() - sent_at)
            self.wanted.add((message.partition(), message.offset()))
            self._ledger.write(f"{number} {message.partition()} {message.offset()}\n")

        return delivered

    def _note(self, text: str) -> None:
        self.group.append(f"{time.strftime('%H:%M:%S')} {len(self.seen)} read: {text}")

    def _read(self) -> None:
        self._consumer.subscribe(
            [self._topic],
            on_assign=lambda _, partitions: self._note(f"assigned {len(partitions)}"),
            on_revoke=lambda _, partitions: self._note(f"revoked {len(partitions)}"),
            on_lost=lambda _, partitions: self._note(f"lost {len(partitions)}"),
        )
        deadline = None
        while True:
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                self.seen.add((message.partition(), message.offset()))
            elif message is not None:
                self._note(message.error().str())
            if self._stop.is_set() and not len(self._producer):
                deadline = deadline or time.monotonic() + GROUP_CATCHES_UP_SECONDS
                if self.wanted <= self.seen or time.monotonic() > deadline:
                    break
        self._consumer.close()


def end_of(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """Asks again when the leader has just moved: librdkafka itself asks the broker that its metadata named, only."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=30)[1])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            consumer.list_topics(place.topic, timeout=30)


def check(bootstrap: str, topic: str, ledger: str) -> dict[str, object]:
    """Compares the topic with the ledger."""
    with open(ledger) as file:
        acked = [tuple(map(int, line.split())) for line in file if line.endswith("\n")]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False})
    deadline = time.monotonic() + READ_SECONDS
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    held: dict[tuple[int, int], bytes] = {}
    ends = {p: end_of(consumer, TopicPartition(topic, p), deadline) for p in partitions}
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    waiting = {p for p, end in ends.items() if end > 0}
    while waiting and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        held[message.partition(), message.offset()] = message.value()
        if message.offset() + 1 >= ends[message.partition()]:
            waiting.discard(message.partition())
    consumer.close()
    missing = [n for n, p, o in acked if (p, o) not in held]
    changed = [n for n, p, o in acked if (p, o) in held and held[p, o] != str(n).encode()]
    doubled = [value.decode() for value, times in Counter(held.values()).items() if times > 1]
    return {
        "acked": len(acked),
        "read": len(held),
        "unread_partitions": sorted(waiting),
        "missing": missing[:20],
        "changed": changed[:20],
        "doubled": doubled[:20],
    }


if __name__ == "__main__":
    mode, bootstrap, topic, *rest = sys.argv[1:]
    if mode == "run":
        result = Load(bootstrap, topic, float(rest[0]), rest[1]).run()
    else:
        result = check(bootstrap, topic, rest[0])
    print(json.dumps(result), flush=True)  # noqa: T201 - its output
