"""What lies beside the segments: leader epochs, producers' state, checkpoints, ids, settings and retention's choice."""

from __future__ import annotations

import struct
import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.log_samples import NOW, idempotent

from headrace.config import InvalidConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches
from headrace.storage import checkpoint, meta_properties
from headrace.storage.checkpoint import CheckpointCorrupt
from headrace.storage.config import TOPIC_KEYS, LogConfig
from headrace.storage.leader_epoch import LeaderEpochs
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.partition_metadata import decode_uuid, encode_uuid, read_topic_id, write_topic_id
from headrace.storage.producer_state import ProducerState, SnapshotCorrupt
from headrace.storage.retention import SegmentView, deletable


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    cache = LeaderEpochs(MemoryFiles(), "/leader-epoch-checkpoint")
    for epoch, start in entries:
        cache.assign(epoch, start)
    return cache


def test_where_an_epoch_ends() -> None:
    cache = epochs((2, 10), (4, 30), (7, 50))
    assert cache.end_offset_for(7, 90) == (7, 90), "the latest ends with the log"
    assert cache.end_offset_for(8, 90) == (-1, -1), "too new"
    assert cache.end_offset_for(4, 90) == (4, 50)
    assert cache.end_offset_for(5, 90) == (4, 50), "the largest known one below"
    assert cache.end_offset_for(1, 90) == (1, 10), "older than all"
    assert cache.end_offset_for(-1, 90) == (-1, -1)
    assert epochs().end_offset_for(0, 0) == (-1, -1)


def test_epochs_only_grow_and_follow_both_ends_of_the_log() -> None:
    cache = epochs((2, 10), (1, 15), (2, 20), (4, 30), (7, 50))
    assert cache.entries() == [(2, 10), (4, 30), (7, 50)]
    cache.begin_at(35)
    assert cache.entries() == [(4, 35), (7, 50)]
    cache.truncate_from(50)
    assert (cache.entries(), cache.latest) == ([(4, 35)], 4)
    cache.assign(9, 35)
    assert cache.entries() == [(9, 35)], "an epoch without a record is forgotten"
    assert (cache.epoch_at(34), cache.epoch_at(35)) == (-1, 9)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=20))
def test_epochs_come_back_from_their_file(entries: list[tuple[int, int]]) -> None:
    cache = epochs(*sorted(entries))
    cache.save()
    again = LeaderEpochs.load(cache._files, cache.path)
    assert again.entries() == cache.entries()
    assert again.latest == cache.latest


def test_a_snapshot_is_kafkas_bytes() -> None:
    state = ProducerState()
    (batch,) = batches(idempotent(5, 3, producer=9, epoch=2, timestamp=NOW))
    state.update(batch, 100)
    entries = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, 7, 102, 2, NOW + 2, -1, -1)
    assert state.encode() == struct.pack(">hI", 1, crc32c(entries)) + entries
    again = ProducerState.decode(state.encode(), 10)
    assert again.producers[9].batches == [(5, 7, 100, 102, NOW + 2)]
    (following,) = batches(idempotent(8, 1, producer=9, epoch=2))
    assert again.check_all([batch]) is not None
    assert again.check_all([following]) is None


@given(st.binary(max_size=80), st.integers(0, 60), st.integers(1, 255))
def test_a_damaged_snapshot_is_recognised(noise: bytes, at: int, flip: int) -> None:
    with pytest.raises(SnapshotCorrupt):
        ProducerState.decode(noise, 0)
    state = ProducerState()
    state.update(batches(idempotent(0))[0], 0)
    damaged = bytearray(state.encode())
    damaged[at % len(damaged)] ^= flip
    with pytest.raises(SnapshotCorrupt):
        ProducerState.decode(bytes(damaged), 0)


def test_producers_expire_unless_a_transaction_is_open() -> None:
    state = ProducerState()
    state.update(batches(idempotent(0, producer=1, timestamp=NOW))[0], 0)
    state.update(batches(idempotent(0, producer=2, timestamp=NOW, transactional=True))[0], 1)
    state.expire(NOW + 999, 1000)
    assert set(state.producers) == {1, 2}
    state.expire(NOW + 1000, 1000)
    assert set(state.producers) == {2}
    (anywhere,) = batches(idempotent(77, producer=1))
    assert state.check_all([anywhere]) is None, "a producer that is not known may begin anywhere"


def test_batches_of_one_append_must_follow_each_other() -> None:
    state = ProducerState()
    first, gap = batches(bytes(idempotent(0, 2)) + bytes(idempotent(3)))
    with pytest.raises(KafkaError) as refused:
        state.check_all([first, gap])
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check_all(batches(bytes(idempotent(0, 2)) + bytes(idempotent(2)))) is None


