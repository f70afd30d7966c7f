"""The keys of a cluster, and what a key says: `/headrace/<cluster>/...`.

Names that come from users are percent-encoded, so that no name can reach into another one's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote


@dataclass(frozen=True, slots=True)
class ControllerKey:
    """The election key: its lease is the active controller's."""


@dataclass(frozen=True, slots=True)
class ControllerEpochKey:
    pass


@dataclass(frozen=True, slots=True)
class ProducerIdsKey:
    """The next block of producer ids."""


@dataclass(frozen=True, slots=True)
class MemberKey:
    """A live process: `role` is brokers, coordinators, metadata or controllers."""

    role: str
    id: str


@dataclass(frozen=True, slots=True)
class TopicKey:
    name: str


@dataclass(frozen=True, slots=True)
class PartitionKey:
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class ConfigKey:
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class OffsetsOwnerKey:
    partition: int


RegistryKey = (
    ControllerKey
    | ControllerEpochKey
    | ProducerIdsKey
    | MemberKey
    | TopicKey
    | PartitionKey
    | ConfigKey
    | OffsetsOwnerKey
)
_ROLES = frozenset({"brokers", "coordinators", "metadata", "controllers"})


class Keys:
    """Builds and parses the keys of one cluster. A prefix ends with `/`, so `brokers/1` never means `brokers/10`.

    >>> Keys("main").partition("t0", 3)
    '/headrace/main/partitions/t0/3'
    """

    def __init__(self, cluster: str) -> None:
        if not cluster:
            raise ValueError("the cluster needs a name")
        self.root = f"/headrace/{_text(cluster)}/"
        self.controller = f"{self.root}controller"
        self.controller_epoch = f"{self.root}controller_epoch"
        self.producer_ids = f"{self.root}producer_ids"
        self.brokers = f"{self.root}brokers/"
        self.coordinators = f"{self.root}coordinators/"
        self.metadata_replicas = f"{self.root}metadata/"
        self.controllers = f"{self.root}controllers/"
        self.topics = f"{self.root}topics/"
        self.partitions = f"{self.root}partitions/"
        self.configs = f"{self.root}configs/"
        self.offsets_owners = f"{self.root}offsets_owners/"

    def broker(self, broker_id: int) -> str:
        return f"{self.brokers}{broker_id}"

    def coordinator(self, coordinator_id: int) -> str:
        return f"{self.coordinators}{coordinator_id}"

    def metadata(self, replica_id: str) -> str:
        """Metadata replicas are a Deployment: their ids are pod names."""
        return f"{self.metadata_replicas}{_text(replica_id)}"

    def standby_controller(self, controller_id: int) -> str:
        """Every controller process, active or not."""
        return f"{self.controllers}{controller_id}"

    def topic(self, name: str) -> str:
        return f"{self.topics}{_text(name)}"

    def partitions_of(self, topic_id: str) -> str:
        return f"{self.partitions}{_text(topic_id)}/"

    def partition(self, topic_id: str, partition: int) -> str:
        return f"{self.partitions_of(topic_id)}{partition}"

    def config(self, type: str, name: str) -> str:
        return f"{self.configs}{_text(type)}/{_text(name)}"

    def offsets_owner(self, partition: int) -> str:
        return f"{self.offsets_owners}{partition}"

    def parse(self, key: str) -> RegistryKey | None:
        """What the key is; None for one that this version does not know (a newer one may have written it)."""
        if not key.startswith(self.root):
            return None
        match key[len(self.root) :].split("/"):
            case ["controller"]:
                return ControllerKey()
            case ["controller_epoch"]:
                return ControllerEpochKey()
            case ["producer_ids"]:
                return ProducerIdsKey()
            case [role, member] if role in _ROLES and member:
                return MemberKey(role, unquote(member))
            case ["topics", name] if name:
                return TopicKey(unquote(name))
            case ["partitions", topic_id, number] if number.isdecimal():
                return PartitionKey(unquote(topic_id), int(number))
            case ["configs", type, name]:
                return ConfigKey(unquote(type), unquote(name))
            case ["offsets_owners", number] if number.isdecimal():
                return OffsetsOwnerKey(int(number))
        return None


def _text(name: str) -> str:
    return quote(name, safe="")
