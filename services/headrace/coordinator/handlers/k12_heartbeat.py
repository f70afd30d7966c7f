"""Heartbeat: a member of a classic group is alive.

Versions 0 to 4; 3 brings static members (KIP-345). REBALANCE_IN_PROGRESS tells the member to join again.
Read and written by hand: ten thousand members send thousands a second.
"""

from __future__ import annotations

import struct

from headrace.coordinator.calls import Heartbeat, HeartbeatResponse
from headrace.coordinator.coordinator import Coordinator
from headrace.wire import primitives as p
from headrace.wire.api import LATER, Context, handles
from headrace.wire.errors import MalformedRequest
from headrace.wire.protocol import ApiKey

INSTANCES, FLEXIBLE = 3, 4
_OLDEST = struct.Struct(">h")
_THROTTLED = struct.Struct(">ih")
_FLEXIBLE = struct.Struct(">ihB")


@handles(ApiKey.HEARTBEAT, versions=(0, 4), raw=True)
def heartbeat(coordinator: Coordinator, context: Context, body: memoryview) -> object:
    version = context.version
    call = parse(version, body)
    call.token = lambda response: context.complete(write(version, response))
    coordinator.handle(call)
    return LATER


def parse(version: int, body: memoryview) -> Heartbeat:
    """The request in `body`; what is wrong with it is a `MalformedRequest`."""
    flexible = version >= FLEXIBLE
    try:
        group_id, at = p.read_string(body, 0, flexible)
        generation_id = p.INT32.unpack_from(body, at)[0]
    except struct.error:
        raise MalformedRequest("the Heartbeat request ends too early") from None
    member_id, at = p.read_string(body, at + 4, flexible)
    instance_id = None
    if version >= INSTANCES:
        instance_id, at = p.read_nullable_string(body, at, flexible)
    if flexible:
        p.skip_tags(body, at)
    return Heartbeat(group_id, generation_id, member_id, instance_id)


def write(version: int, response: HeartbeatResponse) -> bytes:
    """The response's body."""
    if version >= FLEXIBLE:
        return _FLEXIBLE.pack(0, response.error, 0)
    if version >= 1:
        return _THROTTLED.pack(0, response.error)
    return _OLDEST.pack(response.error)
