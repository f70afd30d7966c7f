"""The same client for scripts and notebooks, without asyncio: same names, same settings, calls that wait.

Each client runs a loop on a thread of its own, so it also works where another loop already runs (a notebook).

>>> from headrace.client.sync import Consumer, Producer
>>> with Producer() as producer:  # doctest: +SKIP
...     producer.send("orders", b"hello")
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from headrace import client
from headrace.client.admin import ConfigEntry, NewTopic
from headrace.client.consumer import Offsets
from headrace.client.group import RebalanceListener
from headrace.client.group_admin import GroupDescription
from headrace.client.types import (
    ConsumerRecord,
    Headers,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
)
from headrace.cluster.image import Image, Partition, Topic
from headrace.errors import KafkaError
from headrace.v1 import broker_pb2

__all__ = ["Admin", "Consumer", "Producer"]

T = TypeVar("T")


class _LoopThread:
    """A loop on a daemon thread, and ways to run things on it from any other."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """A plain method of an async client, on its own thread."""

        async def work() -> T:
            return function(*args, **named)

        return self.run(work())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Producer:
    """`headrace.client.Producer` with calls that wait. Closed by `with` or `close`.

    >>> with Producer(bootstrap_servers="127.0.0.1:9094") as producer:  # doctest: +SKIP
    ...     producer.send("orders", b"hello", key=b"k")
    """

    def __init__(self, **config: Any) -> None:
        self._producer = client.Producer(**config)
        self._thread: _LoopThread | None = None

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def _on(self) -> _LoopThread:
        if self._thread is None:
            self.start()
        assert self._thread is not None
        return self._thread

    def start(self) -> None:
        """Connects; the first send does it as well."""
        self._thread = _started(self._producer.start, "headrace producer")

    def close(self, timeout: float | None = None) -> None:
        """Sends what waits, and lets go."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(self._producer.close(timeout))
            thread.stop()

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Sends a record and returns where it is."""
        return self.send_nowait(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        ).result()

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> concurrent.futures.Future[RecordMetadata]:
        """Sends a record; the future says what became of it. Order is that of the calls."""
        return self._on.submit(
            self._producer.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        )

    def flush(self) -> None:
        """Returns when everything sent so far was acknowledged or failed."""
        self._on.run(self._producer.flush())

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._on.run(self._producer.partitions_for(topic))


class Consumer:
    """`headrace.client.Consumer` with calls that wait; iterate over it for records.

    >>> with Consumer(group_id="billing") as consumer:  # doctest: +SKIP
    ...     consumer.subscribe(["orders"])
    ...     for record in consumer: print(record.value)
    """

    def __init__(self, **config: Any) -> None:
        self._consumer = client.Consumer(**config)
        self._thread: _LoopThread | None = None

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def _on(self) -> _LoopThread:
        if self._thread is None:
            self.start()
        assert self._thread is not None
        return self._thread

    def start(self) -> None:
        """Connects; the first call does it as well."""
        self._thread = _started(self._consumer.start, "headrace consumer")

    def close(self) -> None:
        """Commits (with auto commit), leaves the group and lets go."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(self._consumer.close())
            thread.stop()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record after record, for ever. A record counts as read when the next one is asked for."""
        records = self._consumer.__aiter__()

        async def following() -> ConsumerRecord:
            return await anext(records)

        while self._thread is not None:
            try:
                yield self._on.run(following())
            except StopAsyncIteration:
                return

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._on.run(self._consumer.partitions_for(topic))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on."""
        self._on.run(self._consumer.assign(partitions))

    def subscribe(
        self, topics: Iterable[str] | str | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Reads these topics together with the group; the listener runs on the client's thread."""
        self._on.run(self._consumer.subscribe(topics, listener))

    def unsubscribe(self) -> None:
        """Leaves the group and reads nothing."""
        self._on.run(self._consumer.unsubscribe())

    def assignment(self) -> set[TopicPartition]:
        """The partitions being read."""
        return self._on.call(self._consumer.assignment)

    def subscription(self) -> set[str]:
        """The topics subscribed to."""
        return self._on.call(self._consumer.subscription)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hands out nothing of these partitions until `resume`."""
        self._on.call(self._consumer.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with partitions that were paused."""
        self._on.call(self._consumer.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._on.call(self._consumer.paused)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record of `partition` is the one at `offset`."""
        self._on.call(self._consumer.seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first record that is kept."""
        self._on.run(self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes after the last record."""
        self._on.run(self._consumer.seek_to_end(*partitions))

    def seek_to_timestamp(self, timestamp: int, *partitions: TopicPartition) -> None:
        """Goes to the first record that is not older than `timestamp`."""
        self._on.run(self._consumer.seek_to_timestamp(timestamp, *partitions))

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record."""
        return self._on.run(self._consumer.position(partition))

    def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The first offset kept in each partition."""
        return self._on.run(self._consumer.beginning_offsets(*partitions))

    def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each partition."""
        return self._on.run(self._consumer.end_offsets(*partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in each partition."""
        return self._on.run(self._consumer.offsets_for_times(times))

    def lag(self, partition: TopicPartition) -> int:
        """How many records are after the position."""
        return self._on.run(self._consumer.lag(partition))

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records that were fetched; an empty list when none came within `timeout` seconds."""
        return self._on.run(self._consumer.poll(timeout, max_records))

    def commit(self, offsets: Offsets | None = None) -> None:
        """Stores how far the group has come."""
        self._on.run(self._consumer.commit(offsets))

    def commit_nowait(
        self, offsets: Offsets | None = None, callback: Callable[[Offsets, BaseException | None], None] | None = None
    ) -> None:
        """The same without waiting; the callback runs on the client's thread."""
        self._on.call(self._consumer.commit_nowait, offsets, callback)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed in these partitions."""
        return self._on.run(self._consumer.committed(*partitions))


class Admin:
    """`headrace.client.Admin` with calls that wait.

    >>> with Admin() as admin:  # doctest: +SKIP
    ...     admin.create_topic("orders", partitions=3)
    """

    def __init__(self, **config: Any) -> None:
        self._admin = client.Admin(**config)
        self._thread: _LoopThread | None = None

    def __enter__(self) -> Admin:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def _on(self) -> _LoopThread:
        if self._thread is None:
            self.start()
        assert self._thread is not None
        return self._thread

    def start(self) -> None:
        """Connects; the first call does it as well."""
        self._thread = _started(self._admin.start, "headrace admin")

    def close(self) -> None:
        """Lets go of every connection."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(self._admin.close())
            thread.stop()

    @property
    def image(self) -> Image:
        """The newest picture of the cluster."""
        return self._on.call(lambda: self._admin.image)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback`, on the client's thread, whenever `image` is another one."""
        self._on.call(self._admin.on_change, callback)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Creates a topic and returns when its partitions have leaders."""
        self._on.run(
            self._admin.create_topic(name, partitions, replication_factor, configs, validate_only=validate_only)
        )

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> dict[str, KafkaError | None]:
        """Creates topics; the answer says for each name why it failed, or None."""
        return self._on.run(self._admin.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Deletes topics with all they hold."""
        return self._on.run(self._admin.delete_topics(names))

    def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Grows a topic to `count` partitions."""
        self._on.run(self._admin.create_partitions(topic, count, validate_only=validate_only))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Names of all topics, sorted."""
        return self._on.run(self._admin.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str] = ()) -> dict[str, Topic]:
        """Topics with leaders, replicas and in-sync replicas."""
        return self._on.run(self._admin.describe_topics(names))

    def describe_configs(self, kind: str, name: str) -> list[ConfigEntry]:
        """Every setting of a topic or a broker."""
        return self._on.run(self._admin.describe_configs(kind, name))

    def alter_configs(
        self,
        kind: str,
        name: str,
        set: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Changes settings of one resource: all of them, or none."""
        self._on.run(self._admin.alter_configs(kind, name, set, delete, append, subtract, validate_only=validate_only))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] = (), *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Makes the preferred replicas leaders."""
        return self._on.run(self._admin.elect_leaders(partitions, unclean=unclean))

    def alter_partition_reassignments(
        self, moves: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Starts moves to other replicas, or cancels them."""
        return self._on.run(self._admin.alter_partition_reassignments(moves))

    def list_partition_reassignments(self) -> dict[TopicPartition, Partition]:
        """The partitions that are moving."""
        return self._on.run(self._admin.list_partition_reassignments())

    def drain_broker(self, broker: int) -> tuple[list[TopicPartition], dict[TopicPartition, KafkaError]]:
        """Moves everything away from a broker: what is moving, and what cannot."""
        return self._on.run(self._admin.drain_broker(broker))

    def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after a time in each partition."""
        return self._on.run(self._admin.list_offsets(times))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Moves the start of logs forward."""
        return self._on.run(self._admin.delete_records(before))

    def list_groups(self, states: Iterable[str] = ()) -> dict[str, str]:
        """Every group with its state."""
        return self._on.run(self._admin.list_groups(states))

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members and what they read."""
        return self._on.run(self._admin.describe_group(group_id))

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Everything a group has committed."""
        return self._on.run(self._admin.list_group_offsets(group_id))

    def alter_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Stores offsets for a group that has no members."""
        self._on.run(self._admin.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what a group has committed in some partitions."""
        self._on.run(self._admin.delete_group_offsets(group_id, partitions))

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Deletes groups without members."""
        return self._on.run(self._admin.delete_groups(group_ids))

    def describe_log_dirs(self, broker: int) -> broker_pb2.DescribeLogDirsResponse:
        """The log directories of a broker with the size of every replica."""
        return self._on.run(self._admin.describe_log_dirs(broker))


def _started(start: Callable[[], Coroutine[Any, Any, None]], name: str) -> _LoopThread:
    """A running thread on which `start` has succeeded."""
    thread = _LoopThread(name)
    try:
        thread.run(start())
    except BaseException:
        thread.stop()
        raise
    return thread
