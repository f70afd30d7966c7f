"""Records of the offsets topic: their bytes, and the state that replaying them gives.

The topic is compacted: the newest value of a key stands, a tombstone removes it. All numbers are big endian, `str` is
uint16 length and UTF-8, `str?` the same with 0xFFFF for none, `bytes` uint32 length and bytes, `[x]` uint32 count.

Key: uint8 kind · str group · by kind:
  0 committed offset      16 bytes topic id · int32 partition
  1 classic group         -
  2 consumer group        -
  3 member                str member
  4 target assignment     str member
  5 current assignment    str member
  6 owner                 - (of the whole partition; its group is empty)

Value: uint8 version (0) · by kind:
  0  int64 offset · int32 leader epoch · int64 committed at · int64 expires at (-1: by retention) · metadata, to the end
  1  str protocol type · int32 generation · str? protocol · str? leader · int64 state since · [str id · str? instance ·
     str client id · str host · int32 rebalance timeout · int32 session timeout · bytes metadata · bytes assignment]
  2  int32 epoch · int32 assignment epoch · int64 fingerprint of the subscribed topics
  3  str? instance · str? rack · str client id · str host · int32 rebalance timeout · [str topic] · str? regex ·
     str? assignor · uint8 classic (1: int32 session timeout · [str protocol · bytes metadata])
  4  partitions
  5  int32 epoch · int32 previous epoch · uint8 state · partitions assigned · partitions revoking
  6  int32 coordinator · int64 epoch
  partitions: [16 bytes topic id · [int32 partition]]

Offsets are keyed by topic id, so that a topic that is deleted and made again starts without any.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from headrace.coordinator.calls import Partitions
from headrace.coordinator.effects import Record
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
from headrace.errors import ErrorCode, KafkaError

_VERSION = 0
_NONE = 0xFFFF
_OFFSET = struct.Struct(">Bqiqq")
_PARTITION = struct.Struct(">i")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")


class Kind(IntEnum):
    OFFSET = 0
    CLASSIC_GROUP = 1
    CONSUMER_GROUP = 2
    MEMBER = 3
    TARGET = 4
    CURRENT = 5
    OWNER = 6


class CorruptRecord(KafkaError):
    """A record of the offsets topic cannot be read; the text says which part."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


# Writing


def _str(text: str) -> bytes:
    data = text.encode()
    if len(data) >= _NONE:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a name of {len(data)} bytes is too long, give at most {_NONE - 1}"
        )
    return _U16.pack(len(data)) + data


