"""The admin client: topics, partitions, settings, leaders and moves, as the controller offers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.client.cluster import TOPIC_GRACE, Cluster, error_of, raise_for
from headrace.client.config import ADMIN_KEYS, Config
from headrace.client.group_admin import GroupAdmin
from headrace.client.types import OffsetAndTimestamp, TopicPartition
from headrace.cluster.image import Image, Node, Partition, Topic
from headrace.cluster.protos import partition_from_proto, topic_from_proto
from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import broker_pb2, common_pb2
from headrace.v1 import controller_pb2 as pb

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""Times that `Admin.list_offsets` knows beside milliseconds: the end, the start, the record with the latest time."""

_RESOURCES = {"topic": common_pb2.CONFIG_RESOURCE_TOPIC, "broker": common_pb2.CONFIG_RESOURCE_BROKER}
_KINDS = {
    "set": pb.AlterConfigsRequest.SET,
    "delete": pb.AlterConfigsRequest.DELETE,
    "append": pb.AlterConfigsRequest.APPEND,
    "subtract": pb.AlterConfigsRequest.SUBTRACT,
}
_SOURCES = {0: "unknown", 1: "topic", 2: "broker", 3: "all brokers", 4: "file", 5: "default"}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; None leaves the number to the cluster's default.

    >>> NewTopic("orders", partitions=3, configs={"retention.ms": "86400000"}).partitions
    3
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()
    """Replicas of each partition, instead of the two numbers."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting in force, and where its value comes from.

    >>> ConfigEntry("retention.ms", "604800000", "default", False, "LONG", "").is_default
    True
    """

    name: str
    value: str
    source: str
    read_only: bool
    type: str
    documentation: str

    @property
    def is_default(self) -> bool:
        return self.source == "default"


