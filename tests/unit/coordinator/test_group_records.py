"""Records of the offsets topic: what is written is read back, and what cannot be read changes nothing."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.records import (
    CorruptRecord,
    State,
    classic_record,
    current_record,
    epochs_record,
    group_prefix,
    member_record,
    offset_record,
    target_record,
)
from headrace.coordinator.values import (
    ClassicMemberValue,
    ClassicProtocol,
    ClassicValue,
    CommittedOffset,
    ConsumerGroupEpochs,
    MemberAssignment,
    MemberMetadata,
    MemberState,
)

_text = st.text(max_size=10)
_optional = st.none() | _text
_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_partitions = st.frozensets(st.tuples(st.uuids(), st.integers(0, 100)), max_size=5)
_offset = st.builds(CommittedOffset, _int64, _int32, _text, _int64, _int64)
_classic_member = st.builds(
    ClassicMemberValue, _text, _optional, _text, _text, _int32, _int32, st.binary(max_size=9), st.binary(max_size=9)
)
_classic = st.builds(
    ClassicValue, _text, _int32, _optional, _optional, _int64, st.lists(_classic_member, max_size=3).map(tuple)
)
_protocols = st.lists(st.tuples(_text, st.binary(max_size=9)), max_size=3).map(tuple)
_member = st.builds(
    MemberMetadata,
    _optional,
    _optional,
    _text,
    _text,
    _int32,
    st.lists(_text, max_size=3).map(tuple),
    _optional,
    _optional,
    st.none() | st.builds(ClassicProtocol, _int32, _protocols),
)
_current = st.builds(MemberAssignment, _int32, _int32, st.sampled_from(MemberState), _partitions, _partitions)
_epochs = st.builds(ConsumerGroupEpochs, _int32, _int32, _int64)


@settings(max_examples=25)
@given(_text, _text, st.uuids(), st.integers(0, 2**31 - 1), _offset, _classic, _member, _partitions, _current, _epochs)
def test_everything_is_read_back_and_tombstones_remove_it(
    group: str,
    member_id: str,
    topic_id: uuid.UUID,
    partition: int,
    offset: CommittedOffset,
    classic: ClassicValue,
    member: MemberMetadata,
    target: frozenset[tuple[uuid.UUID, int]],
    current: MemberAssignment,
    epochs: ConsumerGroupEpochs,
) -> None:
    prefix = group_prefix(group)
    records = [
        offset_record(prefix, topic_id, partition, offset),
        classic_record(group, classic),
        member_record(group, member_id, member),
        target_record(group, member_id, target),
        current_record(group, member_id, current),
        epochs_record(group, epochs),
    ]
    state = State().replay_all(records)
    assert state.offsets == {group: {topic_id: {partition: offset}}}
    assert state.classic == {group: classic}
    value = state.consumer[group]
    assert (value.members, value.target, value.current) == (
        {member_id: member},
        {member_id: target},
        {member_id: current},
    )
    assert value.epochs == epochs
    assert state.replay_all((key, None) for key, _ in records) == State()


def _samples() -> list[tuple[bytes, bytes]]:
    partitions = frozenset([(uuid.UUID(int=1), 3)])
    member = MemberMetadata("i", "r", "c", "h", 1, ("t",), "x", "range", ClassicProtocol(1, (("range", b"m"),)))
    classic = ClassicValue("consumer", 1, "range", "m", 5, (ClassicMemberValue("m", "i", "c", "h", 1, 2, b"m", b"a"),))
    records = [
        offset_record(group_prefix("g"), uuid.UUID(int=1), 1, CommittedOffset(1, 2, "", 3)),
        classic_record("g", classic),
        member_record("g", "m", member),
        target_record("g", "m", partitions),
        current_record("g", "m", MemberAssignment(1, 0, MemberState.STABLE, partitions, partitions)),
        epochs_record("g", ConsumerGroupEpochs(1, 1, 1)),
    ]
    return [(key, value) for key, value in records if value is not None]


@pytest.mark.parametrize(("key", "value"), _samples())
def test_a_record_that_is_cut_short_is_refused_and_changes_nothing(key: bytes, value: bytes) -> None:
    state = State()
    for size in range(len(value)):
        with pytest.raises(CorruptRecord):
            state.replay(key, value[:size])
    for size in range(len(key)):
        with pytest.raises(CorruptRecord):
            state.replay(key[:size], value)
    assert state == State()
    state.replay(key, value)
    assert state != State()


def test_a_record_of_a_newer_version_or_an_unknown_kind_is_refused() -> None:
    key, value = _samples()[0]
    with pytest.raises(CorruptRecord, match="newer"):
        State().replay(key, b"\x01" + value[1:])
    with pytest.raises(CorruptRecord):
        State().replay(b"\x63" + key[1:], value)