def _optional(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _str(text)


def _bytes(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _partitions(partitions: Partitions) -> bytes:
    topics = [(t, [i for _, i in part]) for t, part in groupby(sorted(partitions), key=lambda p: p[0])]
    parts = [_U32.pack(len(topics))]
    parts += [t.bytes + struct.pack(f">I{len(indexes)}i", len(indexes), *indexes) for t, indexes in topics]
    return b"".join(parts)


def group_prefix(group_id: str) -> bytes:
    """The part of an offset's key that is the group: made once for all offsets of a commit."""
    return bytes((Kind.OFFSET,)) + _str(group_id)


def offset_record(prefix: bytes, topic_id: uuid.UUID, partition: int, committed: CommittedOffset | None) -> Record:
    """An offset under `group_prefix`, or its tombstone."""
    key = prefix + topic_id.bytes + _PARTITION.pack(partition)
    if committed is None:
        return key, None
    head = _OFFSET.pack(_VERSION, committed.offset, committed.leader_epoch, committed.committed, committed.expires)
    return key, head + committed.metadata.encode()


def _key(kind: Kind, group_id: str, member_id: str | None = None) -> bytes:
    return bytes((kind,)) + _str(group_id) + (b"" if member_id is None else _str(member_id))


def classic_record(group_id: str, group: ClassicValue | None) -> Record:
    if group is None:
        return _key(Kind.CLASSIC_GROUP, group_id), None
    parts = [
        bytes((_VERSION,)),
        _str(group.protocol_type),
        struct.pack(">i", group.generation),
        _optional(group.protocol_name),
        _optional(group.leader),
        struct.pack(">qI", group.state_since, len(group.members)),
    ]
    for member in group.members:
        parts += [
            _str(member.member_id),
            _optional(member.group_instance_id),
            _str(member.client_id),
            _str(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.metadata),
            _bytes(member.assignment),
        ]
    return _key(Kind.CLASSIC_GROUP, group_id), b"".join(parts)


def epochs_record(group_id: str, epochs: ConsumerGroupEpochs | None) -> Record:
    key = _key(Kind.CONSUMER_GROUP, group_id)
    if epochs is None:
        return key, None
    return key, struct.pack(">Biiq", _VERSION, epochs.epoch, epochs.assignment_epoch, epochs.fingerprint)


def member_record(group_id: str, member_id: str, member: MemberMetadata | None) -> Record:
    key = _key(Kind.MEMBER, group_id, member_id)
    if member is None:
        return key, None
    parts = [
        bytes((_VERSION,)),
        _optional(member.instance_id),
        _optional(member.rack_id),
        _str(member.client_id),
        _str(member.client_host),
        struct.pack(">iI", member.rebalance_timeout_ms, len(member.topic_names)),
        *map(_str, member.topic_names),
        _optional(member.topic_regex),
        _optional(member.assignor),
    ]
    if member.classic is None:
        parts.append(b"\x00")
    else:
        parts.append(struct.pack(">BiI", 1, member.classic.session_timeout_ms, len(member.classic.protocols)))
        parts += [_str(name) + _bytes(metadata) for name, metadata in member.classic.protocols]
    return key, b"".join(parts)


def target_record(group_id: str, member_id: str, target: Partitions | None) -> Record:
    key = _key(Kind.TARGET, group_id, member_id)
    return key, None if target is None else bytes((_VERSION,)) + _partitions(target)


def current_record(group_id: str, member_id: str, current: MemberAssignment | None) -> Record:
    key = _key(Kind.CURRENT, group_id, member_id)
    if current is None:
        return key, None
    head = struct.pack(">BiiB", _VERSION, current.epoch, current.previous_epoch, current.state)
    return key, head + _partitions(current.assigned) + _partitions(current.revoking)


def owner_record(coordinator: int, epoch: int) -> Record:
    """The first record under an ownership: it says to every replica that a newer owner writes from here on."""
    return _key(Kind.OWNER, ""), struct.pack(">Biq", _VERSION, coordinator, epoch)


# Reading


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise CorruptRecord(f"{size} bytes expected at {self._at} of {len(self._data)}")
        part = self._data[self._at : end]
        self._at = end
        return part

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def text(self) -> str:
        return self.take(self.number(">H")).decode()

    def optional(self) -> str | None:
        size = self.number(">H")
        return None if size == _NONE else self.take(size).decode()

    def blob(self) -> bytes:
        return self.take(self.number(">I"))

    def partitions(self) -> Partitions:
        found = []
        for _ in range(self.number(">I")):
            topic_id = uuid.UUID(bytes=self.take(16))
            count = self.number(">I")
            found += [(topic_id, index) for index in struct.unpack(f">{count}i", self.take(4 * count))]
        return frozenset(found)

    def version(self) -> None:
        if (version := self.number(">B")) != _VERSION:
            raise CorruptRecord(f"version {version} is from a newer Headrace: upgrade this coordinator")


def _read_classic(reader: _Reader) -> ClassicValue:
    protocol_type, generation = reader.text(), reader.number(">i")
    protocol_name, leader = reader.optional(), reader.optional()
    state_since = reader.number(">q")
    members = tuple(
        ClassicMemberValue(
            reader.text(),
            reader.optional(),
            reader.text(),
            reader.text(),
            reader.number(">i"),
            reader.number(">i"),
            reader.blob(),
            reader.blob(),
        )
        for _ in range(reader.number(">I"))
    )
    return ClassicValue(protocol_type, generation, protocol_name, leader, state_since, members)


def _read_member(reader: _Reader) -> MemberMetadata:
    instance_id, rack_id = reader.optional(), reader.optional()
    client_id, client_host = reader.text(), reader.text()
    rebalance_timeout_ms = reader.number(">i")
    names = tuple(reader.text() for _ in range(reader.number(">I")))
    regex, assignor = reader.optional(), reader.optional()
    classic = None
    if reader.number(">B"):
        session_timeout_ms = reader.number(">i")
        protocols = tuple((reader.text(), reader.blob()) for _ in range(reader.number(">I")))
        classic = ClassicProtocol(session_timeout_ms, protocols)
    return MemberMetadata(
        instance_id, rack_id, client_id, client_host, rebalance_timeout_ms, names, regex, assignor, classic
    )


def _read_current(reader: _Reader) -> MemberAssignment:
    epoch, previous = reader.number(">i"), reader.number(">i")
    return MemberAssignment(epoch, previous, MemberState(reader.number(">B")), reader.partitions(), reader.partitions())


@dataclass(slots=True)
class ConsumerGroupValue:
    """A consumer group as its records tell it."""

    epochs: ConsumerGroupEpochs = field(default_factory=ConsumerGroupEpochs)
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    current: dict[str, MemberAssignment] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """What the records of one partition of the offsets topic say, in order of the log."""

    offsets: dict[str, dict[uuid.UUID, dict[int, CommittedOffset]]] = field(default_factory=dict)
    classic: dict[str, ClassicValue] = field(default_factory=dict)
    consumer: dict[str, ConsumerGroupValue] = field(default_factory=dict)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record; raises `CorruptRecord` and changes nothing if it cannot be read."""
        reader = _Reader(key)
        body = None if value is None else _Reader(value)
        try:
            kind = Kind(reader.number(">B"))
            group_id = reader.text()
            if body is not None:
                body.version()
            _REPLAY[kind](self, group_id, reader, body)
        except (ValueError, struct.error) as error:
            raise CorruptRecord(f"a record of the offsets topic cannot be read: {error}") from None

    def replay_all(self, records: Iterable[Record]) -> State:
        for key, value in records:
            self.replay(key, value)
        return self

    def _offset(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        topic_id, partition = uuid.UUID(bytes=key.take(16)), key.number(">i")
        if value is None:
            drop_offset(self.offsets, group_id, topic_id, partition)
            return
        offset, leader_epoch = value.number(">q"), value.number(">i")
        committed, expires = value.number(">q"), value.number(">q")
        metadata = value.rest().decode()
        at = self.offsets.setdefault(group_id, {}).setdefault(topic_id, {})
        at[partition] = CommittedOffset(offset, leader_epoch, metadata, committed, expires)

    def _classic_group(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        if value is None:
            self.classic.pop(group_id, None)
        else:
            self.classic[group_id] = _read_classic(value)

    def _consumer_group(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        if value is None:
            self.consumer.pop(group_id, None)
        else:
            epochs = ConsumerGroupEpochs(value.number(">i"), value.number(">i"), value.number(">q"))
            self.consumer.setdefault(group_id, ConsumerGroupValue()).epochs = epochs

    def _member(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        member_id = key.text()
        if value is not None:
            member = _read_member(value)
            self.consumer.setdefault(group_id, ConsumerGroupValue()).members[member_id] = member
        elif (group := self.consumer.get(group_id)) is not None:
            group.members.pop(member_id, None)

    def _target(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        member_id = key.text()
        if value is not None:
            target = value.partitions()
            self.consumer.setdefault(group_id, ConsumerGroupValue()).target[member_id] = target
        elif (group := self.consumer.get(group_id)) is not None:
            group.target.pop(member_id, None)

    def _current(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        member_id = key.text()
        if value is not None:
            current = _read_current(value)
            self.consumer.setdefault(group_id, ConsumerGroupValue()).current[member_id] = current
        elif (group := self.consumer.get(group_id)) is not None:
            group.current.pop(member_id, None)

    def _owner(self, group_id: str, key: _Reader, value: _Reader | None) -> None:
        """Who wrote what follows says nothing about groups."""


_REPLAY: dict[Kind, Callable[[State, str, _Reader, _Reader | None], None]] = {
    Kind.OFFSET: State._offset,
    Kind.CLASSIC_GROUP: State._classic_group,
    Kind.CONSUMER_GROUP: State._consumer_group,
    Kind.MEMBER: State._member,
    Kind.TARGET: State._target,
    Kind.CURRENT: State._current,
    Kind.OWNER: State._owner,
}


def drop_offset(
    offsets: dict[str, dict[uuid.UUID, dict[int, CommittedOffset]]],
    group_id: str,
    topic_id: uuid.UUID,
    partition: int,
) -> None:
    """Remove one offset, and the folders it leaves empty."""
    by_topic = offsets.get(group_id)
    if by_topic is None or (by_partition := by_topic.get(topic_id)) is None:
        return
    by_partition.pop(partition, None)
    if not by_partition:
        del by_topic[topic_id]
        if not by_topic:
            del offsets[group_id]
