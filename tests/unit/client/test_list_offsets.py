"""Offsets by time, while the cluster changes."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from headrace.client.admin import list_offsets
from headrace.client.types import TopicPartition
from headrace.cluster.image import Endpoint, Image, Node
from headrace.v1 import broker_pb2


async def test_a_leader_that_goes_while_another_one_answers_is_still_asked() -> None:
    """Between two answers the picture of the cluster may have lost the broker of the second."""
    nodes = {n: Node(n, 1, Endpoint("localhost", n), Endpoint("localhost", n), "", uuid.UUID(int=n)) for n in (1, 2)}
    cluster: Any = SimpleNamespace(image=Image(brokers=nodes), asked=[])

    async def call(method: Any, request: broker_pb2.ListOffsetsRequest, _: float) -> broker_pb2.ListOffsetsResponse:
        cluster.asked.append(method)
        cluster.image = Image()
        answer = broker_pb2.ListOffsetsResponse()
        for _each in request.partitions:
            answer.partitions.add(offset=7)
        return answer

    cluster.call = call
    cluster.leader = lambda topic, index: (nodes[index], None)
    cluster.broker = lambda node: SimpleNamespace(ListOffsets=node.id)
    cluster.until_done = lambda attempt, seconds: attempt(seconds)
    found = await list_offsets(cluster, {TopicPartition("t", 1): -2, TopicPartition("t", 2): -2}, 1.0)
    assert [at.offset for at in found.values()] == [7, 7]
    assert cluster.asked == [1, 2]
