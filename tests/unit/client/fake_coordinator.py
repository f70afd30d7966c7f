"""A coordinator of one group in a few lines, with Kafka's rules for generations, behind the client's port."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import common_pb2
from headrace.v1 import coordinator_pb2 as pb


def error(code: ErrorCode) -> common_pb2.Error:
    return common_pb2.Error(code=common_pb2.ErrorCode.ValueType(code))


class FakeCoordinator:
    """Joins complete when every known member has joined again."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, bytes] = {}
        self.joined: dict[str, asyncio.Future[pb.JoinGroupResponse]] = {}
        self.synced: dict[str, asyncio.Future[bytes]] = {}
        self.rebalancing = False
        self.offsets: dict[tuple[str, int], int] = {}
        self.calls: list[str] = []
        self.failures: list[KafkaError] = []
        self._ids = 0
        self._pending: set[str] = set()
        """Ids that were given out and did not join yet."""

    async def call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        self.calls.append(method)
        if self.failures:
            raise self.failures.pop(0)
        return await getattr(self, method)(request)

    def expel(self, member: str) -> None:
        self.members.pop(member, None)
        self._rebalance()

    def _rebalance(self) -> None:
        self.rebalancing = True
        for future in self.synced.values():
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))
        self.synced = {}
        self._complete()

    def _complete(self) -> None:
        if not self.members or set(self.joined) != set(self.members):
            return
        self.generation += 1
        self.rebalancing = False
        leader = min(self.members)
        self.synced = {m: asyncio.get_running_loop().create_future() for m in self.members}
        waiting, self.joined = self.joined, {}
        for member, future in waiting.items():
            listed = self.members.items() if member == leader else ()
            future.set_result(
                pb.JoinGroupResponse(
                    generation_id=self.generation,
                    protocol_name=self.protocol,
                    leader=leader,
                    member_id=member,
                    members=[pb.JoinedMember(member_id=m, metadata=data) for m, data in listed],
                )
            )

    async def JoinGroup(self, request: pb.JoinGroupRequest) -> pb.JoinGroupResponse:
        member = request.member.member_id
        if not member:
            self._ids += 1
            self._pending.add(f"m{self._ids}")
            return pb.JoinGroupResponse(error=error(ErrorCode.MEMBER_ID_REQUIRED), member_id=f"m{self._ids}")
        if member not in self.members and member not in self._pending:
            return pb.JoinGroupResponse(error=error(ErrorCode.UNKNOWN_MEMBER_ID))
        self._pending.discard(member)
        self.protocol = request.protocols[0].name
        self.members[member] = request.protocols[0].metadata
        if not self.rebalancing:
            self._rebalance()
        future = self.joined[member] = asyncio.get_running_loop().create_future()
        self._complete()
        return await future

    def _stale(self, member: pb.Member) -> ErrorCode | None:
        if member.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.ILLEGAL_GENERATION if member.generation_id != self.generation else None

    async def SyncGroup(self, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        stale = self._stale(request.member)
        if stale is not None or self.rebalancing:
            return pb.SyncGroupResponse(error=error(stale or ErrorCode.REBALANCE_IN_PROGRESS))
        synced = self.synced
        for member, share in request.assignments.items():
            synced[member].set_result(share)
        try:
            return pb.SyncGroupResponse(assignment=await synced[request.member.member_id])
        except KafkaError as refused:
            return pb.SyncGroupResponse(error=error(refused.code))

    async def Heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        code = self._stale(request.member) or (ErrorCode.REBALANCE_IN_PROGRESS if self.rebalancing else None)
        return pb.HeartbeatResponse(error=error(code) if code else None)

    async def LeaveGroup(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        for member in request.members:
            self.expel(member.member_id)
        return pb.LeaveGroupResponse()

    async def OffsetCommit(self, request: pb.OffsetCommitRequest) -> pb.OffsetCommitResponse:
        code = self._stale(request.member)
        answer = pb.OffsetCommitResponse()
        for at in request.offsets:
            answer.partitions.add(partition=at.partition, error=error(code) if code else None)
            if code is None:
                self.offsets[at.partition.topic, at.partition.partition] = at.offset
        return answer

    async def OffsetFetch(self, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        answer = pb.OffsetFetchResponse()
        group = answer.groups.add(group_id=request.groups[0].group_id)
        for wanted in request.groups[0].partitions:
            group.offsets.add(partition=wanted, offset=self.offsets.get((wanted.topic, wanted.partition), -1))
        return answer
