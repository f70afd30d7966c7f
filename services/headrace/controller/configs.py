"""Settings of topics and brokers: describe and change. What is allowed, `cluster.configs` says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.cluster.configs import (
    Brokers,
    Entry,
    Operation,
    OperationKind,
    Settings,
    alter_broker,
    alter_topic,
    describe_broker,
    describe_broker_default,
    describe_topic,
)
from headrace.cluster.image import Image
from headrace.controller.plan import Plan, View
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import error_message
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb

UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
ANY_BROKER = -1
"""No broker's id: for what holds for all of them."""


def new_overrides(configs: Mapping[str, str], image: Image, settings: Settings) -> dict[str, str]:
    """The overrides that a new topic asks for, each in its one spelling; INVALID_CONFIG when it cannot have them."""
    operations = [Operation(name, OperationKind.SET, value) for name, value in configs.items()]
    return alter_topic({}, operations, _brokers(image, settings))


def unclean_allowed(image: Image, topic: str, settings: Settings) -> bool:
    """Whether a replica that is not in sync may lead this topic's partitions when nobody else can."""
    return bool(_topic_value(image, topic, settings, UNCLEAN))


def min_isr(image: Image, topic: str, settings: Settings) -> int:
    """How many replicas of a topic's partitions have to be in sync before anything is acknowledged."""
    return int(_topic_value(image, topic, settings, MIN_ISR))


def _topic_value(image: Image, topic: str, settings: Settings, name: str) -> Any:
    [entry] = describe_topic(image.topic_config(topic), _brokers(image, settings), [name])
    return entry.key.parse(entry.value)


def alter(view: View, request: cpb.AlterConfigsRequest, settings: Settings) -> tuple[Plan, cpb.AlterConfigsResponse]:
    """Plans the changes of each resource, all or none of them."""
    plan, response = Plan(), cpb.AlterConfigsResponse()
    for asked in request.alterations:
        result = response.results.add(resource=asked.resource)
        try:
            _alter(view.image, asked, settings, plan)
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
    return plan, response


def _alter(image: Image, asked: cpb.AlterConfigsRequest.Alteration, settings: Settings, plan: Plan) -> None:
    name = asked.resource.name
    operations = [Operation(op.name, OperationKind(op.kind), op.value) for op in asked.operations]
    match asked.resource.type:
        case pb.CONFIG_RESOURCE_TOPIC:
            _check_topic(image, name)
            planned, current = plan.topic_configs, image.topic_config(name)
            change = alter_topic
        case pb.CONFIG_RESOURCE_BROKER:
            _broker_id(name)
            planned, current = plan.broker_configs, image.broker_configs.get(name, {})
            change = alter_broker
        case _:
            raise _unknown_type(asked.resource)
    if name in planned:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name or 'the brokers'} is in the request twice")
    altered = change(current, operations, _brokers(image, settings), replace=asked.replace)
    if altered != current:
        planned[name] = altered
    if altered.get(MIN_ISR) != current.get(MIN_ISR):
        if planned is plan.topic_configs:
            then = replace(image, topic_configs={**image.topic_configs, name: altered})
            _end_eligibility(then, [name], settings, plan)
        else:
            then = replace(image, broker_configs={**image.broker_configs, name: altered})
            _end_eligibility(then, image.topics, settings, plan)


def _end_eligibility(image: Image, topics: Iterable[str], settings: Settings, plan: Plan) -> None:
    """Where the ISR is large enough for the minimum of `image`, it may acknowledge records alone: nobody outside it
    counts as complete any longer. Where it is not, nothing was or will be acknowledged, and they stay eligible.

    Partitions are written before settings, so no leader hears of a lower minimum while others may replace it.
    """
    for name in topics:
        least = min_isr(image, name, settings)
        for index, state in enumerate(image.topics[name].partitions):
            if state.elr and len(state.isr) >= min(least, len(state.replicas)):
                plan.partitions[name, index] = replace(state, elr=(), partition_epoch=state.partition_epoch + 1)


def describe(view: View, request: cpb.DescribeConfigsRequest, settings: Settings) -> cpb.DescribeConfigsResponse:
    """Every setting of the resources, with where each value comes from."""
    response = cpb.DescribeConfigsResponse()
    for resource in request.resources:
        result = response.results.add(resource=resource)
        try:
            result.entries.extend(map(_entry, _described(view.image, resource, settings)))
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
    return response


def _described(image: Image, resource: pb.ConfigResource, settings: Settings) -> list[Entry]:
    match resource.type:
        case pb.CONFIG_RESOURCE_TOPIC:
            _check_topic(image, resource.name)
            return describe_topic(image.topic_config(resource.name), _brokers(image, settings))
        case pb.CONFIG_RESOURCE_BROKER if not resource.name:
            return describe_broker_default(image.broker_configs.get("", {}))
        case pb.CONFIG_RESOURCE_BROKER:
            return describe_broker(Brokers.of(settings, image.broker_configs, _broker_id(resource.name)))
        case _:
            raise _unknown_type(resource)


def _entry(entry: Entry) -> cpb.ConfigEntry:
    return cpb.ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=cpb.ConfigSource.ValueType(entry.source),
        read_only=entry.read_only,
        type=entry.key.kind.value,
        documentation=entry.key.doc,
    )


def _brokers(image: Image, settings: Settings) -> Brokers:
    return Brokers.of(settings, image.broker_configs, ANY_BROKER)


def _check_topic(image: Image, name: str) -> None:
    if name not in image.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")


def _broker_id(name: str) -> int:
    if name and not name.isdecimal():
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{name!r} is not a broker id: give a number, or '' for all brokers"
        )
    return int(name or ANY_BROKER)


def _unknown_type(resource: pb.ConfigResource) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"settings belong to a topic or a broker, not to type {resource.type}")
