"""Passing on what is no coordinator's business: clients take a coordinator for one more broker.

Clients keep every node they use in the table that Metadata fills: librdkafka drops a coordinator that is not in it, and
Java's admin client never finds it. So coordinators are in it, with node ids that no broker has; and then a client may
send them whatever it would send to any broker (Metadata, CreateTopics, InitProducerId, ...). Such a request goes to a
broker as it came, and its answer back. What only the leader of a partition can answer is not passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from headrace.cluster.image import Image, Node
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, Random
from headrace.wire import messages, picture
from headrace.wire.api import Api, Context, Handler
from headrace.wire.client import Client
from headrace.wire.errors import ConnectionClosed
from headrace.wire.protocol import ApiKey

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
BACKOFF = 0.1
MAX_IN_FLIGHT = 256

_OF_ONE_BROKER = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
    }
)
_NAME_NODES: dict[int, str] = {ApiKey.METADATA: "node_id", ApiKey.DESCRIBE_CLUSTER: "broker_id"}
"""Answers with addresses, and what a node's id is called in them."""
_KNOWN = frozenset(int(key) for key in ApiKey)


Connect = Callable[[str, int, str], Awaitable[Client]]
"""Host, port and client id to a connection."""


async def connect_client(host: str, port: int, client_id: str) -> Client:
    return await Client.connect(
        host,
        port,
        client_id=client_id,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=ANSWER_SECONDS,
        max_in_flight=MAX_IN_FLIGHT,
    )


class Passing:
    """A connection to some broker, by its `listener`, and a handler for everything that goes there."""

    def __init__(
        self,
        api: Api,
        image: Callable[[], Image],
        clock: Clock,
        random: Random,
        client_id: str,
        listener: str = "",
        connect: Connect = connect_client,
    ) -> None:
        self._api = api
        self._own = frozenset(api.table)
        self._image = image
        self._clock = clock
        self._random = random
        self._client_id = client_id
        self._listener = listener
        self._open = connect
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def learn(self) -> None:
        """Waits for a broker, and takes over what it serves."""
        while True:
            try:
                await self._connected()
                return
            except KafkaError as error:
                log.debug("no broker yet: %s", error)
                await self._clock.sleep(BACKOFF)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is not None and not self._client.closed:
                return self._client
            brokers = [node for node in self._image().brokers.values() if node.kafka is not None]
            self._random.shuffle(brokers)
            trouble: KafkaError = KafkaError(ErrorCode.NETWORK_EXCEPTION, "no broker is alive")
            for node in brokers:
                try:
                    self._client = await self._connect(node)
                    return self._client
                except KafkaError as error:
                    trouble = error
            raise trouble

    async def _connect(self, node: Node) -> Client:
        assert node.kafka is not None
        client = await self._open(node.kafka.host, node.kafka.port, self._client_id)
        try:
            self._take_over(await client.learn_versions())
        except BaseException:
            client.close()
            raise
        return client

    def _take_over(self, versions: dict[int, tuple[int, int]]) -> None:
        """What this broker serves is what is passed on; another one, upgraded, may serve more."""
        for key in [key for key in self._api.table if key not in self._own]:
            del self._api.table[key]
        for key, (low, high) in versions.items():
            if key in _KNOWN and key not in self._own and key not in _OF_ONE_BROKER:
                call = partial(self._pass_on, key)
                self._api.table[key] = Handler(ApiKey(key), low, high, low, call, True, False, None, "")

    async def _pass_on(self, api_key: int, context: Context, body: memoryview) -> bytes:
        client = await self._connected()
        try:
            answer = bytes(await client.send(api_key, context.version, [body]))
        except ConnectionClosed:
            # A request that never went out, or a broker that went down: the client knows how to ask again.
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker it was passed on to has gone") from None
        listener = context.connection.listener_name
        if listener == self._listener or api_key not in _NAME_NODES:
            return answer
        return readdressed(api_key, context.version, answer, self._image(), listener)


def readdressed(api_key: int, version: int, answer: bytes, image: Image, listener: str) -> bytes:
    """A broker's answer for a client that came by another listener than this process comes to the broker."""
    told = messages.decode(api_key, version, answer, "response")
    places = {node["node_id"]: node for node in picture.nodes(image, listener)}
    named = ((getattr(each, _NAME_NODES[api_key]), each) for each in told.brokers)
    brokers = tuple(
        replace(each, host=places[node_id]["host"], port=places[node_id]["port"])
        for node_id, each in named
        if node_id in places
    )
    return messages.encode(api_key, version, replace(told, brokers=brokers))
