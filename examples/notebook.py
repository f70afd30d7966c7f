"""The client without asyncio, for scripts and notebooks: the same names, and calls that wait."""

# ruff: noqa: T201
from __future__ import annotations

import json
import os
import uuid

from headrace.client.sync import Admin, Consumer, Producer

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9094")
topic = f"readings-{uuid.uuid4().hex[:6]}"

with Admin(bootstrap_servers=SERVERS) as admin:
    admin.create_topic(topic, partitions=1)

with Producer(bootstrap_servers=SERVERS, value_serializer=lambda value: json.dumps(value).encode()) as producer:
    for celsius in (19.5, 20.0, 21.5):
        producer.send(topic, {"celsius": celsius}, key="kitchen")

with Consumer(bootstrap_servers=SERVERS, value_deserializer=json.loads) as consumer:
    consumer.assign(consumer.partitions_for(topic))
    consumer.seek_to_beginning()
    readings = []
    while len(readings) < 3:
        readings += [record.value["celsius"] for record in consumer.poll()]

print("mean", sum(readings) / len(readings))