@pytest.mark.parametrize("content", [b"", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na b c\n", b"0\n1\na 0\n", b"\xff\xfe"])
def test_a_damaged_checkpoint_is_recognised(content: bytes) -> None:
    files = MemoryFiles()
    files.write("/c", content)
    with pytest.raises(CheckpointCorrupt):
        checkpoint.read_offsets(files, "/c")


def test_a_checkpoint_is_replaced_whole() -> None:
    files = MemoryFiles()
    checkpoint.write_offsets(files, "/c", {("a.b", 0): 5, ("c", 12): 2**40})
    assert checkpoint.read_offsets(files, "/c") == {("a.b", 0): 5, ("c", 12): 2**40}
    assert checkpoint.read_offsets(files, "/absent") == {}
    assert files.scan("/").keys() == {"c"}
    files.crash()
    assert checkpoint.read_offsets(files, "/c") == {("a.b", 0): 5, ("c", 12): 2**40}


@given(st.uuids())
def test_ids_are_written_as_kafka_does(topic_id: uuid.UUID) -> None:
    assert decode_uuid(encode_uuid(topic_id)) == topic_id
    files = MemoryFiles()
    write_topic_id(files, "/partition.metadata", topic_id)
    assert read_topic_id(files, "/partition.metadata") == topic_id


def test_a_topic_id_that_a_power_cut_left_in_part_is_none() -> None:
    """The partition was just made, and is not damaged: whoever wants it says the id again."""
    files = MemoryFiles()
    whole = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"  # Kafka ends it so, without another line
    for length in range(len(whole)):
        for unwritten in (0, len(whole) - length):
            files.write("/m", whole[:length] + bytes(unwritten))
            assert read_topic_id(files, "/m") is None, length
    files.write("/m", whole)
    assert read_topic_id(files, "/m") == uuid.UUID(int=1)


def test_damaged_small_files_are_named() -> None:
    files = MemoryFiles()
    files.write("/m", b"version: 7\n")
    with pytest.raises(ValueError, match="/m"):
        read_topic_id(files, "/m")
    with pytest.raises(ValueError, match="base64"):
        decode_uuid("abc*")
    assert meta_properties.parse_marker(b"") == -1
    assert meta_properties.parse_marker(b'{"version":0,"brokerEpoch":3}') == 3


def test_topic_configs_have_kafkas_defaults() -> None:
    config = LogConfig.of({"segment.ms": "60000", "max.message.bytes": 1000, "cleanup.policy": ("compact", "delete")})
    assert (config.segment_ms, config.max_message_bytes, config.compact, config.delete) == (60_000, 1000, True, True)
    assert (config.segment_bytes, config.retention_ms, config.index_interval_bytes) == (2**30, 604_800_000, 4096)
    assert all(key.doc and key.live for key in TOPIC_KEYS)
    for key in TOPIC_KEYS:
        key.parse(key.render(key.default)) if key.default != () else None


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment.byte", "1"), ("segment.bytes", "x"), ("cleanup.policy", "keep"), ("remote.storage.enable", "true")],
)
def test_a_wrong_topic_config_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name.split(".")[0]):
        LogConfig.of({name: value})


SEGMENTS = [SegmentView(10, 100, 1000), SegmentView(20, 100, 2000), SegmentView(30, 100, -1), SegmentView(40, 0, -1)]


@pytest.mark.parametrize(
    ("config", "now", "start", "high_watermark", "expected"),
    [
        ({"retention.ms": 500}, 1501, 0, 40, 1),
        ({"retention.ms": 500}, 1500, 0, 40, 0),
        ({"retention.ms": 0}, 9999, 0, 40, 2),
        ({"retention.ms": -1}, 9999, 0, 40, 0),
        ({"retention.ms": 500}, 9999, 0, 19, 1),
        ({"retention.ms": -1, "retention.bytes": 200}, 0, 0, 40, 1),
        ({"retention.ms": -1, "retention.bytes": 201}, 0, 0, 40, 0),
        ({"retention.ms": -1, "retention.bytes": 0}, 0, 0, 40, 3),
        ({"cleanup.policy": "compact", "retention.ms": 0, "retention.bytes": 0}, 9999, 0, 40, 0),
        ({"cleanup.policy": "compact"}, 0, 25, 40, 2),
    ],
)
def test_which_segments_may_go(
    config: dict[str, object], now: int, start: int, high_watermark: int, expected: int
) -> None:
    chosen = deletable(
        SEGMENTS,
        LogConfig.of(config),
        log_size=300,
        now_ms=now,
        log_start_offset=start,
        high_watermark=high_watermark,
    )
    assert chosen == expected
