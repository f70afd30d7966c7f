"""A topic's compression.type: stored so, whatever the producer chose, and kept as it is when it already fits."""

import pytest

from headrace.records.batch import batches
from headrace.records.compression import Codec
from headrace.records.record import Record, build, iter_records
from headrace.storage.config import LogConfig
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import open_log

RECORDS = [
    Record(offset=i, timestamp=1_000 + i, key=b"k%d" % i, value=b"v" * 50, headers=(("h", b"x"),)) for i in range(5)
]


@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
def test_batches_are_stored_with_the_topics_codec(wanted: str, sent: Codec) -> None:
    config = LogConfig.of({"compression.type": wanted, "message.timestamp.before.max.ms": str(2**62)})
    log = open_log(MemoryFiles(), "/t-0", config)
    buf = build(RECORDS, codec=sent, producer_id=7, producer_epoch=1, base_sequence=0)
    log.append_as_leader(memoryview(bytearray(buf)), 3, 2_000)
    stored = log.read(0, 1 << 20, upto=5).read()
    [batch] = batches(stored)
    named = {codec.name.lower(): codec for codec in Codec} | {"producer": sent, "uncompressed": Codec.NONE}
    assert batch.codec == named[wanted]
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch) == (7, 1, 0, 3)
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in iter_records(stored, batch)] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in RECORDS
    ]
