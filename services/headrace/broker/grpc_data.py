"""The broker's data plane over gRPC: the same core as the Kafka listener, for native clients and Spark.

Unary calls suit tools; streams carry the data, because a gRPC message costs a few hundred microseconds however small it
is. A stream keeps a bounded number of requests under way and pushes back by not reading on.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from headrace.broker.authorizer import Operation
from headrace.broker.broker import Broker
from headrace.broker.log_dir_report import log_dir_report
from headrace.broker.offsets import delete_records, epoch_end, list_offset
from headrace.broker.reader import CONSUMER, Key, Reader, Wanted
from headrace.broker.requests import Fetched, FetchLimits, Produced
from headrace.cluster.protos import node_to_proto
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches
from headrace.rpc.errors import error_message, response_header, status_of
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import broker_pb2_grpc, common_pb2

STREAMED_PRODUCES = 16
"""Requests of one ProduceStream that may wait for acknowledgements before the stream is read on."""

ANONYMOUS = "User:ANONYMOUS"
_ACKS = (0, 1, -1)


def _key(partition: common_pb2.TopicPartition) -> tuple[str | uuid.UUID, int]:
    """How the replica manager finds a partition: by id when there is one, else by name."""
    topic = uuid.UUID(bytes=partition.topic_id) if partition.topic_id else partition.topic
    return topic, partition.partition


class DataService(broker_pb2_grpc.BrokerServicer):
    """See protos/headrace/v1/broker.proto."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # --- produce

    async def Produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:
        return await self._produce(request)

    async def ProduceStream(
        self, requests: AsyncIterator[pb.ProduceRequest], context: Any
    ) -> AsyncIterator[pb.ProduceResponse]:
        under_way: asyncio.Queue[asyncio.Future[pb.ProduceResponse] | None] = asyncio.Queue(STREAMED_PRODUCES)

        async def read() -> None:
            try:
                async for request in requests:
                    await under_way.put(self._attempt(request))
            finally:
                await under_way.put(None)

        reader = asyncio.create_task(read())
        try:
            while (answer := await under_way.get()) is not None:
                yield await answer
        except KafkaError as error:
            await context.abort(status_of(error.code), str(error))
        finally:
            reader.cancel()

    def _attempt(self, request: pb.ProduceRequest) -> asyncio.Future[pb.ProduceResponse]:
        """As `_produce`; a request that is refused as a whole takes its place among the answers."""
        try:
            return self._produce(request)
        except KafkaError as error:
            refused: asyncio.Future[pb.ProduceResponse] = asyncio.get_running_loop().create_future()
            refused.set_exception(error.bare())
            return refused

    def _produce(self, request: pb.ProduceRequest) -> asyncio.Future[pb.ProduceResponse]:
        """Appends at once, so that requests of a stream keep their order; the future is for the acknowledgements."""
        answer: asyncio.Future[pb.ProduceResponse] = asyncio.get_running_loop().create_future()
        if request.acks not in _ACKS or request.transactional_id:
            raise self._refusal(request)
        allowed = [p for p in request.partitions if self._may(Operation.WRITE, p.partition)]
        if len(allowed) < len(request.partitions):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to write to one of the topics")

        def reply(results: list[Produced]) -> None:
            if answer.done():
                return
            parts = [self._produced(p.partition, r) for p, r in zip(request.partitions, results, strict=True)]
            answer.set_result(pb.ProduceResponse(header=response_header(request), partitions=parts))

        # A leader writes offsets into the batches it takes, and gRPC's bytes cannot be written to.
        batches = [(*_key(p.partition), memoryview(bytearray(p.records))) for p in request.partitions]
        epochs = [p.owner_epoch for p in request.partitions]
        self._broker.replicas.produce(batches, request.acks, request.timeout_ms, reply, epochs)
        return answer

    def _refusal(self, request: pb.ProduceRequest) -> KafkaError:
        if request.acks not in _ACKS:
            return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}: give 0, 1 or -1 (all)")
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served")

    def _produced(self, partition: common_pb2.TopicPartition, result: Produced) -> pb.ProduceResponse.PartitionResult:
        answer = pb.ProduceResponse.PartitionResult(
            partition=partition,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
        )
        if result.error is not None:
            answer.error.CopyFrom(error_message(result.error))
            self._hint(answer.leader, result.error, partition)
        return answer

    # --- fetch

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        reader = Reader(_wanted(request), full=False)
        try:
            return await self._fetch(request, reader)
        finally:
            reader.close()

    async def FetchStream(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.FetchResponse]:
        reader = Reader(_wanted(request), full=False)
        try:
            while reader.places:
                response = await self._fetch(request, reader)
                yield response
                for part in response.partitions:
                    key = _key(part.partition)
                    if part.error.code:
                        # The reader was told; whether it comes back, and where to, is for it to say.
                        reader.forget(key)
                    elif part.records:
                        reader.want(key, reader.places[key].want._replace(offset=_next_offset(part.records)))
        finally:
            reader.close()

    async def _fetch(self, request: pb.FetchRequest, reader: Reader) -> pb.FetchResponse:
        answer: asyncio.Future[list[Fetched]] = asyncio.get_running_loop().create_future()
        limits = FetchLimits(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            CONSUMER,
            rack=request.rack,
            read_committed=request.read_committed,
        )
        names = {_key(p.partition): p.partition for p in request.partitions}
        for partition in names.values():
            if not self._may(Operation.READ, partition):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to read {partition.topic}")
        self._broker.replicas.fetch(limits, reader, lambda found: None if answer.done() else answer.set_result(found))
        found = await answer
        return pb.FetchResponse(
            header=response_header(request),
            partitions=[self._fetched(names[f.key], f) for f in found if f.size or f.error or f.preferred_replica >= 0],
        )

    def _fetched(self, partition: common_pb2.TopicPartition, found: Fetched) -> pb.FetchResponse.PartitionData:
        answer = pb.FetchResponse.PartitionData(
            partition=partition,
            high_watermark=found.high_watermark,
            last_stable_offset=found.high_watermark,
            log_start_offset=found.log_start_offset,
            records=b"".join(part.read() for part in found.ranges),
            preferred_read_replica=found.preferred_replica,
        )
        if found.error is not None:
            answer.error.CopyFrom(error_message(found.error))
            self._hint(answer.leader, found.error, partition)
        else:
            self._broker.count_read(found.key[0], found.size)
        return answer

    # --- questions about offsets

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:
        response = pb.ListOffsetsResponse(header=response_header(request))
        for wanted in request.partitions:
            answer = response.partitions.add(partition=wanted.partition, offset=-1, timestamp=-1, leader_epoch=-1)
            try:
                found = list_offset(
                    self._broker.replicas, *_key(wanted.partition), wanted.timestamp, wanted.current_leader_epoch
                )
                answer.offset, answer.timestamp, answer.leader_epoch = found
            except KafkaError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    async def OffsetForLeaderEpoch(
        self, request: pb.OffsetForLeaderEpochRequest, context: Any
    ) -> pb.OffsetForLeaderEpochResponse:
        response = pb.OffsetForLeaderEpochResponse(header=response_header(request))
        for wanted in request.partitions:
            answer = response.partitions.add(partition=wanted.partition, leader_epoch=-1, end_offset=-1)
            try:
                answer.leader_epoch, answer.end_offset = epoch_end(
                    self._broker.replicas, *_key(wanted.partition), wanted.current_leader_epoch, wanted.leader_epoch
                )
            except KafkaError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    async def DeleteRecords(self, request: pb.DeleteRecordsRequest, context: Any) -> pb.DeleteRecordsResponse:
        response = pb.DeleteRecordsResponse(header=response_header(request))
        for wanted in request.partitions:
            answer = response.partitions.add(partition=wanted.partition, low_watermark=-1)
            try:
                answer.low_watermark = delete_records(self._broker.replicas, *_key(wanted.partition), wanted.offset)
            except KafkaError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    async def InitProducerId(self, request: pb.InitProducerIdRequest, context: Any) -> pb.InitProducerIdResponse:
        producer_id = await self._broker.producer_ids.next()
        return pb.InitProducerIdResponse(header=response_header(request), producer_id=producer_id, producer_epoch=0)

    async def DescribeProducers(
        self, request: pb.DescribeProducersRequest, context: Any
    ) -> pb.DescribeProducersResponse:
        response = pb.DescribeProducersResponse(header=response_header(request))
        wanted = set(request.producer_ids)
        for asked in request.partitions:
            answer = response.partitions.add(partition=asked)
            try:
                partition = self._broker.replicas.get(*_key(asked))
                partition.check_epoch(-1)
            except KafkaError as error:
                answer.error.CopyFrom(error_message(error))
                continue
            for producer_id, producer in partition.log.producers.producers.items():
                if not wanted or producer_id in wanted:
                    answer.producers.add(
                        producer_id=producer_id,
                        producer_epoch=producer.epoch,
                        last_sequence=producer.last_sequence,
                        last_offset=producer.batches[-1].last_offset if producer.batches else -1,
                        last_timestamp=producer.timestamp,
                    )
        return response

    async def DescribeLogDirs(self, request: pb.DescribeLogDirsRequest, context: Any) -> pb.DescribeLogDirsResponse:
        wanted = {_key(p) for p in request.partitions}
        response = pb.DescribeLogDirsResponse(header=response_header(request))
        for found in log_dir_report(self._broker):
            entry = response.log_dirs.add(
                path=found.path, total_bytes=found.total_bytes, usable_bytes=found.usable_bytes
            )
            if found.error is not None:
                entry.error.CopyFrom(error_message(found.error))
            for replica in found.replicas:
                key = common_pb2.TopicPartition(
                    topic=replica.topic, topic_id=replica.topic_id.bytes, partition=replica.partition
                )
                if not wanted or _key(key) in wanted or (replica.topic, replica.partition) in wanted:
                    entry.replicas.add(
                        partition=key,
                        size=replica.size,
                        offset_lag=replica.offset_lag,
                        is_future=replica.is_future,
                    )
        return response

    async def AlterReplicaLogDirs(
        self, request: pb.AlterReplicaLogDirsRequest, context: Any
    ) -> pb.AlterReplicaLogDirsResponse:
        response = pb.AlterReplicaLogDirsResponse(header=response_header(request))
        for wanted in request.moves:
            answer = response.results.add(partition=wanted.partition)
            try:
                self._broker.moves.move(self._broker.replicas.get(*_key(wanted.partition)), wanted.path)
            except KafkaError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    # --- what all of them need

    def _may(self, operation: Operation, partition: common_pb2.TopicPartition) -> bool:
        return self._broker.authorizer.allows(ANONYMOUS, operation, partition.topic)

    def _hint(self, hint: pb.LeaderHint, error: KafkaError, partition: common_pb2.TopicPartition) -> None:
        if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return
        found = self._broker.leader_of(*_key(partition))
        if found is not None:
            state, node = found
            hint.leader_epoch = state.leader_epoch
            if node is not None:
                hint.node.CopyFrom(node_to_proto(node))


def _wanted(request: pb.FetchRequest) -> list[tuple[Key, Wanted]]:
    return [(_key(p.partition), Wanted(p.offset, p.max_bytes, p.current_leader_epoch)) for p in request.partitions]


def _next_offset(records: bytes) -> int:
    """The offset after the last batch of an answer."""
    return batches(records)[-1].next_offset
