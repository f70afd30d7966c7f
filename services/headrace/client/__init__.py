"""Headrace's own client: `Producer`, `Consumer` and `Admin` over gRPC, for asyncio; `headrace.client.sync` without."""

from headrace.client.accumulator import BufferFull
from headrace.client.admin import EARLIEST, LATEST, MAX_TIMESTAMP, Admin, ConfigEntry, NewTopic
from headrace.client.cluster import ClusterUnreachable
from headrace.client.consumer import Consumer, ConsumerInterceptor
from headrace.client.group import RebalanceListener
from headrace.client.group_admin import GroupDescription, GroupMember
from headrace.client.partitioners import RoundRobin, partition_for_key
from headrace.client.producer import Producer, ProducerInterceptor
from headrace.client.types import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TimestampType,
    TopicPartition,
)
from headrace.errors import ErrorCode, KafkaError

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "BufferFull",
    "ClusterUnreachable",
    "ConfigEntry",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ErrorCode",
    "GroupDescription",
    "GroupMember",
    "KafkaError",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "ProducerInterceptor",
    "RebalanceListener",
    "RecordMetadata",
    "RoundRobin",
    "TimestampType",
    "TopicPartition",
    "partition_for_key",
]