class Admin(GroupAdmin):
    """Asks the cluster about itself and changes it. Settings are Kafka's, with underscores.

    >>> async with Admin(bootstrap_servers="127.0.0.1:9094") as admin:  # doctest: +SKIP
    ...     await admin.create_topic("orders", partitions=3)
    """

    def __init__(self, **config: Any) -> None:
        self._config = Config(ADMIN_KEYS, config)
        self._cluster = Cluster(self._config)
        self._timeout = self._config.seconds("default.api.timeout.ms")

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects; `ClusterUnreachable` when no metadata server answers.

        >>> await admin.start()  # doctest: +SKIP
        """
        await self._cluster.start()

    async def close(self) -> None:
        """Lets go of every connection.

        >>> await admin.close()  # doctest: +SKIP
        """
        await self._cluster.stop()

    @property
    def image(self) -> Image:
        """The newest picture of the cluster: brokers, controller, topics with their partitions.

        >>> admin.image.brokers  # doctest: +SKIP
        """
        return self._cluster.image

    @property
    def connected(self) -> bool:
        """Whether `image` is being kept up to date; else it is the last one that came.

        >>> admin.connected  # doctest: +SKIP
        True
        """
        return self._cluster.follower.server is not None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever `image` is another one.

        >>> admin.on_change(lambda: print(len(admin.image.topics)))  # doctest: +SKIP
        """
        self._cluster.follower.listen(lambda old, new: callback())

    # --- topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Creates a topic and returns when its partitions have leaders.

        >>> await admin.create_topic("orders", partitions=3)  # doctest: +SKIP
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        (error,) = (await self.create_topics([topic], validate_only=validate_only)).values()
        if error is not None:
            raise error

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """Creates topics; the answer says for each name why it failed, or None.

        Who asks the same metadata server afterwards finds them there.

        >>> await admin.create_topics([NewTopic("a"), NewTopic("b", 3)])  # doctest: +SKIP
        """
        request = pb.CreateTopicsRequest(validate_only=validate_only, timeout_ms=self._timeout_ms())
        for topic in topics:
            manual = bool(topic.assignments)
            request.topics.add(
                name=topic.name,
                partitions=-1 if manual or topic.partitions is None else topic.partitions,
                replication_factor=-1 if manual or topic.replication_factor is None else topic.replication_factor,
                assignments=[pb.ReplicaAssignment(partition=i, replicas=r) for i, r in enumerate(topic.assignments)],
                configs=topic.configs,
            )
        errors = _errors((await self._control("CreateTopics", request)).topics)
        created = {name for name, error in errors.items() if error is None and not validate_only}
        with suppress(KafkaError):  # they are there, whoever has not heard of them yet
            await self._cluster.follower.wait_for(lambda image: created <= image.topics.keys(), TOPIC_GRACE)
        return errors

    async def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Deletes topics with all they hold; the answer says for each name why it failed, or None.

        >>> await admin.delete_topics(["orders"])  # doctest: +SKIP
        """
        request = pb.DeleteTopicsRequest(timeout_ms=self._timeout_ms())
        request.topics.extend(common_pb2.TopicPartition(topic=name) for name in names)
        return _errors((await self._control("DeleteTopics", request)).topics)

    async def create_partitions(
        self, topic: str, count: int, assignments: Sequence[Sequence[int]] = (), *, validate_only: bool = False
    ) -> None:
        """Grows a topic to `count` partitions; `assignments` are the replicas of each new one.

        >>> await admin.create_partitions("orders", 6)  # doctest: +SKIP
        """
        request = pb.CreatePartitionsRequest(validate_only=validate_only, timeout_ms=self._timeout_ms())
        placed = [pb.ReplicaAssignment(partition=i, replicas=r) for i, r in enumerate(assignments)]
        request.topics.add(name=topic, count=count, assignments=placed)
        response = await self._control("CreatePartitions", request)
        raise_for(response.topics[0].error)

    async def increase_partitions(self, counts: Mapping[str, int]) -> dict[str, KafkaError | None]:
        """Grows many topics in one call; the answer says for each name why it failed, or None.

        >>> await admin.increase_partitions({"orders": 6, "payments": 12})  # doctest: +SKIP
        """
        request = pb.CreatePartitionsRequest(timeout_ms=self._timeout_ms())
        for name, count in counts.items():
            request.topics.add(name=name, count=count)
        return _errors((await self._control("CreatePartitions", request)).topics)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Names of all topics, sorted.

        >>> await admin.list_topics()  # doctest: +SKIP
        ['orders']
        """
        response = await self._control("DescribeTopics", pb.DescribeTopicsRequest())
        return sorted(topic.name for topic in response.topics if internal or not topic.internal)

    async def describe_topics(self, names: Iterable[str] = ()) -> dict[str, Topic]:
        """Topics with leaders, replicas and in-sync replicas, as the controller has them; no names: all of them.

        >>> (await admin.describe_topics(["orders"]))["orders"].partitions[0].leader  # doctest: +SKIP
        0
        """
        response = await self._control("DescribeTopics", pb.DescribeTopicsRequest(names=list(names)))
        for error in response.errors.values():
            raise_for(error)
        return {topic.name: topic_from_proto(topic) for topic in response.topics}

    # --- settings

    async def describe_configs(self, kind: str, name: str) -> list[ConfigEntry]:
        """Every setting of a topic (`"topic"`, its name) or a broker (`"broker"`, its id as text).

        >>> await admin.describe_configs("topic", "orders")  # doctest: +SKIP
        """
        request = pb.DescribeConfigsRequest(resources=[_resource(kind, name)])
        (result,) = (await self._control("DescribeConfigs", request)).results
        raise_for(result.error)
        return [
            ConfigEntry(e.name, e.value, _SOURCES.get(e.source, "unknown"), e.read_only, e.type, e.documentation)
            for e in result.entries
        ]

    async def alter_configs(
        self,
        kind: str,
        name: str,
        set: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Changes settings of one resource: all of them or, when one is refused, none.

        >>> await admin.alter_configs("topic", "orders", set={"retention.ms": "3600000"})  # doctest: +SKIP
        """
        request = pb.AlterConfigsRequest(validate_only=validate_only)
        alteration = request.alterations.add(resource=_resource(kind, name))
        for word, values in (("set", set), ("append", append), ("subtract", subtract)):
            for key, value in (values or {}).items():
                alteration.operations.add(name=key, kind=_KINDS[word], value=value)
        for key in delete:
            alteration.operations.add(name=key, kind=_KINDS["delete"])
        (result,) = (await self._control("AlterConfigs", request)).results
        raise_for(result.error)

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError | None]:
        """Changes settings of many topics in one call; None takes a setting back. The answer is as in `create_topics`.

        >>> await admin.alter_topic_configs({"orders": {"retention.ms": "1", "segment.ms": None}})  # doctest: +SKIP
        """
        request = pb.AlterConfigsRequest()
        for name, values in changes.items():
            alteration = request.alterations.add(resource=_resource("topic", name))
            for key, value in values.items():
                kind = _KINDS["delete" if value is None else "set"]
                alteration.operations.add(name=key, kind=kind, value=value or "")
        results = (await self._control("AlterConfigs", request)).results
        return {result.resource.name: error_of(result.error) if result.error.code else None for result in results}

    # --- leaders and moves

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] = (), *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Makes the preferred replicas leaders; no partitions: wherever another one leads.

        >>> await admin.elect_leaders([TopicPartition("orders", 0)])  # doctest: +SKIP
        """
        request = pb.ElectLeadersRequest(unclean=unclean, partitions=[_proto(p) for p in partitions])
        return _partition_errors((await self._control("ElectLeaders", request)).results)

    async def alter_partition_reassignments(
        self, moves: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Starts moves to other replicas; an empty list of replicas cancels the move under way.

        >>> await admin.alter_partition_reassignments({TopicPartition("orders", 0): [2, 1]})  # doctest: +SKIP
        """
        request = pb.AlterPartitionReassignmentsRequest()
        for partition, replicas in moves.items():
            request.partitions.add(partition=_proto(partition), replicas=replicas)
        return _partition_errors((await self._control("AlterPartitionReassignments", request)).results)

    async def list_partition_reassignments(self) -> dict[TopicPartition, Partition]:
        """The partitions that are moving, with their state.

        >>> await admin.list_partition_reassignments()  # doctest: +SKIP
        {}
        """
        response = await self._control("ListPartitionReassignments", pb.ListPartitionReassignmentsRequest())
        found: dict[TopicPartition, Partition] = {}
        for topic in response.topics:
            for state in topic.partitions:
                found[TopicPartition(topic.name, state.partition)] = partition_from_proto(state)
        return found

    async def drain_broker(self, broker: int) -> tuple[list[TopicPartition], dict[TopicPartition, KafkaError]]:
        """Moves everything away from a broker: what is moving, and what cannot. It is empty once both are.

        The controller keeps no list of drains: ask again to go on with what arrived meanwhile.

        >>> await admin.drain_broker(2)  # doctest: +SKIP
        ([], {})
        """
        response = await self._control("DrainBroker", pb.DrainBrokerRequest(broker_id=broker))
        moving = [TopicPartition(p.topic, p.partition) for p in response.moving]
        return moving, {partition: error for partition, error in _partition_errors(response.stuck).items() if error}

    # --- records

    async def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after a time in each partition; also LATEST (-1), EARLIEST (-2), MAX_TIMESTAMP (-3).

        >>> await admin.list_offsets({TopicPartition("orders", 0): LATEST})  # doctest: +SKIP
        """
        return await list_offsets(self._cluster, times, self._timeout)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Moves the start of logs forward to the given offsets (-1: the end); the answer is where they start now.

        >>> await admin.delete_records({TopicPartition("orders", 0): 100})  # doctest: +SKIP
        """
        found: dict[TopicPartition, int] = {}
        for partition, offset in before.items():

            async def attempt(left: float, partition: TopicPartition = partition, offset: int = offset) -> int:
                stub = self._cluster.broker(leader_of(self._cluster, partition))
                request = broker_pb2.DeleteRecordsRequest(timeout_ms=int(left * 1000))
                request.partitions.add(partition=_proto(partition), offset=offset)
                (answer,) = (await self._cluster.call(stub.DeleteRecords, request, left)).partitions
                raise_for(answer.error)
                return int(answer.low_watermark)

            found[partition] = await self._cluster.until_done(attempt, self._timeout)
        return found

    async def describe_log_dirs(self, broker: int) -> broker_pb2.DescribeLogDirsResponse:
        """The log directories of a broker with the size of every replica.

        >>> await admin.describe_log_dirs(0)  # doctest: +SKIP
        """
        answer: broker_pb2.DescribeLogDirsResponse = await self._cluster.call(
            self._cluster.broker(self._node(broker)).DescribeLogDirs, broker_pb2.DescribeLogDirsRequest()
        )
        return answer

    async def alter_replica_log_dirs(
        self, broker: int, moves: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Moves replicas of a broker to other directories of its own; they are copied while the old ones serve.

        >>> await admin.alter_replica_log_dirs(0, {TopicPartition("orders", 0): "/disk2"})  # doctest: +SKIP
        """
        request = broker_pb2.AlterReplicaLogDirsRequest()
        for partition, path in moves.items():
            request.moves.add(partition=_proto(partition), path=path)
        stub = self._cluster.broker(self._node(broker))
        return _partition_errors((await self._cluster.call(stub.AlterReplicaLogDirs, request)).results)

    def _node(self, broker: int) -> Node:
        node = self.image.brokers.get(broker)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not alive")
        return node

    # --- how the controller is asked

    def _timeout_ms(self) -> int:
        return min(int(self._timeout * 1000), int(self._config["request.timeout.ms"]))

    async def _control(self, method: str, request: Any) -> Any:
        async def attempt(left: float) -> Any:
            stub = await self._cluster.controller(left)
            return await self._cluster.call(getattr(stub, method), request, left)

        return await self._cluster.until_done(attempt, self._timeout)


def leader_of(cluster: Cluster, partition: TopicPartition) -> Any:
    """The leader's node; UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE when there is none."""
    found = cluster.leader(*partition)
    if found is not None:
        return found[0]
    if cluster.image.partition(*partition) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader: its brokers are away")


async def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], timeout: float, *, read_committed: bool = False
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Offsets by time, one request to each leader, repeated for what fails with something that passes."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}

    async def attempt(left: float) -> None:
        by_leader: dict[int, tuple[Node, list[TopicPartition]]] = {}
        for partition in times:
            if partition not in found:
                leader = leader_of(cluster, partition)
                by_leader.setdefault(leader.id, (leader, []))[1].append(partition)
        for leader, partitions in by_leader.values():
            request = broker_pb2.ListOffsetsRequest(read_committed=read_committed)
            for partition in partitions:
                request.partitions.add(partition=_proto(partition), timestamp=times[partition], current_leader_epoch=-1)
            stub = cluster.broker(leader)
            answers = (await cluster.call(stub.ListOffsets, request, left)).partitions
            for partition, answer in zip(partitions, answers, strict=True):
                raise_for(answer.error)
                found[partition] = OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)

    await cluster.until_done(attempt, timeout)
    return found


def _resource(kind: str, name: str) -> common_pb2.ConfigResource:
    if kind not in _RESOURCES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{kind!r} has no settings: give 'topic' or 'broker'")
    return common_pb2.ConfigResource(type=_RESOURCES[kind], name=name)


def _proto(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def _errors(results: Iterable[pb.TopicResult]) -> dict[str, KafkaError | None]:
    return {result.name: error_of(result.error) if result.error.code else None for result in results}


def _partition_errors(results: Iterable[Any]) -> dict[TopicPartition, KafkaError | None]:
    return {
        TopicPartition(r.partition.topic, r.partition.partition): error_of(r.error) if r.error.code else None
        for r in results
    }
