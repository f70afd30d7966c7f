"""ListGroups: the groups of every coordinator.

Versions 0 to 5; 4 filters by state (KIP-518), 5 by type (KIP-848). Clients ask every broker and put the answers
together: each broker asks all coordinators, so whichever answers, nothing is missing. When a coordinator does not
answer, or is still reading its groups, the answer says COORDINATOR_LOAD_IN_PROGRESS and lists what is known.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode
from headrace.rpc import request_header
from headrace.v1 import coordinator_pb2 as pb
from headrace.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

ASK_SECONDS = 5.0


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
async def list_groups(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    wanted = pb.ListGroupsRequest(
        header=request_header(context.client_id or ""),
        states=getattr(request, "states_filter", ()),
        types=getattr(request, "types_filter", ()),
    )
    nodes = list(broker.image.coordinators.values())
    answers = await asyncio.gather(*(_ask(broker, str(node.grpc), wanted) for node in nodes))
    complete = bool(nodes) and all(answer is not None and not answer.error.code for answer in answers)
    groups = {group.group_id: group for answer in answers if answer is not None for group in answer.groups}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE if complete else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
            for group in groups.values()
        ],
    }


async def _ask(broker: Broker, address: str, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse | None:
    try:
        return await CoordinatorStub(broker.channels.get(address)).ListGroups(request, timeout=ASK_SECONDS)
    except grpc.aio.AioRpcError:
        return None
