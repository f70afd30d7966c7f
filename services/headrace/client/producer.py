"""The producer: interceptors, serializers, partitioner, accumulator, and a sender for each broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.client.accumulator import Accumulator, BufferFull, ProducerBatch, Rules
from headrace.client.batch_builder import record_size
from headrace.client.cluster import TOPIC_GRACE, Cluster, Outside, raise_for
from headrace.client.config import CODECS, producer_config
from headrace.client.partitioners import Partitioner, StickyPartitions, partition_for_key
from headrace.client.sender import BrokerSender
from headrace.client.types import Headers, RecordMetadata, TopicPartition
from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import broker_pb2

Serializer = Callable[[Any], bytes | None]


class ProducerInterceptor(Protocol):
    """Sees records on their way out, before they are serialized, and what became of them.

    >>> class Tag:  # doctest: +SKIP
    ...     def on_send(self, topic, key, value, headers):
    ...         return key, value, (*headers, ("app", b"shop"))
    ...     def on_acknowledgement(self, metadata, error): ...
    """

    def on_send(self, topic: str, key: Any, value: Any, headers: Headers) -> tuple[Any, Any, Headers]:
        """May change key, value and headers."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """The record is in the log, or it failed."""
        ...


class Producer:
    """Sends records. Settings are Kafka's names with underscores; idempotence and acks=all are the defaults.

    `key_serializer` and `value_serializer` make bytes (str is encoded as UTF-8 without them). `partitioner` is called
    with topic, key bytes, value bytes and partition count; without it keys are hashed as Java does and records without
    a key fill one partition's batch after the other.

    >>> async with Producer(bootstrap_servers="127.0.0.1:9094") as producer:  # doctest: +SKIP
    ...     await producer.send("orders", b"hello", key=b"customer-7")
    RecordMetadata(topic='orders', partition=2, offset=0, timestamp=1700000000000)
    """

    def __init__(
        self,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        outside: Outside | None = None,
        **config: Any,
    ) -> None:
        self._config = conf = producer_config(config)
        self._cluster = Cluster(conf, outside)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._interceptors = list(interceptors)
        self._acks = -1 if conf["acks"] == "all" else int(conf["acks"])
        self._max_block = conf.seconds("max.block.ms")
        self._max_record = int(conf["max.request.size"])
        rules = Rules(
            batch_size=conf["batch.size"],
            linger=conf.seconds("linger.ms"),
            buffer_memory=conf["buffer.memory"],
            max_request_size=conf["max.request.size"],
            codec=CODECS.index(conf["compression.type"]),
            retries=conf["retries"],
            delivery_timeout=conf.seconds("delivery.timeout.ms"),
            backoff=self._cluster.backoff.pause,
        )
        self._accumulator = Accumulator(rules)
        self._sticky = StickyPartitions(
            conf["batch.size"], self._cluster.chance, conf["partitioner.adaptive.partitioning.enable"]
        )
        self._senders: dict[int, BrokerSender] = {}
        self._partition_names: dict[tuple[str, int], TopicPartition] = {}
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._wake_scheduled = False

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects and, with idempotence, gets a producer id.

        >>> await producer.start()  # doctest: +SKIP
        """
        await self._cluster.start()
        self._loop = asyncio.get_running_loop()
        self._cluster.follower.listen(self._on_image)
        if self._config["enable.idempotence"]:

            async def attempt(left: float) -> int:
                stub = self._cluster.broker(self._cluster.any_broker())
                request = broker_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
                response = await self._cluster.call(stub.InitProducerId, request, left)
                raise_for(response.error)
                return int(response.producer_id)

            try:
                self._accumulator.producer_id = await self._cluster.until_done(attempt, self._max_block)
            except BaseException:
                await self._cluster.stop()
                raise

    async def close(self, timeout: float | None = None) -> None:
        """Sends what is waiting (for at most `timeout` seconds), then lets go; what is left then fails.

        >>> await producer.close()  # doctest: +SKIP
        """
        if self._closed:
            return
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            self._closed = True
            self._accumulator.abandon(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed"))
            self._released([])
            for sender in self._senders.values():
                await sender.close()
            await self._cluster.stop()

    # --- sending

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Sends a record and returns where it is, once the acknowledgements asked for are there; else raises.

        For many records use `send_nowait`, or run several of these at a time: one after the other waits a round trip
        each.

        >>> await producer.send("orders", b"hello", key=b"k")  # doctest: +SKIP
        RecordMetadata(topic='orders', partition=0, offset=17, timestamp=1700000000000)
        """
        if topic not in self._cluster.image.topics:
            await self._cluster.topic(topic, min(TOPIC_GRACE, self._max_block))
        while True:
            try:
                future = self.send_nowait(
                    topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
                )
                break
            except BufferFull as full:
                await self.room(full)
        return await future

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Puts a record into the buffer and returns at once, with a future for what becomes of it.

        `BufferFull` when there is no room: `await producer.room()` and send again. A topic that was made just now
        may not be known here yet: `await producer.partitions_for(topic)` waits for it.

        >>> future = producer.send_nowait("orders", b"hello")  # doctest: +SKIP
        """
        loop = self._loop
        if loop is None or self._closed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the producer is not started, or already closed")
        if self._interceptors:
            for interceptor in self._interceptors:
                key, value, headers = interceptor.on_send(topic, key, value, headers)
        key_bytes = self._serialize(key, self._key_serializer)
        value_bytes = self._serialize(value, self._value_serializer)
        size = 36 + (len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0)
        if headers:
            size = record_size(key_bytes, value_bytes, headers)
        if size > self._max_record:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes: max_request_size is {self._max_record}"
            )
        where = self._place(topic, key_bytes, value_bytes, size, partition)
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        news = self._accumulator.append(
            where,
            self._cluster.clock.time_ms() if timestamp is None else timestamp,
            key_bytes,
            value_bytes,
            headers,
            size,
            future,
            loop.time(),
        )
        if self._interceptors:
            future.add_done_callback(self._acknowledged)
        if news:
            self._wake(where)
        return future

    async def room(self, full: BufferFull | None = None) -> None:
        """Returns when the buffer has room again; raises after `max.block.ms`.

        >>> await producer.room()  # doctest: +SKIP
        """
        if full is None and self._accumulator.memory_used < self._accumulator.rules.buffer_memory // 2:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_room.append(waiting)
        try:
            async with asyncio.timeout(self._max_block):
                await waiting
        except TimeoutError:
            raise full or BufferFull(0, self._accumulator.rules.buffer_memory) from None

    async def flush(self) -> None:
        """Returns when everything sent so far was acknowledged or failed, without waiting for `linger.ms`.

        >>> await producer.flush()  # doctest: +SKIP
        """
        batches = list(self._accumulator.batches())
        futures = [batch.waiting[-1][0] for batch in batches if batch.waiting]
        if not futures:
            return
        self._accumulator.flushing += 1
        try:
            self._wake_all()
            await asyncio.wait(futures)
        finally:
            self._accumulator.flushing -= 1

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic.

        >>> await producer.partitions_for("orders")  # doctest: +SKIP
        """
        found = await self._cluster.topic(topic, min(TOPIC_GRACE, self._max_block))
        return [TopicPartition(topic, index) for index in range(len(found.partitions))]

    # --- inside

    def _serialize(self, given: Any, serializer: Serializer | None) -> bytes | None:
        if serializer is not None:
            given = serializer(given)
        if given is None or type(given) is bytes:
            return given
        if isinstance(given, str):
            return given.encode()
        if isinstance(given, bytes | bytearray | memoryview):
            return bytes(given)
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"a {type(given).__name__} is neither bytes nor str: give a serializer for it"
        )

    def _place(
        self, topic: str, key: bytes | None, value: bytes | None, size: int, partition: int | None
    ) -> TopicPartition:
        found = self._cluster.image.topics.get(topic)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {topic}; for one that was just created, await partitions_for() first",
            )
        count = len(found.partitions)
        if partition is None:
            if self._partitioner is not None:
                partition = self._partitioner(topic, key, value, count)
            elif key is not None:
                partition = partition_for_key(key, count)
            else:
                partition = self._sticky.choose(topic, size, count, lambda: self._load(topic))
        if not 0 <= partition < count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, not {partition}"
            )
        where = self._partition_names.get((topic, partition))
        if where is None:
            where = self._partition_names[topic, partition] = TopicPartition(topic, partition)
        return where

    def _load(self, topic: str) -> dict[int, int]:
        """How many batches wait in each partition that has a leader."""
        partitions = self._cluster.image.topics[topic].partitions
        waiting = self._accumulator.waiting_batches
        return {i: waiting(TopicPartition(topic, i)) for i, state in enumerate(partitions) if state.leader >= 0}

    def _acknowledged(self, future: asyncio.Future[RecordMetadata]) -> None:
        error = None if future.cancelled() else future.exception()
        metadata = future.result() if error is None and not future.cancelled() else None
        for interceptor in self._interceptors:
            interceptor.on_acknowledgement(metadata, error)

    def _wake(self, where: TopicPartition) -> None:
        leader = self._cluster.leader(*where)
        if leader is None:
            # Nobody leads it now: whoever does next is woken by the picture that says so, and the timer expires it.
            self._watch_orphans()
            return
        node = leader[0].id
        sender = self._senders.get(node)
        if sender is None:
            sender = self._senders[node] = BrokerSender(
                node,
                self._cluster,
                self._accumulator,
                acks=self._acks,
                request_timeout=self._config.seconds("request.timeout.ms"),
                max_in_flight=self._config["max.in.flight.requests.per.connection"],
                released=self._released,
            )
        sender.wake()

    def _wake_all(self) -> None:
        for partition in self._accumulator.active():
            self._wake(partition)

    def _watch_orphans(self) -> None:
        """Batches of a partition without a leader belong to no sender: look after them until someone leads."""
        if self._wake_scheduled or self._loop is None:
            return
        self._wake_scheduled = True
        self._loop.call_later(0.1, self._look_after)

    def _look_after(self) -> None:
        self._wake_scheduled = False
        if not self._closed and self._loop is not None:
            self._released(self._accumulator.expire(self._loop.time()))
            self._wake_all()

    def _on_image(self, old: Image, new: Image) -> None:
        self._wake_all()

    def _released(self, batches: list[ProducerBatch]) -> None:
        for batch in batches:
            queue = self._accumulator.queues.get(batch.partition)
            if queue is not None and queue.retries:
                self._wake(batch.partition)
        while self._waiting_for_room:
            waiting = self._waiting_for_room.popleft()
            if not waiting.done():
                waiting.set_result(None)
