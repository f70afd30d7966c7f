"""The client's view of a cluster: the newest picture from the metadata service, and channels to those named in it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from headrace.client.config import Config
from headrace.cluster.image import Image, Node, Partition, Topic
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, SystemClock
from headrace.rpc.channels import Channels, request_header
from headrace.rpc.errors import kafka_error_of
from headrace.rpc.image_follower import ImageFollower
from headrace.v1 import broker_pb2_grpc, common_pb2, controller_pb2_grpc, coordinator_pb2_grpc

T = TypeVar("T")

TOPIC_GRACE = 2.0
"""Seconds a topic may be missing from the picture before it is said not to exist: news of a new one is on its way."""


class ClusterUnreachable(KafkaError):
    """No metadata server answered; the text says which were tried.

    >>> ClusterUnreachable(("127.0.0.1:9094",)).code.name
    'BROKER_NOT_AVAILABLE'
    """

    def __init__(self, servers: tuple[str, ...]) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, f"no cluster answers at {', '.join(servers)}")
        self.servers = servers


class Backoff:
    """Pauses between repetitions: doubling up to a limit, each a fifth shorter or longer by chance, as Kafka's.

    >>> Backoff(0.1, 1.0, random.Random(7)).pause(1) <= 0.12
    True
    """

    def __init__(self, first: float, longest: float, chance: random.Random | None = None) -> None:
        self._first = first
        self._longest = max(first, longest)
        self._chance = chance or random.Random()

    @classmethod
    def of(cls, config: Config, chance: random.Random | None = None) -> Backoff:
        return cls(config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms"), chance)

    def pause(self, attempts: int) -> float:
        """Seconds to wait after the attempt with this number, from 1."""
        doubled: float = min(self._first * 2 ** min(attempts - 1, 30), self._longest)
        return doubled * self._chance.uniform(0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a client touches the world with: sockets and time, or what stands for them in a simulation."""

    clock: Clock = field(default_factory=SystemClock)
    channels: Channels = field(default_factory=Channels)
    chance: random.Random = field(default_factory=random.Random)


class Cluster:
    """A connection to a cluster, shared by what is built on it."""

    def __init__(self, config: Config, outside: Outside | None = None) -> None:
        outside = outside or Outside()
        self.servers: tuple[str, ...] = config["bootstrap.servers"]
        self.client_id: str = config["client.id"]
        self.clock = outside.clock
        self.chance = outside.chance
        self._connect_timeout = config.seconds("connect.timeout.ms")
        self._request_timeout = config.seconds("request.timeout.ms")
        self.backoff = Backoff.of(config, self.chance)
        self.channels = outside.channels
        self.follower = ImageFollower(
            self.servers, self.channels, client_id=self.client_id, clock=self.clock, chance=self.chance
        )

    @property
    def image(self) -> Image:
        return self.follower.image

    async def start(self) -> None:
        """Returns once the first picture is there; `ClusterUnreachable` when it does not come."""
        self.follower.start()
        try:
            await self.follower.wait_for(lambda image: image.revision > 0, self._connect_timeout)
        except KafkaError:
            await self.stop()
            raise ClusterUnreachable(self.servers) from None

    async def stop(self) -> None:
        await self.follower.stop()
        await self.channels.close()

    def header(self) -> common_pb2.RequestHeader:
        return request_header(self.client_id)

    # --- who to ask

    def leader(self, topic: str, partition: int) -> tuple[Node, Partition] | None:
        """The leader of a partition and its state; None while there is none that lives."""
        state = self.image.partition(topic, partition)
        node = self.image.brokers.get(state.leader) if state is not None else None
        return (node, state) if node is not None and state is not None else None

    async def topic(self, name: str, timeout: float = TOPIC_GRACE) -> Topic:
        """The topic, waiting a little for one that is just being created."""
        found = self.image.topics.get(name)
        if found is not None:
            return found
        try:
            image = await self.follower.wait_for(lambda image: name in image.topics, timeout)
        except KafkaError:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}") from None
        return image.topics[name]

    def broker(self, node: Node) -> broker_pb2_grpc.BrokerAsyncStub:
        return broker_pb2_grpc.BrokerStub(self.channels.get(str(node.grpc)))

    def coordinator(self, node: Node) -> coordinator_pb2_grpc.CoordinatorAsyncStub:
        return coordinator_pb2_grpc.CoordinatorStub(self.channels.get(str(node.grpc)))

    def any_broker(self) -> Node:
        nodes = list(self.image.brokers.values())
        if not nodes:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the cluster has no live broker: start one")
        return self.chance.choice(nodes)

    async def controller(self, timeout: float) -> controller_pb2_grpc.ControllerAsyncStub:
        try:
            image = await self.follower.wait_for(lambda image: image.controller is not None, timeout)
        except KafkaError:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no active controller: start one") from None
        assert image.controller is not None
        return controller_pb2_grpc.ControllerStub(self.channels.get(str(image.controller.grpc)))

    # --- asking

    async def call(self, method: Any, request: Any, timeout: float | None = None) -> Any:
        """One unary call; whatever goes wrong is a `KafkaError`."""
        request.header.CopyFrom(self.header())
        try:
            return await method(request, timeout=self._request_timeout if timeout is None else timeout)
        except grpc.aio.AioRpcError as error:
            raise kafka_error_of(error) from None

    async def until_done(self, attempt: Callable[[float], Awaitable[T]], timeout: float) -> T:
        """Repeats `attempt(seconds left)` while it fails with something that passes, for at most `timeout` seconds."""
        deadline = self.clock.monotonic() + timeout
        attempts = 0
        while True:
            left = deadline - self.clock.monotonic()
            try:
                return await attempt(max(left, 0.001))
            except KafkaError as error:
                attempts += 1
                pause = self.backoff.pause(attempts)
                if not error.code.retriable or self.clock.monotonic() + pause >= deadline:
                    raise
            await self.clock.sleep(pause)


def raise_for(error: common_pb2.Error) -> None:
    """Raises what an answer says went wrong, if anything did."""
    if error.code:
        raise error_of(error)


def error_of(error: common_pb2.Error) -> KafkaError:
    """The exception for the `Error` of an answer."""
    try:
        return KafkaError(ErrorCode(error.code), error.message)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error {error.code}: {error.message}")
