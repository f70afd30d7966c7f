"""What clients do: produce with every acks level, read, create, move and delete topics, change settings, elect."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from random import Random
from typing import Any

import grpc
from tests.sim.checker import Checker, Sent
from tests.sim.loop import Process
from tests.sim.wire import SimWireClient
from tests.sim.world import SimClock, World

from headrace.cluster.image import NO_LEADER, Node, Partition
from headrace.cluster.topics import is_internal
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches, valid_crc
from headrace.records.errors import CorruptMessage
from headrace.records.record import Record, build, iter_records
from headrace.rpc import kafka_error_of, request_header
from headrace.rpc.controller_client import ControllerClient
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import broker_pb2_grpc
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb
from headrace.wire import messages
from headrace.wire.fetch import HIGHEST, FetchRequest, RequestedPartition
from headrace.wire.fetch_client import parse_response, write_request
from headrace.wire.protocol import ApiKey

PRODUCE_VERSION = 13
REQUEST_SECONDS = 4.0
DELIVERY_SECONDS = 25.0
CHANGES = {
    "segment.bytes": ["600", "2000", "1073741824"],
    "flush.ms": ["1000", "9223372036854775807"],
    "index.interval.bytes": ["0", "200", "4096"],
    "min.insync.replicas": ["1", "2", "2", "3"],
}
"""What an admin changes of a topic under load."""
_NEW_ID = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
)


class Client(ABC):
    """A client process with the picture of the cluster and a connection to each broker it talks to."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(world.loop, name, name)
        self.chance = world.chance(name)
        self.clock = SimClock(world.loop)
        self._connections: dict[int, tuple[Node, SimWireClient]] = {}

    def start(self) -> None:
        self.process.spawn(self._main(), name=self.name)

    async def _main(self) -> None:
        self.channels = self.world.rpc.channels()
        self.follower = self.world.follower()
        self.controller = ControllerClient(self.follower, self.channels, self.clock)
        try:
            await self.run()
        except Exception as error:
            self.world.violated(f"{self.name} failed: {error!r}")
            raise

    @abstractmethod
    async def run(self) -> None:
        """What it does all day."""

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def leader(self, topic: str, index: int) -> tuple[Node, Partition, uuid.UUID] | None:
        found = self.follower.image.topics.get(topic)
        if found is None or index >= len(found.partitions):
            return None
        state = found.partitions[index]
        node = self.follower.image.brokers.get(state.leader) if state.leader != NO_LEADER else None
        return (node, state, found.id) if node is not None else None

    async def wire(self, node: Node) -> SimWireClient:
        held = self._connections.get(node.id)
        if held is not None and held[0] == node and not held[1].closed:
            return held[1]
        assert node.kafka is not None
        client = await SimWireClient.connect(self.world.network, node.kafka.host, node.kafka.port, REQUEST_SECONDS)
        self._connections[node.id] = (node, client)
        return client

    def stub(self, node: Node) -> Any:
        return broker_pb2_grpc.BrokerStub(self.channels.get(str(node.grpc)))

    def header(self) -> pb.RequestHeader:
        return request_header(self.name)


class Unknown(Exception):
    """Whether it happened is not known: no answer came."""


