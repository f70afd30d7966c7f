"""Any bytes may be sent to a log: they are refused by name and leave no trace, or they are sound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.log_samples import NOW, batch, idempotent, make_log

from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches, stamp_crc, valid_crc
from headrace.storage.log import Log

REFUSALS = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OFFSET_OUT_OF_RANGE,
}


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound batch with a few bytes changed, mostly in its header, and perhaps the right checksum again."""
    whole = batch(draw(st.integers(1, 3))) if draw(st.booleans()) else idempotent(draw(st.integers(0, 3)))
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        data[draw(st.integers(0, 70))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        stamp_crc(data, 0, len(data))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data) * draw(st.integers(1, 2))


def bytes_of(log: Log) -> bytes:
    return log.read(log.log_start_offset, 1 << 30, upto=log.log_end_offset).read()


def append(log: Log, sent: bytes, how: str) -> ErrorCode | None:
    """Send `sent`; with what it was refused."""
    buffer = memoryview(bytearray(sent))
    try:
        if how == "follower":
            log.append_as_follower(buffer)
        else:
            log.append_as_leader(buffer, 0, NOW, from_client=how != "own")
    except KafkaError as error:
        return error.code
    return None


@settings(max_examples=400)
@given(st.one_of(st.binary(max_size=200), mutated()), st.sampled_from(["leader", "compacted", "own", "follower"]))
def test_any_bytes_are_refused_by_name_or_sound(sent: bytes, how: str) -> None:
    log = make_log(cleanup_policy="compact" if how == "compacted" else "delete", segment_bytes=1000)
    log.append_as_leader(idempotent(0, 2), 0, NOW)
    before = bytes_of(log)
    refused = append(log, sent, how)
    after = bytes_of(log)
    if refused is not None:
        assert refused in REFUSALS
        assert (log.log_end_offset, after) == (2, before)
    assert after.startswith(before)
    assert all(valid_crc(after, part) for part in batches(after))
    end = log.log_end_offset
    assert log.append_as_leader(batch(2), 0, NOW).first_offset == end
    assert batches(bytes_of(log))[-1].base_offset == end
