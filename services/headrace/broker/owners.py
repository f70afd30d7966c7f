"""Who may write to the offsets topic: the coordinator that owns the partition, under its newest epoch.

A coordinator writes as an idempotent producer whose id is the epoch of its ownership. Its first batch under a new epoch
thereby tells every replica, and every leader to come, who the owner is: each keeps the producer ids it has seen with
the log. One that was replaced and does not know it yet (it slept past its lease) carries a smaller number, and is
refused. The picture of the cluster refuses it earlier, but it may lag; the log never does.
"""

from __future__ import annotations

from headrace.broker.partition import Partition
from headrace.cluster.image import Image
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import read_header


def check_owner(partition: Partition, records: memoryview, epoch: int, image: Image) -> None:
    """Refuses a batch for an internal topic that its owner of now did not send; `epoch` 0: none was given."""
    if epoch <= 0 or partition.topic != OFFSETS_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is internal: only its coordinator writes to it"
        )
    newest = max(partition.log.producers.producers, default=0)
    owner = image.offsets_owners.get(partition.index)
    if owner is not None:
        newest = max(newest, owner.epoch)
    if epoch < newest:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED,
            f"{partition!r} has an owner of epoch {newest}, this was sent under {epoch}: drop what you hold of it",
        )
    producer_id = read_header(records).producer_id
    if producer_id != epoch:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"{partition!r}: the batch of owner epoch {epoch} has producer id {producer_id}"
        )