class Producer(Client):
    """One batch at a time, repeated until it is acknowledged or its delivery time is over."""

    def __init__(
        self, world: World, checker: Checker, name: str, topic: str, *, acks: int, idempotent: bool, native: bool
    ) -> None:
        super().__init__(world, name)
        self.checker = checker
        self.topic = topic
        self.acks = acks
        self.idempotent = idempotent
        self.native = native
        self.numbers = itertools.count()
        self.delivered = 0
        self.working = True
        self.busy = False
        self._producer_id = -1
        self._sequences: dict[int, int] = {}
        self._life = 0

    async def run(self) -> None:
        while self.working:
            await self.pause(self.chance.expovariate(0.5))
            found = self.follower.image.topics.get(self.topic)
            if found is not None and self.working:
                self.busy = True
                await self.deliver(self.chance.randrange(len(found.partitions)), self.chance.randint(1, 3))
                self.busy = False

    async def deliver(self, index: int, count: int) -> bool:
        """True once it is acknowledged."""
        deadline = self.clock.monotonic() + DELIVERY_SECONDS
        if self.idempotent and self._producer_id < 0 and not await self._new_id(deadline):
            return False
        found = self.follower.image.topics.get(self.topic)
        if found is None:
            return False
        topic_id = found.id
        values = []
        for _ in range(count):
            number = next(self.numbers)
            value = f"{self.name}/{self._life}:{number}".encode()
            self.checker.sent[value] = Sent(f"{self.name}/{self._life}", number, self.idempotent)
            values.append(value)
        backoff = 0.05
        while self.clock.monotonic() < deadline:
            try:
                base = await self._send(topic_id, index, values)
            except (Unknown, KafkaError) as error:
                self.world.trace("not produced", self.name, str(error)[:60])
                if isinstance(error, KafkaError) and error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    self._sequences[index] = self._sequences.get(index, 0) + count
                    self.checker.acknowledged((topic_id, index), -1, values)
                    return True
                if isinstance(error, KafkaError) and self.idempotent and error.code in _NEW_ID:
                    break
                if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_ID and self._gone(topic_id):
                    break
                await self.pause(backoff * self.chance.uniform(0.5, 1.5))
                backoff = min(2 * backoff, 1.0)
                continue
            self.delivered += 1
            self._sequences[index] = self._sequences.get(index, 0) + count
            if self.acks == -1 and base >= 0:
                self.checker.acknowledged((topic_id, index), base, values)
            self.world.trace("produced", self.name, index, base, count)
            return True
        # What became of it is unknown: whatever comes next must not be taken for its continuation.
        self._producer_id = -1
        return False

    def _gone(self, topic_id: uuid.UUID) -> bool:
        found = self.follower.image.topics.get(self.topic)
        return found is None or found.id != topic_id

    async def _new_id(self, deadline: float) -> bool:
        while self.clock.monotonic() < deadline:
            nodes = sorted(self.follower.image.brokers.values(), key=lambda node: node.id)
            if nodes:
                node = self.chance.choice(nodes)
                try:
                    answer = await self.stub(node).InitProducerId(
                        bpb.InitProducerIdRequest(header=self.header(), producer_id=-1, producer_epoch=-1),
                        timeout=REQUEST_SECONDS,
                    )
                    if not answer.error.code:
                        self._producer_id = answer.producer_id
                        self._sequences.clear()
                        self._life += 1
                        self.world.note(f"{self.name} has producer id {self._producer_id}")
                        return True
                except grpc.aio.AioRpcError:
                    pass
            await self.pause(0.3)
        return False

    async def _send(self, topic_id: uuid.UUID, index: int, values: list[bytes]) -> int:
        found = self.leader(self.topic, index)
        if found is None or found[2] != topic_id:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads it")
        now = self.clock.time_ms()
        fields = {}
        if self.idempotent:
            fields = {
                "producer_id": self._producer_id,
                "producer_epoch": 0,
                "base_sequence": self._sequences.get(index, 0),
            }
        batch = bytes(build([Record(n, now, None, value) for n, value in enumerate(values)], **fields))
        try:
            send = self._send_native if self.native else self._send_wire
            return await send(found[0], topic_id, index, batch)
        except (OSError, TimeoutError) as error:
            raise Unknown(str(error)) from None

    async def _send_native(self, node: Node, topic_id: uuid.UUID, index: int, batch: bytes) -> int:
        request = bpb.ProduceRequest(header=self.header(), acks=self.acks, timeout_ms=int(REQUEST_SECONDS * 900))
        part = request.partitions.add(records=batch)
        part.partition.CopyFrom(pb.TopicPartition(topic=self.topic, topic_id=topic_id.bytes, partition=index))
        try:
            answer = await self.stub(node).Produce(request, timeout=REQUEST_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise Unknown(str(kafka_error_of(error))) from None
        result = answer.partitions[0]
        if result.error.code:
            raise KafkaError(ErrorCode(result.error.code), result.error.message)
        return int(result.base_offset)

    async def _send_wire(self, node: Node, topic_id: uuid.UUID, index: int, batch: bytes) -> int:
        body = messages.encode(
            ApiKey.PRODUCE,
            PRODUCE_VERSION,
            {
                "transactional_id": None,
                "acks": self.acks,
                "timeout": int(REQUEST_SECONDS * 900),
                "topic_data": [{"topic_id": topic_id, "partition_data": [{"index": index, "records": batch}]}],
            },
            "request",
        )
        connection = await self.wire(node)
        answer = await connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, [body], answered=self.acks != 0)
        if self.acks == 0:
            return -1
        response = messages.decode(ApiKey.PRODUCE, PRODUCE_VERSION, answer, "response")
        result = response.responses[0].partition_responses[0]
        if result.error_code:
            raise KafkaError(ErrorCode(int(result.error_code)), result.error_message or "")
        return int(result.base_offset)


