"""Committed offsets of a shard's groups, by group, topic id and partition.

A commit counts when it is stored, and not before: nobody is shown an offset that a failover could take back. What is on
its way to the log is remembered, so that a deletion that follows it removes it too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import partial

from headrace.coordinator.calls import (
    FetchedGroup,
    FetchedOffset,
    FetchedTopic,
    GroupToFetch,
    OffsetCommit,
    OffsetCommitResponse,
    OffsetDelete,
    OffsetDeleteResponse,
    TopicResult,
)
from headrace.coordinator.classic import ClassicGroup
from headrace.coordinator.consumer import ConsumerGroup
from headrace.coordinator.effects import Record
from headrace.coordinator.env import Env
from headrace.coordinator.records import drop_offset, group_prefix, offset_record
from headrace.coordinator.values import CommittedOffset
from headrace.errors import ErrorCode

_Entry = tuple[uuid.UUID, int, CommittedOffset]
_At = tuple[uuid.UUID, int]
_NONE = ErrorCode.NONE


class Offsets:
    """The offsets of all groups of one shard. Whether a member may commit is its group's to say."""

    def __init__(self, env: Env) -> None:
        self.by_group: dict[str, dict[uuid.UUID, dict[int, CommittedOffset]]] = {}
        self._env = env
        self._in_flight: dict[str, dict[int, list[_Entry]]] = {}
        self._commits = 0

    def commit(self, call: OffsetCommit) -> None:
        """Store the offsets that can be; each partition has a result of its own."""
        env = self._env
        limit = env.config.offset_metadata_max_bytes
        expires = env.now + call.retention_time_ms if call.retention_time_ms >= 0 else -1
        prefix = group_prefix(call.group_id)
        records: list[Record] = []
        entries: list[_Entry] = []
        results: list[TopicResult] = []
        for topic in call.topics:
            info = env.topics.find(topic.name, topic.topic_id)
            outcome: list[tuple[int, ErrorCode]] = []
            results.append(TopicResult(topic.name, topic.topic_id, outcome))
            if info is None:
                named = topic.topic_id is None
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named else ErrorCode.UNKNOWN_TOPIC_ID
                outcome += [(p.partition, code) for p in topic.partitions]
                continue
            for p in topic.partitions:
                if not 0 <= p.partition < info.partitions:
                    outcome.append((p.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                elif len(p.metadata) > limit:
                    outcome.append((p.partition, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                else:
                    committed = CommittedOffset(p.offset, p.leader_epoch, p.metadata, env.now, expires)
                    entries.append((info.id, p.partition, committed))
                    records.append(offset_record(prefix, info.id, p.partition, committed))
                    outcome.append((p.partition, _NONE))
        response = OffsetCommitResponse(results)
        if records:
            env.fx.reply_after(self._append_commit(call.group_id, records, entries), call, response)
        else:
            env.fx.reply(call, response)

    def _append_commit(self, group_id: str, records: list[Record], entries: list[_Entry]) -> int:
        self._commits += 1
        number = self._commits
        waiting = self._in_flight.get(group_id)
        if waiting is None:
            waiting = self._in_flight[group_id] = {}
        waiting[number] = entries
        return self._env.fx.append(
            records, partial(self._stored, group_id, number), partial(self._landed, group_id, number)
        )

    def _landed(self, group_id: str, number: int, error: ErrorCode = _NONE) -> list[_Entry]:
        """A commit is no longer on its way."""
        waiting = self._in_flight[group_id]
        entries = waiting.pop(number)
        if not waiting:
            del self._in_flight[group_id]
        return entries

    def _stored(self, group_id: str, number: int) -> None:
        entries = self._landed(group_id, number)
        by_topic = self.by_group.get(group_id)
        if by_topic is None:
            by_topic = self.by_group[group_id] = {}
        for topic_id, partition, committed in entries:
            offsets = by_topic.get(topic_id)
            if offsets is None:
                offsets = by_topic[topic_id] = {}
            offsets[partition] = committed
        self._env.metrics.offset_commits += len(entries)

    def fetch(self, asked: GroupToFetch) -> FetchedGroup:
        """How far a group has come; -1 where it has not committed."""
        topics = self._env.topics
        by_topic = self.by_group.get(asked.group_id, {})
        if asked.topics is None:
            found = [(topics.by_id[t], offsets) for t, offsets in by_topic.items() if t in topics.by_id]
            every = [
                FetchedTopic(info.name, info.id, [_fetched(index, offsets[index]) for index in sorted(offsets)])
                for info, offsets in sorted(found, key=lambda f: f[0].name)
            ]
            return FetchedGroup(asked.group_id, _NONE, every)
        result = FetchedGroup(asked.group_id)
        for topic in asked.topics:
            info = topics.find(topic.name, topic.topic_id)
            if info is None and topic.topic_id is not None:
                unknown = [FetchedOffset(index, error=ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partitions]
                result.topics.append(FetchedTopic(topic.name, topic.topic_id, unknown))
                continue
            of_topic = by_topic.get(info.id, {}) if info is not None else {}
            some = [_fetched(index, of_topic.get(index)) for index in topic.partitions]
            result.topics.append(FetchedTopic(topic.name, topic.topic_id, some))
        return result

    def delete(self, call: OffsetDelete, group: ClassicGroup | ConsumerGroup) -> None:
        """Forget offsets of topics that no member reads."""
        present = set(self._all_of(call.group_id))
        response = OffsetDeleteResponse()
        gone: list[_At] = []
        for topic in call.topics:
            info = self._env.topics.find(topic.name, topic.topic_id)
            outcome: list[tuple[int, ErrorCode]] = []
            for index in topic.partitions:
                if info is None or not 0 <= index < info.partitions:
                    outcome.append((index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                elif group.subscribed_to(info.name):
                    outcome.append((index, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC))
                else:
                    outcome.append((index, _NONE))
                    if (info.id, index) in present:
                        gone.append((info.id, index))
            response.topics.append(TopicResult(topic.name, topic.topic_id, outcome))
        if gone:
            self._env.metrics.offset_deletions += len(gone)
            self._env.fx.reply_after(self.forget({call.group_id: gone}), call, response)
        else:
            self._env.fx.reply(call, response)

    def _all_of(self, group_id: str) -> Iterator[_At]:
        for topic_id, offsets in self.by_group.get(group_id, {}).items():
            for index in offsets:
                yield topic_id, index
        yield from self._on_the_way(group_id)

    def _on_the_way(self, group_id: str) -> Iterator[_At]:
        for entries in self._in_flight.get(group_id, {}).values():
            for topic_id, index, _ in entries:
                yield topic_id, index

    def has_any(self, group_id: str) -> bool:
        return group_id in self.by_group or group_id in self._in_flight

    def everything(self, group_id: str) -> list[_At]:
        """All a group has committed, stored or on its way."""
        return sorted(set(self._all_of(group_id)))

    def of_topics(self, topic_ids: set[uuid.UUID]) -> dict[str, list[_At]]:
        """All that was committed for these topics, by group."""
        groups = {*self.by_group, *self._in_flight}
        found = {g: [at for at in self.everything(g) if at[0] in topic_ids] for g in sorted(groups)}
        return {g: places for g, places in found.items() if places}

    def expired(self, group_id: str, group: ClassicGroup | ConsumerGroup) -> list[_At]:
        """Offsets whose retention is over; those a member reads, or that are being committed now, stay."""
        now = self._env.now
        retention = self._env.config.offsets_retention_minutes * 60_000
        by_id = self._env.topics.by_id
        busy = set(self._on_the_way(group_id))
        gone: list[_At] = []
        for topic_id, offsets in self.by_group.get(group_id, {}).items():
            info = by_id.get(topic_id)
            if info is not None and not group.is_empty() and group.subscribed_to(info.name):
                continue
            for index, committed in offsets.items():
                base = group.expiry_base(committed.committed)
                if base is None or (topic_id, index) in busy:
                    continue
                over = now >= committed.expires if committed.expires >= 0 else now - base >= retention
                if over:
                    gone.append((topic_id, index))
        return gone

    def forget(self, gone: dict[str, list[_At]], extra: Iterable[Record] = (), *, speculative: bool = False) -> int:
        """Append the tombstones of offsets (and `extra` after them); they are gone when that is stored."""
        records: list[Record] = []
        for group_id, places in gone.items():
            prefix = group_prefix(group_id)
            records += [offset_record(prefix, topic_id, index, None) for topic_id, index in places]
        records += extra

        def stored() -> None:
            for group_id, places in gone.items():
                for topic_id, index in places:
                    drop_offset(self.by_group, group_id, topic_id, index)

        return self._env.fx.append(records, stored, speculative=speculative)


def _fetched(index: int, committed: CommittedOffset | None) -> FetchedOffset:
    if committed is None:
        return FetchedOffset(index)
    return FetchedOffset(index, committed.offset, committed.leader_epoch, committed.metadata)
