"""Scenarios: text files of commands, each followed by `----` and what must come out.

    advance 3s
    ----
    a1 joined generation=1 leader=a-1 member=a-1 protocol=range members=a-1

A command is a word and `name=value` pairs; the first bare word of a call is its token, under which its answer appears.
Run with HEADRACE_REWRITE=1 to write what comes out into the files, then read the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.coordinator.group_world import World

from headrace.coordinator.calls import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    DeleteGroups,
    DeleteGroupsResponse,
    GroupToFetch,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    OffsetCommit,
    OffsetCommitResponse,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetFetch,
    OffsetFetchResponse,
    Partitions,
    PartitionToCommit,
    SyncGroup,
    SyncGroupResponse,
    TopicToCommit,
    TopicToFetch,
)
from headrace.coordinator.config import GroupConfig
from headrace.coordinator.effects import Append
from headrace.coordinator.records import Kind
from headrace.coordinator.subscription import Subscription, read_assignment, write_assignment, write_subscription
from headrace.errors import ErrorCode

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def run_file(path: Path, *, rewrite: bool = False) -> list[tuple[int, str, str, str]]:
    """The blocks whose output differs: line, command, expected, actual."""
    script = Script()
    wrong, out = [], []
    for line, comments, command, expected in _blocks(path.read_text()):
        if not command:
            out.append("\n".join(comments))
            continue
        actual = script.do(command)
        out.append("\n".join([*comments, command, "----", *([actual] if actual else [])]))
        if actual != expected:
            wrong.append((line, command, expected, actual))
    if rewrite:
        path.write_text("\n\n".join(out) + "\n")
        return []
    return wrong


def _blocks(text: str) -> Iterator[tuple[int, list[str], str, str]]:
    line = 1
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        comments = [part for part in lines if part.startswith("#")]
        rest = [part for part in lines if not part.startswith("#")]
        if rest:
            assert rest[1:2] == ["----"], f"line {line}: {rest[0]!r} is not followed by ----"
        yield line + len(comments), comments, rest[0] if rest else "", "\n".join(rest[2:])
        line += len(lines) + 1


def _duration(text: str) -> int:
    unit = max((u for u in _UNITS if text.endswith(u)), key=len)
    return int(text[: -len(unit)]) * _UNITS[unit]


class Script:
    """Runs commands on a world and says what came out."""

    def __init__(self) -> None:
        self.world = World()
        self._lines: list[str] = []
        self._start(World())

    def _start(self, world: World) -> None:
        world.on_reply = lambda token, response: self._lines.append(f"{token} {self._show(response)}")
        world.on_store = lambda append: self._lines.append(self._show_append(append))
        self.world = world

    def do(self, command: str) -> str:
        word, *rest = command.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        words = [part for part in rest if "=" not in part]
        self._lines = []
        getattr(self, f"_do_{word.replace('-', '_')}")(words, options)
        if self.world.resigned is not None:
            self._lines.append(f"resign {self.world.resigned.name}")
            self.world.resigned = None
        return "\n".join(self._lines)

    # The world

    def _do_start(self, words: list[str], options: dict[str, str]) -> None:
        topics = dict(part.split(":") for part in options.pop("topics", "t:4").split(","))
        config = GroupConfig.of(options)
        self._start(World(config, {name: int(count) for name, count in topics.items()}))

    def _do_topics(self, words: list[str], options: dict[str, str]) -> None:
        topics = {name: int(count) for name, count in options.items()}
        self.world.set_topics(topics, recreate="recreate" in words)

    def _do_advance(self, words: list[str], options: dict[str, str]) -> None:
        self.world.advance(_duration(words[0]))

    def _do_hold(self, words: list[str], options: dict[str, str]) -> None:
        self.world.hold = True

    def _do_store(self, words: list[str], options: dict[str, str]) -> None:
        self.world.hold = False
        self.world.store()

    def _do_fail(self, words: list[str], options: dict[str, str]) -> None:
        self.world.hold = False
        self.world.fail(ErrorCode[words[0]])

    def _do_failover(self, words: list[str], options: dict[str, str]) -> None:
        self.world.failover()

    def _do_unload(self, words: list[str], options: dict[str, str]) -> None:
        self.world.run(self.world.shard.unload(ErrorCode.NOT_COORDINATOR, self.world.now))

    def _do_expire(self, words: list[str], options: dict[str, str]) -> None:
        self.world.run(self.world.shard.expire_offsets(self.world.now))

    def _do_waiting(self, words: list[str], options: dict[str, str]) -> None:
        self._lines.append(" ".join(sorted(self.world.waiting)) or "nobody")

    # Calls

    def _partitions(self, text: str) -> Partitions:
        return self.world.topics.to_ids(_places(text))

    def _do_join(self, words: list[str], options: dict[str, str]) -> None:
        token = words[0]
        version = int(options.get("version", "9"))
        subscription = Subscription(
            int(options.get("subscription", "3")),
            tuple(options.get("topics", "t").split(",")),
            tuple(_places(options.get("owned", "none"))),
        )
        metadata = write_subscription(subscription) if "raw" not in options else options["raw"].encode()
        protocols = tuple((name, metadata) for name in options.get("protocols", "range").split(",") if name)
        self.world.call(
            JoinGroup(
                options.get("group", "g"),
                options.get("member", ""),
                options.get("instance"),
                _duration(options.get("session", "10s")),
                _duration(options.get("rebalance", "30s")),
                options.get("type", "consumer"),
                protocols,
                options.get("client", token.rstrip("0123456789")),
                "host",
                version,
                token,
            )
        )

    def _do_sync(self, words: list[str], options: dict[str, str]) -> None:
        shares = {}
        for share in options.get("assign", "").split(";"):
            if share:
                member, places = share.split(":")
                shares[member] = write_assignment(0, _places(places))
        self.world.call(
            SyncGroup(
                options.get("group", "g"),
                int(options["generation"]),
                options["member"],
                options.get("instance"),
                options.get("type"),
                options.get("protocol"),
                shares,
                words[0],
            )
        )

    def _do_heartbeat(self, words: list[str], options: dict[str, str]) -> None:
        group, generation = options.get("group", "g"), int(options["generation"])
        self.world.call(Heartbeat(group, generation, options["member"], options.get("instance"), words[0]))

    def _do_leave(self, words: list[str], options: dict[str, str]) -> None:
        members = [LeavingMember(m) for m in options.get("members", "").split(",") if m]
        members += [LeavingMember("", i) for i in options.get("instances", "").split(",") if i]
        self.world.call(LeaveGroup(options.get("group", "g"), members, words[0]))

    def _do_consume(self, words: list[str], options: dict[str, str]) -> None:
        epoch = int(options["epoch"])
        topics, owned = options.get("topics"), options.get("owned", "none" if epoch == 0 else None)
        if epoch == 0 and topics is None and "regex" not in options:
            topics = "t"
        self.world.call(
            ConsumerGroupHeartbeat(
                options.get("group", "g"),
                options.get("member", ""),
                epoch,
                options.get("instance"),
                None,
                _duration(options.get("rebalance", "30s")) if epoch == 0 else -1,
                None if topics is None else tuple(t for t in topics.split(",") if t),
                options.get("regex"),
                options.get("assignor"),
                None if owned is None else self._partitions(owned),
                version=int(options.get("version", "1")),
                token=words[0],
            )
        )

    def _do_commit(self, words: list[str], options: dict[str, str]) -> None:
        topics: dict[str, TopicToCommit] = {}
        for part in options["offsets"].split(","):
            place, offset = part.split(":")
            name, index = place.rsplit("-", 1)
            metadata = "x" * int(options.get("metadata", "0"))
            topics.setdefault(name, TopicToCommit(name, [])).partitions.append(
                PartitionToCommit(int(index), int(offset), metadata=metadata)
            )
        self.world.call(
            OffsetCommit(
                options.get("group", "g"),
                list(topics.values()),
                int(options.get("generation", "-1")),
                options.get("member", ""),
                options.get("instance"),
                version=int(options.get("version", "9")),
                token=words[0],
            )
        )

    def _do_fetch(self, words: list[str], options: dict[str, str]) -> None:
        topics = None
        if "offsets" in options:
            topics = [TopicToFetch(name, [index]) for name, index in _places(options["offsets"])]
        asked = [
            GroupToFetch(group, topics, options.get("member"), int(options.get("epoch", "-1")))
            for group in options.get("group", "g").split(",")
        ]
        self.world.call(OffsetFetch(asked, True, words[0]))

    def _do_delete_offsets(self, words: list[str], options: dict[str, str]) -> None:
        topics = [TopicToFetch(name, [index]) for name, index in _places(options["offsets"])]
        self.world.call(OffsetDelete(options.get("group", "g"), topics, words[0]))

    def _do_delete_groups(self, words: list[str], options: dict[str, str]) -> None:
        self.world.call(DeleteGroups(options["groups"].split(","), words[0]))

    def _do_list(self, words: list[str], options: dict[str, str]) -> None:
        states = [s for s in options.get("states", "").split(",") if s]
        types = [t for t in options.get("types", "").split(",") if t]
        for group in self.world.shard.list_groups(states, types):
            self._lines.append(f"{group.group_id} {group.type} {group.state} protocol-type={group.protocol_type}")

    def _do_describe(self, words: list[str], options: dict[str, str]) -> None:
        for group in self.world.shard.describe_groups(words or ["g"]):
            self._lines.append(
                f"{group.group_id} {group.error.name} {group.state} type={group.protocol_type} "
                f"protocol={group.protocol_name} generation={group.generation_id}"
            )
            for member in group.members:
                self._lines.append(f"  {member.member_id} {_assignment(member.assignment)}")

    def _do_describe_consumer(self, words: list[str], options: dict[str, str]) -> None:
        for group in self.world.shard.describe_consumer_groups(words or ["g"]):
            self._lines.append(
                f"{group.group_id} {group.error.name} {group.state} epoch={group.group_epoch} "
                f"assignment-epoch={group.assignment_epoch} assignor={group.assignor_name}"
            )
            for m in sorted(group.members, key=lambda m: m.member_id):
                kind = "consumer" if m.member_type else "classic"
                self._lines.append(
                    f"  {m.member_id} {kind} epoch={m.member_epoch} "
                    f"has={self._show_partitions(m.assignment)} target={self._show_partitions(m.target_assignment)}"
                )

    # What came out

    def _show_partitions(self, partitions: Partitions) -> str:
        return ",".join(f"{name}-{index}" for name, index in self.world.topics.to_names(partitions)) or "none"

    def _show_append(self, append: Append) -> str:
        kinds: dict[str, int] = {}
        for key, value in append.records:
            name = Kind(key[0]).name.lower() + ("" if value is not None else "-tombstone")
            kinds[name] = kinds.get(name, 0) + 1
        return "stored " + " ".join(f"{name}×{count}" for name, count in kinds.items())

    def _show(self, response: Any) -> str:
        match response:
            case JoinGroupResponse():
                return _join(response)
            case SyncGroupResponse():
                if response.error:
                    return response.error.name
                return f"synced protocol={response.protocol_name} share={_assignment(response.assignment)}"
            case HeartbeatResponse():
                return response.error.name
            case LeaveGroupResponse():
                parts = [f"{m.member_id or m.group_instance_id}={m.error.name}" for m in response.members]
                return " ".join(["left", *parts]) if not response.error else response.error.name
            case ConsumerGroupHeartbeatResponse():
                if response.error:
                    return f"{response.error.name} ({response.error_message})"
                share = "" if response.assignment is None else f" share={self._show_partitions(response.assignment)}"
                return f"member={response.member_id} epoch={response.member_epoch}{share}"
            case OffsetCommitResponse() | OffsetDeleteResponse():
                parts = [f"{t.name}-{index}={code.name}" for t in response.topics for index, code in t.partitions]
                return " ".join(parts) or response.error.name
            case OffsetFetchResponse():
                return " | ".join(_fetched(group) for group in response.groups)
            case DeleteGroupsResponse():
                return " ".join(f"{group}={code.name}" for group, code in response.groups)
        raise AssertionError(response)


def _places(text: str) -> list[tuple[str, int]]:
    return [] if text == "none" else [(p.rsplit("-", 1)[0], int(p.rsplit("-", 1)[1])) for p in text.split(",") if p]


def _assignment(data: bytes) -> str:
    return ",".join(f"{name}-{index}" for name, index in read_assignment(data)) or "none"


def _join(response: JoinGroupResponse) -> str:
    if response.error:
        return f"{response.error.name} member={response.member_id or '-'}"
    members = ",".join(m.member_id for m in response.members)
    return (
        f"joined generation={response.generation_id} protocol={response.protocol_name} member={response.member_id} "
        f"leader={response.leader or '-'}"
        + (f" members={members}" if members else "")
        + (" skip-assignment" if response.skip_assignment else "")
    )


def _fetched(group: Any) -> str:
    if group.error:
        return f"{group.group_id} {group.error.name}"
    parts = [f"{t.name}-{p.partition}:{p.offset}" for t in group.topics for p in t.partitions]
    return " ".join([group.group_id, *parts])