class Consumer(Client):
    """Reads every partition of a topic from the beginning, each where its leader is."""

    def __init__(self, world: World, checker: Checker, name: str, topic: str, number: int) -> None:
        super().__init__(world, name)
        self.checker = checker
        self.topic = topic
        self.number = number
        self.positions: dict[tuple[uuid.UUID, int], int] = {}
        self.working = True

    async def run(self) -> None:
        while self.working:
            found = self.follower.image.topics.get(self.topic)
            if found is None:
                await self.pause(0.5)
                continue
            by_leader: dict[int, list[int]] = {}
            for index in range(len(found.partitions)):
                where = self.leader(self.topic, index)
                if where is not None:
                    by_leader.setdefault(where[0].id, []).append(index)
            if not by_leader:
                await self.pause(0.3)
                continue
            leader = self.chance.choice(sorted(by_leader))
            try:
                await self._fetch(found.id, leader, by_leader[leader])
            except (OSError, TimeoutError, KafkaError) as error:
                self.world.trace("not read", self.name, str(error)[:60])
                await self.pause(0.5)

    async def _fetch(self, topic_id: uuid.UUID, leader: int, indexes: list[int]) -> None:
        node = self.follower.image.brokers[leader]
        asked = {}
        for index in indexes:
            where = self.leader(self.topic, index)
            if where is not None and where[0].id == leader:
                position = self.positions.get((topic_id, index), 0)
                asked[index] = RequestedPartition(topic_id, index, position, 1 << 20, where[1].leader_epoch)
        request = FetchRequest(
            max_wait_ms=3000,
            max_bytes=1 << 20,
            partitions=list(asked.values()),
        )
        connection = await self.wire(node)
        body = await connection.send(ApiKey.FETCH, HIGHEST, [write_request(HIGHEST, request)])
        response = parse_response(HIGHEST, body)
        for result in response.partitions:
            self._take(topic_id, leader, asked[result.partition], result)
        if any(result.error_code for result in response.partitions):
            await self.pause(0.5)

    def _take(self, topic_id: uuid.UUID, broker: int, asked: RequestedPartition, result: Any) -> None:
        key = (topic_id, result.partition)
        if result.error_code:
            if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.checker.out_of_range(key, asked.fetch_offset, f"broker {broker}")
                self.positions[key] = 0
            return
        self.checker.high_watermark(self.number, broker, key, asked.current_leader_epoch, result.high_watermark)
        data = bytes(result.records or b"")
        position = asked.fetch_offset
        try:
            found = batches(data) if data else []
        except CorruptMessage:
            found = []
        for batch in found:
            if not valid_crc(data, batch):
                break  # as every client of Kafka's does: what is damaged is not read
            for record in iter_records(data, batch):
                if record.offset < position:
                    continue
                if record.offset != position:
                    self.checker.gap(key, position, record.offset)
                if record.offset >= result.high_watermark:
                    self.world.violated(f"{self.name} read offset {record.offset} past {result.high_watermark}")
                self.checker.read(key, record.offset, record.value or b"")
                position = record.offset + 1
        self.positions[key] = position


