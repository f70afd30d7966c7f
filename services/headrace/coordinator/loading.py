"""Reading a partition of the offsets topic from its start: how a coordinator learns what its predecessor knew."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc

from headrace.cluster.image import Image
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.coordinator.records import CorruptRecord, State
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.records.batch import batches, intact
from headrace.records.record import iter_records
from headrace.rpc import Channels, kafka_error_of, request_header
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2
from headrace.v1.broker_pb2_grpc import BrokerStub

log = logging.getLogger(__name__)

FETCH_SECONDS = 10.0
WAIT_MS = 500
BACKOFF = 0.1


class Loader:
    """Reads partitions of the offsets topic from their leaders; it tries for as long as it is not cancelled."""

    def __init__(
        self, image: Callable[[], Image], channels: Channels, clock: Clock, client_id: str, buffer_bytes: int
    ) -> None:
        self._image = image
        self._channels = channels
        self._clock = clock
        self._client_id = client_id
        self._buffer_bytes = buffer_bytes

    async def load(self, index: int, upto: int) -> State:
        """What the records of the partition say, up to and with the one at offset `upto`."""
        state = State()
        offset = 0
        while offset <= upto:
            try:
                data, start = await self._fetch(index, offset)
                if data:
                    intact(memoryview(data))  # as a broker sends it, it is what its disk has kept
            except KafkaError as error:
                log.info("%s-%d at offset %d: %s", OFFSETS_TOPIC, index, offset, error)
                await self._clock.sleep(BACKOFF)
                continue
            if start > offset:
                offset = start
            offset = self._replay(index, state, data, offset)
        return state

    async def _fetch(self, index: int, offset: int) -> tuple[bytes, int]:
        """Some batches from `offset` on, and where the log starts."""
        image = self._image()
        partition = image.partition(OFFSETS_TOPIC, index)
        leader = image.brokers.get(partition.leader) if partition is not None else None
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads it")
        request = pb.FetchRequest(
            header=request_header(self._client_id),
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=self._buffer_bytes,
            partitions=[
                pb.FetchRequest.Partition(
                    partition=common_pb2.TopicPartition(topic=OFFSETS_TOPIC, partition=index),
                    offset=offset,
                    max_bytes=self._buffer_bytes,
                    current_leader_epoch=-1,
                )
            ],
        )
        try:
            response = await BrokerStub(self._channels.get(str(leader.grpc))).Fetch(request, timeout=FETCH_SECONDS)
        except grpc.aio.AioRpcError as status:
            raise kafka_error_of(status) from None
        for part in response.partitions:
            if part.error.code == common_pb2.OFFSET_OUT_OF_RANGE and part.log_start_offset > offset:
                return b"", part.log_start_offset
            if part.error.code:
                raise KafkaError(ErrorCode(part.error.code), part.error.message)
            return part.records, part.log_start_offset
        return b"", 0

    def _replay(self, index: int, state: State, data: bytes, offset: int) -> int:
        """Takes batches into `state`; returns the offset after them."""
        for batch in batches(data):
            if batch.is_control or batch.next_offset <= offset:
                offset = max(offset, batch.next_offset)
                continue
            for record in iter_records(data, batch):
                if record.key is None or record.offset < offset:
                    continue
                try:
                    state.replay(record.key, record.value)
                except CorruptRecord as error:
                    # One record that cannot be read must not take all groups of the partition down with it.
                    log.error("%s-%d: ignored the record at offset %d: %s", OFFSETS_TOPIC, index, record.offset, error)
            offset = batch.next_offset
        return offset
