"""What Hypothesis draws for the tests of records: records, whole batches, and the errors any bytes may raise."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import strategies as st

from headrace.records import errors
from headrace.records.batch import CONTROL, Bytes, batches, check
from headrace.records.compression import Codec
from headrace.records.record import Record, check_deep, control_type, iter_records

CODECS = st.sampled_from(list(Codec))
SOME_BYTES = st.one_of(st.none(), st.binary(max_size=40), st.integers(0, 3000).map(lambda n: b"x" * n))
TIMESTAMPS = st.integers(0, 2**43)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8))), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, *, base_offset: int = 0, max_size: int = 12) -> list[Record]:
    """Records with dense offsets from `base_offset` on."""
    contents = draw(st.lists(st.tuples(TIMESTAMPS, SOME_BYTES, SOME_BYTES, HEADERS), min_size=1, max_size=max_size))
    return [Record(base_offset + at, *content) for at, content in enumerate(contents)]


@st.composite
def producer_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Producer fields as clients send them: none at all, idempotent, or transactional."""
    if draw(st.booleans()):
        return {}
    return {
        "producer_id": draw(st.integers(0, 2**63 - 1)),
        "producer_epoch": draw(st.integers(0, 2**15 - 1)),
        "base_sequence": draw(st.integers(0, 2**31 - 1)),
        "transactional": draw(st.booleans()),
    }


def read_everything(buf: Bytes, max_size: int = 1 << 20) -> None:
    """Every reader over `buf`: each may refuse it, with one of `records.errors` and nothing else."""
    refusals = contextlib.suppress(errors.RecordError)
    with refusals:
        check(buf, max_message_bytes=1 << 20, now_ms=1 << 42, before_max_ms=1 << 42, after_max_ms=1000)
    try:
        found = batches(buf)
    except errors.RecordError:
        return
    for batch in found:
        with refusals:
            for record in iter_records(buf, batch, max_size):
                if batch.attributes & CONTROL:
                    control_type(record)
        with refusals:
            check_deep(buf, batch, key_required=True, max_size=max_size)