class Admin(Client):
    """Creates the topics, and then changes this and that."""

    def __init__(self, world: World, topics: dict[str, dict[str, Any]]) -> None:
        super().__init__(world, "admin")
        self.topics = topics
        self.created = False
        self.working = True
        self._temporary = itertools.count()

    async def run(self) -> None:
        for name, wanted in self.topics.items():
            await self.create(name, **wanted)
        self.created = True
        while self.working:
            await self.pause(self.chance.expovariate(0.15))
            if not self.working:
                return
            kind = self.chance.choice(["topic", "config", "election", "elections", "move", "move"])
            try:
                await getattr(self, f"_{kind}")()
            except KafkaError as error:
                self.world.note(f"admin: {kind}: {error.code.name}")

    async def create(self, name: str, partitions: int, factor: int, **configs: str) -> None:
        new = cpb.CreateTopicsRequest.NewTopic(name=name, partitions=partitions, replication_factor=factor)
        new.configs.update({key.replace("_", "."): value for key, value in configs.items()})
        for _ in range(60):
            try:
                request = cpb.CreateTopicsRequest(header=self.header(), topics=[new], timeout_ms=3_000)
                answer = await self.controller.call(lambda c: c.CreateTopics, request, 8.0)
                code = answer.topics[0].error.code
                if code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    self.world.note(f"admin: topic {name} with {partitions} partitions, factor {factor}, {configs}")
                    return
            except KafkaError:
                pass
            await self.pause(0.5)

    async def rescue(self, checker: Checker) -> None:
        """What a person does in the end: asks of every topic again what it was made for, and when the last replica in
        sync lost its disk, lets another one lead, records or not."""
        while True:
            await self.pause(0.5)
            for topic, wanted in self.topics.items():
                if checker.min_insync_replicas(topic) != wanted["min_insync_replicas"]:
                    with suppress(KafkaError):
                        await self._set(topic, "min.insync.replicas", wanted["min_insync_replicas"])
            await self.pause(1.5)
            names = {topic_id: name for name, (topic_id, _) in checker.topics().items()}
            for (topic_id, index), state in checker.states().items():
                if (
                    state.leader == NO_LEADER
                    and not state.isr
                    and not state.elr
                    and checker.of((topic_id, index)).excused
                ):
                    partition = pb.TopicPartition(topic=names[topic_id], partition=index)
                    request = cpb.ElectLeadersRequest(header=self.header(), partitions=[partition], unclean=True)
                    with suppress(KafkaError):
                        await self.controller.call(lambda c: c.ElectLeaders, request, 8.0)

    async def _topic(self) -> None:
        name = f"temporary-{next(self._temporary) % 2}"
        await self.create(name, self.chance.randint(1, 2), self.chance.randint(1, len(self.world.brokers)))
        await self.pause(self.chance.uniform(0.1, 4.0))
        request = cpb.DeleteTopicsRequest(
            header=self.header(), topics=[pb.TopicPartition(topic=name)], timeout_ms=2_000
        )
        await self.controller.call(lambda c: c.DeleteTopics, request, 8.0)
        self.world.note(f"admin: topic {name} deleted")

    async def _config(self) -> None:
        topic = self.chance.choice(sorted(self.topics))
        name = self.chance.choice(sorted(CHANGES))
        await self._set(topic, name, self.chance.choice(CHANGES[name]))

    async def _set(self, topic: str, name: str, value: str) -> None:
        alteration = cpb.AlterConfigsRequest.Alteration(
            resource=pb.ConfigResource(type=pb.CONFIG_RESOURCE_TOPIC, name=topic),
            operations=[cpb.AlterConfigsRequest.Operation(name=name, kind=cpb.AlterConfigsRequest.SET, value=value)],
        )
        request = cpb.AlterConfigsRequest(header=self.header(), alterations=[alteration])
        await self.controller.call(lambda c: c.AlterConfigs, request, 8.0)
        self.world.note(f"admin: {topic} {name}={value}")

    async def _move(self) -> None:
        """A partition moves to other brokers, gets more or fewer replicas, or stays where it is after all."""
        image = self.follower.image
        topics = sorted(t for t in image.topics if t in self.topics or is_internal(t))
        if not topics:
            return  # the news of the first one is still on its way
        topic = self.chance.choice(topics)
        index = self.chance.randrange(len(image.topics[topic].partitions))
        brokers = sorted(image.brokers)
        least = int(self.topics.get(topic, {}).get("min_insync_replicas", 2))
        if len(brokers) < least:
            return
        replicas = self.chance.sample(brokers, self.chance.randint(least, len(brokers)))
        if self.chance.random() < 0.2:
            replicas = []
        request = cpb.AlterPartitionReassignmentsRequest(header=self.header())
        partition = pb.TopicPartition(topic=topic, partition=index)
        request.partitions.add(partition=partition, replicas=replicas)
        answer = await self.controller.call(lambda c: c.AlterPartitionReassignments, request, 8.0)
        error = answer.results[0].error
        if error.code:
            raise KafkaError(ErrorCode(error.code), error.message)
        self.world.count("reassignment")
        self.world.note(f"admin: {topic}-{index} moves to {replicas or 'where it was'}")

    async def _election(self) -> None:
        topic = self.chance.choice(sorted(self.topics))
        partition = pb.TopicPartition(topic=topic, partition=0)
        request = cpb.ElectLeadersRequest(header=self.header(), partitions=[partition])
        await self.controller.call(lambda c: c.ElectLeaders, request, 8.0)
        self.world.note(f"admin: preferred election for {topic}-0")

    async def _elections(self) -> None:
        await self.controller.call(lambda c: c.ElectLeaders, cpb.ElectLeadersRequest(header=self.header()), 8.0)
        self.world.note("admin: preferred elections")


def of_chance(world: World, checker: Checker, topics: dict[str, dict[str, Any]], chance: Random) -> list[Client]:
    """The clients of one seed."""
    clients: list[Client] = [Admin(world, topics)]
    number = 0
    for topic in topics:
        for _ in range(chance.randint(1, 2)):
            acks = chance.choice([-1, -1, -1, 1, 0])
            clients.append(
                Producer(
                    world,
                    checker,
                    f"producer-{number}",
                    topic,
                    acks=acks,
                    idempotent=acks == -1 and chance.random() < 0.7,
                    native=acks != 0 and chance.random() < 0.4,
                )
            )
            number += 1
        clients.append(Consumer(world, checker, f"consumer-{number}", topic, number))
    return clients
