"""DescribeConfigs: settings of topics and brokers, with where each value comes from.

Versions 1 to 4. A broker describes itself only; the empty broker name is the dynamic default of all brokers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import ACCEPTED, Broker, refused
from headrace.cluster.configs import Entry, describe_broker, describe_broker_default
from headrace.config import Kind
from headrace.errors import ErrorCode, KafkaError
from headrace.v1.common_pb2 import ConfigResourceType
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

TYPES = {Kind.BOOLEAN: 1, Kind.STRING: 2, Kind.INT: 3, Kind.LONG: 5, Kind.DOUBLE: 6, Kind.LIST: 7}
"""Kafka's numbers of the types."""


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4))
def describe_configs(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    documented = getattr(request, "include_documentation", False)

    def answer(resource: Any) -> dict[str, Any]:
        outcome, entries = ACCEPTED, []
        try:
            entries = _entries(broker, resource)
        except KafkaError as error:
            outcome = refused(error)
        return {
            **outcome,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [_config(entry, request.include_synonyms, documented) for entry in entries],
        }

    return {"throttle_time": 0, "results": [answer(resource) for resource in request.resources]}


def _entries(broker: Broker, resource: Any) -> list[Entry]:
    names, name = resource.configuration_keys, resource.resource_name
    known = None if names is None else set(names)
    match resource.resource_type:
        case ConfigResourceType.CONFIG_RESOURCE_TOPIC:
            if name not in broker.image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            found = broker.topic_entries(name)
        case ConfigResourceType.CONFIG_RESOURCE_BROKER if name == "":
            found = describe_broker_default(broker.image.broker_configs.get("", {}))
        case ConfigResourceType.CONFIG_RESOURCE_BROKER if name == str(broker.id):
            found = describe_broker(broker.own_settings())
        case ConfigResourceType.CONFIG_RESOURCE_BROKER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {broker.id}: ask broker {name} for its settings"
            )
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {other} has no settings here")
    return [entry for entry in found if known is None or entry.name in known]


def _config(entry: Entry, synonyms: bool, documented: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": False,
        "synonyms": [{"name": s.name, "value": s.value, "source": s.source} for s in entry.synonyms]
        if synonyms
        else [],
        "config_type": TYPES[entry.key.kind],
        "documentation": entry.key.doc if documented else None,
    }
