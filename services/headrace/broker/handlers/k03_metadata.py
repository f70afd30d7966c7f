"""Metadata: brokers, topics and leaders, from this broker's picture of the cluster.

Versions 0 to 13. Any broker answers for the whole cluster. Coordinators are among the nodes, as 1000000 and up: clients
keep only nodes that are named here. The controller named is the broker that answers: it forwards
what changes the cluster, so that clients need not reach the controller. A topic that is not there is created when
`auto.create.topics.enable` and the request allow it, and the answer waits until it can be used.

Who leads is looked up when everything before the request is answered. A client that looks for a new leader often asks
behind a Produce that waits for the dead one to leave the in-sync set: what was true before that would send it astray.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.broker.broker import Broker
from headrace.cluster.topics import is_internal
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import request_header
from headrace.v1 import controller_pb2 as pb
from headrace.wire import picture
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

AUTO_CREATE_SECONDS = 5.0


@handles(ApiKey.METADATA, versions=(0, 13), parks=True)
async def metadata(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    wanted = None if context.version == 0 and not request.topics else request.topics
    if wanted and getattr(request, "allow_auto_topic_creation", True) and broker.config["auto.create.topics.enable"]:
        await create_missing(broker, wanted, context.client_id or "")
    await context.in_turn()
    return picture.metadata(broker.image, wanted, broker.id, context.connection.listener_name)


async def create_missing(broker: Broker, wanted: Iterable[Any], client_id: str) -> None:
    """Creates the named topics that are not there; what cannot be created stays missing in the answer."""
    names = [w.name for w in wanted if w.name is not None and w.name not in broker.image.topics]
    # An internal topic is its coordinator's to create.
    legal = [n for n in names if picture.why_missing(n) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_internal(n)]
    if not legal:
        return
    topics = [pb.CreateTopicsRequest.NewTopic(name=name, partitions=-1, replication_factor=-1) for name in legal]
    request = pb.CreateTopicsRequest(
        header=request_header(client_id), topics=topics, timeout_ms=int(AUTO_CREATE_SECONDS * 1000)
    )
    try:
        await broker.controller.call(lambda c: c.CreateTopics, request, AUTO_CREATE_SECONDS)
        await broker.cluster.wait_for(lambda image: all(name in image.topics for name in legal), AUTO_CREATE_SECONDS)
    except KafkaError:
        return
