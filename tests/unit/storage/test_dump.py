"""The dump: Kafka's words for every kind of file, and damage named without stopping."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.compaction_logs import append, end_transaction

from headrace.records.batch import read_header
from headrace.records.record import ControlType, Record, build
from headrace.storage.config import LogConfig
from headrace.storage.dump import NotALogFile, dump
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import open_log

FOLDER = "/t-0"
STEM = f"{FOLDER}/00000000000000000000"


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.mkdir(FOLDER)
    return made


def put(files: MemoryFiles, path: str, data: bytes) -> str:
    files.write(path, data)
    return path


def texts(files: MemoryFiles, path: str, **options: Any) -> list[str]:
    """The lines after the first, of a dump without faults."""
    first, *lines = dump(files, path, **options)
    assert first.text == f"Dumping {path}"
    assert not [line for line in lines if line.fault]
    return [line.text for line in lines]


def faults(files: MemoryFiles, path: str, **options: Any) -> list[str]:
    return [line.text for line in dump(files, path, **options) if line.fault]


def three_batches() -> list[bytearray]:
    return [
        build([Record(base + at, 1000 + base + at, b"k", b"v") for at in range(3)], base_offset=base, leader_epoch=4)
        for base in (0, 3, 6)
    ]


def test_a_batch_and_its_records(files: MemoryFiles) -> None:
    records = [Record(7, 2000, None, b"v\xff", (("h", b"x"), ("e\xe9", None))), Record(8, 2001, b"", None)]
    producer = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 3, "transactional": True}
    buf = build(records, base_offset=7, leader_epoch=1, codec=1, **producer)
    path = put(files, f"{FOLDER}/00000000000000000007.log", bytes(buf))
    header = (
        "baseOffset: 7 lastOffset: 8 count: 2 baseSequence: 3 lastSequence: 4 producerId: 5 producerEpoch: 1"
        " partitionLeaderEpoch: 1 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty"
        f" position: 0 CreateTime: 2001 size: {len(buf)} magic: 2 compresscodec: gzip crc: {read_header(buf).crc}"
        " isvalid: true"
    )
    assert texts(files, path) == ["Log starting offset: 7", header]
    first = "| offset: 7 CreateTime: 2000 keySize: -1 valueSize: 2 sequence: 3 headerKeys: [h,eé]"
    second = "| offset: 8 CreateTime: 2001 keySize: 0 valueSize: -1 sequence: 4 headerKeys: []"
    assert texts(files, path, deep=True)[2:] == [first, second]
    assert texts(files, path, print_data=True)[2:] == [f"{first} payload: v\ufffd", f"{second} key: "]


def test_control_records_and_horizons(files: MemoryFiles) -> None:
    log = open_log(files, FOLDER, LogConfig.of({"message.timestamp.type": "LogAppendTime"}))
    append(log, [(b"k", b"v")], 50, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 9, ControlType.ABORT, 60)
    append(log, [(b"k", b"v")], 70)
    lines = texts(files, f"{STEM}.log", print_data=True)
    assert lines[4].endswith(
        "keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 0"
    )
    assert "isControl: true" in lines[3]
    assert " LogAppendTime: 70 " in lines[5]
    with_horizon = build([Record(0, 1, b"k", None)], delete_horizon=777)
    path = put(files, "/t-0/00000000000000000099.log", bytes(with_horizon))
    assert "deleteHorizonMs: OptionalLong[777]" in texts(files, path)[1]


@pytest.mark.parametrize("codec", [0, 1])
def test_old_formats(files: MemoryFiles, codec: int) -> None:
    buf = b""
    for magic in (0, 1):
        builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)  # type: ignore[arg-type]
        builder.append(0, 1000, b"k", b"v")
        buf += bytes(builder.build())
    lines = texts(files, put(files, f"{STEM}.log", buf + bytes(build([Record(1, 5, b"k", b"v")], base_offset=1))))
    name = ("none", "gzip")[codec]
    assert lines[1].startswith("offset: 0 position: 0 NoTimestampType: -1 size: ")
    assert f" magic: 0 compresscodec: {name} crc: " in lines[1]
    assert f" magic: 1 compresscodec: {name} crc: " in lines[2]
    assert lines[3].startswith("baseOffset: 1 ")
    deep = [line.text for line in dump(files, f"{STEM}.log", print_data=True) if line.text.startswith("|")]
    assert deep[:2] == [
        "| offset: 0 NoTimestampType: -1 keySize: 1 valueSize: 1 isValid: true crc: 535615242 key: k payload: v",
        "| offset: 0 CreateTime: 1000 keySize: 1 valueSize: 1 isValid: true crc: 3840090556 key: k payload: v",
    ]


def test_a_torn_tail_and_a_wrong_checksum_are_faults(files: MemoryFiles) -> None:
    first, second, third = three_batches()
    second[70] ^= 1
    path = put(files, f"{STEM}.log", bytes(first + second + third[:-5]))
    found = faults(files, path)
    assert len(found) == 2
    assert found[0].startswith("baseOffset: 3 ")
    assert found[0].endswith("isvalid: false")
    assert found[1].startswith(f"Found {len(third) - 5} invalid bytes at the end of {path}")


def test_malformed_records_do_not_stop_the_dump(files: MemoryFiles) -> None:
    first, second, _ = three_batches()
    first[61] = 0x7F
    lines = list(dump(files, put(files, f"{STEM}.log", bytes(first + second)), deep=True))
    assert any(line.fault and line.text.startswith("| INVALID_RECORD") for line in lines)
    assert lines[-1].text.startswith("| offset: 5 ")


def test_gaps_are_told_and_going_back_is_a_fault(files: MemoryFiles) -> None:
    first, second, third = three_batches()
    path = put(files, f"{STEM}.log", bytes(first + third))
    assert texts(files, path, deep=True)[-2:] == [f"Non-consecutive offsets in {path}", "  2 is followed by 6"]
    put(files, path, bytes(second + first))
    assert faults(files, path, deep=True) == [f"Non-consecutive offsets in {path}", "  5 is followed by 0"]


def test_an_offset_index(files: MemoryFiles) -> None:
    first, second, third = three_batches()
    put(files, f"{STEM}.log", bytes(first + second + third))
    at = len(first)
    path = put(files, f"{STEM}.index", pack(">iiii", 5, at, 8, at + len(second)) + bytes(16))
    assert texts(files, path) == [f"offset: 5 position: {at}", f"offset: 8 position: {at + len(second)}"]
    put(files, path, b"")
    assert texts(files, path) == [f"{path} is empty."]
    put(files, path, pack(">iiii", 4, at, 8, 9999))
    assert faults(files, path) == [
        f"Mismatches in :{path}",
        "  Index offset: 4, log offset: 5",
        "  Index offset: 8, log offset: none",
    ]


def test_a_time_index(files: MemoryFiles) -> None:
    put(files, f"{STEM}.log", b"".join(three_batches()))
    path = put(files, f"{STEM}.timeindex", pack(">qiqi", 1002, 2, 1008, 8) + bytes(12))
    assert texts(files, path) == ["timestamp: 1002 offset: 2", "timestamp: 1008 offset: 8"]
    put(files, path, pack(">qiqiqi", 1001, 2, 1001, 4, 1008, 8))
    assert faults(files, path) == [
        f"Found timestamp mismatch in :{path}",
        "  Index timestamp: 1001, log timestamp: 1002",
        f"Found out of order timestamp in :{path}",
        "  Index timestamp: 1001, Previously indexed timestamp: 1001",
        f"The following indexed offsets are not found in :{path}",
        "  Indexed offset: 4, found log offset: 5",
    ]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_the_sanity_check_of_an_index(files: MemoryFiles, suffix: str) -> None:
    put(files, f"{STEM}.log", b"".join(three_batches()))
    entry = pack(">ii", 5, 80) if suffix == "index" else pack(">qi", 1002, 2)
    path = put(files, f"{STEM}.{suffix}", entry)
    assert texts(files, path, sanity_check=True) == [f"{path} passed sanity check."]
    put(files, path, entry + b"!")
    assert "whole number" in faults(files, path, sanity_check=True)[0]
    assert "whole number" in faults(files, path)[0]


def test_an_index_without_its_log_is_a_fault(files: MemoryFiles) -> None:
    path = put(files, f"{STEM}.index", pack(">ii", 5, 80))
    assert faults(files, path) == [f"{STEM}.log is not there to check the index against"]


def test_producer_snapshots(files: MemoryFiles) -> None:
    log = open_log(files, FOLDER, LogConfig.of())
    fields = {"producer_id": 5, "producer_epoch": 1, "transactional": True}
    append(log, [(b"k", b"v"), (b"k", b"v")], 2000, base_sequence=3, **fields)
    log.close()
    assert texts(files, f"{FOLDER}/00000000000000000002.snapshot") == [
        "producerId: 5 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[0] lastTimestamp: 2000"
        " firstSequence: 3 lastSequence: 4 lastOffset: 1 offsetDelta: 1 timestamp: 2000"
    ]
    path = put(files, f"{FOLDER}/00000000000000000009.snapshot", b"\0\1garbage")
    assert len(faults(files, path)) == 1


def test_leader_epochs(files: MemoryFiles) -> None:
    path = put(files, f"{FOLDER}/leader-epoch-checkpoint", b"0\n2\n0 0\n3 17\n")
    assert texts(files, path) == ["epoch: 0 startOffset: 0", "epoch: 3 startOffset: 17"]
    put(files, path, b"0\n5\n0 0\n")
    assert len(faults(files, path)) == 1


def test_files_on_their_way_out_are_read_too(files: MemoryFiles) -> None:
    put(files, f"{STEM}.log.deleted", b"".join(three_batches()))
    assert len(texts(files, f"{STEM}.log.deleted")) == 4
    path = put(files, f"{STEM}.index.deleted", pack(">ii", 5, len(three_batches()[0])))
    assert len(texts(files, path)) == 1


@given(
    st.sampled_from(["00000000000000000000.index", "00000000000000000000.timeindex", "00000000000000000003.snapshot"]),
    st.binary(max_size=60),
    st.binary(max_size=200),
    st.integers(0, 250),
)
def test_any_bytes_can_be_dumped(name: str, small: bytes, noise: bytes, cut: int) -> None:
    files = MemoryFiles()
    files.mkdir(FOLDER)
    put(files, f"{STEM}.log", b"".join(three_batches())[:cut] + noise)
    for path in (
        put(files, f"{FOLDER}/{name}", small),
        put(files, f"{FOLDER}/leader-epoch-checkpoint", small),
        f"{STEM}.log",
    ):
        assert list(dump(files, path, print_data=True))
        assert list(dump(files, path, sanity_check=True))


@pytest.mark.parametrize("name", ["notes.txt", "abc.log", "00000000000000000000.txnindex"])
def test_other_files_are_refused(files: MemoryFiles, name: str) -> None:
    with pytest.raises(NotALogFile, match="leader-epoch-checkpoint"):
        list(dump(files, put(files, f"{FOLDER}/{name}", b"")))
