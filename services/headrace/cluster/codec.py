"""The registry's values: JSON that a person can read with etcdctl, and the dataclasses they stand for.

What a key already says (a broker's id, a partition's index) is not repeated in its value, and neither is what the
store knows (a registration's epoch is its create revision).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cluster.image import NO_LEADER, Endpoint, Node, OffsetsOwner, Partition, shared

_dumps = json.JSONEncoder(separators=(",", ":")).encode
_loads = json.loads

GRPC_HOST, LISTENERS = "grpc_host", "listeners"


class BadValue(ValueError):
    """A value of the registry that is not what its key promises."""


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """The value of `topics/<name>`: its presence makes a topic visible, its count how many partitions are."""

    id: uuid.UUID
    partitions: int


def encode_topic(entry: TopicEntry) -> bytes:
    return _dumps({"id": str(entry.id), "partitions": entry.partitions}).encode()


def decode_topic(value: bytes) -> TopicEntry:
    try:
        fields = _loads(value)
        return TopicEntry(uuid.UUID(fields["id"]), int(fields["partitions"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(value, error) from None


def encode_partition(partition: Partition) -> bytes:
    fields: dict[str, Any] = {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": partition.isr,
        "replicas": partition.replicas,
        "partition_epoch": partition.partition_epoch,
    }
    if partition.adding or partition.removing:
        fields |= {"adding": partition.adding, "removing": partition.removing}
    if partition.elr:
        fields["elr"] = partition.elr
    if partition.last_known_leader != NO_LEADER:
        fields["last_known_leader"] = partition.last_known_leader
    return _dumps(fields).encode()


def decode_partition(value: bytes) -> Partition:
    try:
        fields = _loads(value)
        return Partition(
            fields["leader"],
            fields["leader_epoch"],
            shared(tuple(fields["isr"])),
            shared(tuple(fields["replicas"])),
            fields["partition_epoch"],
            tuple(fields.get("adding", ())),
            tuple(fields.get("removing", ())),
            tuple(fields.get("elr", ())),
            fields.get("last_known_leader", NO_LEADER),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(value, error) from None


def endpoint_attributes(host: str, grpc_host: str, listeners: Iterable[tuple[str, Endpoint]]) -> dict[str, str]:
    """What a registration says of a process's addresses beside its host and ports."""
    found = {GRPC_HOST: grpc_host} if grpc_host != host else {}
    if named := ",".join(f"{name}://{endpoint}" for name, endpoint in listeners):
        found[LISTENERS] = named
    return found


def _listeners(text: str) -> tuple[tuple[str, Endpoint], ...]:
    pairs = (each.partition("://") for each in text.split(",") if each)
    return tuple(sorted((name, Endpoint.parse(where)) for name, _, where in pairs))


def encode_node(node: Node) -> bytes:
    """The value of `brokers/<id>`, `coordinators/<id>` and `metadata/<id>`, as `registry.registration` writes it."""
    endpoint = node.kafka or node.grpc
    ports = {"grpc": node.grpc.port} | ({"kafka": node.kafka.port} if node.kafka else {})
    fields: dict[str, Any] = {"id": str(node.id), "host": endpoint.host, "ports": ports}
    fields["attributes"] = endpoint_attributes(endpoint.host, node.grpc.host, node.listeners)
    if node.rack:
        fields["rack"] = node.rack
    if node.directory_id is not None:
        fields["directory_id"] = str(node.directory_id)
    if node.incarnation_id:
        fields["incarnation_id"] = node.incarnation_id
    if node.lineage_id:
        fields["lineage_id"] = node.lineage_id
    return _dumps(fields).encode()


def decode_node(value: bytes, epoch: int) -> Node:
    """A registration; its epoch is the create revision of its key.

    The host is where brokers connect; the attribute `grpc_host` says so when gRPC has another one, and `listeners`
    where clients connect, as `advertised.listeners` does.
    """
    try:
        fields = _loads(value)
        host, ports = fields["host"], fields["ports"]
        directory = fields.get("directory_id")
        attributes = fields.get("attributes") or {}
        return Node(
            id=int(fields["id"]),
            epoch=epoch,
            grpc=Endpoint(attributes.get(GRPC_HOST, host), int(ports["grpc"])),
            kafka=Endpoint(host, int(ports["kafka"])) if "kafka" in ports else None,
            rack=fields.get("rack") or "",
            directory_id=uuid.UUID(directory) if directory else None,
            incarnation_id=fields.get("incarnation_id") or "",
            lineage_id=fields.get("lineage_id") or "",
            listeners=_listeners(attributes.get(LISTENERS, "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(value, error) from None


def encode_controller(node: Node) -> bytes:
    """The value of `controller`, as `registry.election` writes it."""
    return _dumps({"id": node.id, "address": str(node.grpc)}).encode()


def decode_controller(value: bytes, epoch: int) -> Node:
    """The elected controller; its epoch as a node is the create revision of the election key."""
    try:
        fields = _loads(value)
        return Node(id=int(fields["id"]), epoch=epoch, grpc=Endpoint.parse(fields["address"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(value, error) from None


def encode_offsets_owner(coordinator: int) -> bytes:
    """The value of `offsets_owners/<n>`. Who wrote it learns the epoch with the answer: the revision that made it."""
    return _dumps({"coordinator": coordinator}).encode()


def decode_offsets_owner(value: bytes, epoch: int) -> OffsetsOwner:
    """An ownership; its epoch is the create revision of its key."""
    try:
        return OffsetsOwner(int(_loads(value)["coordinator"]), epoch)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(value, error) from None


def encode_configs(values: Mapping[str, str]) -> bytes:
    return _dumps(dict(sorted(values.items()))).encode()


def decode_configs(value: bytes) -> dict[str, str]:
    try:
        return {str(name): str(text) for name, text in _loads(value).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _bad(value, error) from None


def encode_number(number: int) -> bytes:
    """The value of `controller_epoch`, and of `producer_ids` (the first id of the next block)."""
    return b"%d" % number


def decode_number(value: bytes) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise _bad(value, error) from None


def _bad(value: bytes, error: Exception) -> BadValue:
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return BadValue(f"{value[:200]!r} cannot be read: {reason}")
