"""What a request handler of the broker can reach."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.broker.authorizer import Authorizer
from headrace.broker.fetch_session import Sessions
from headrace.broker.log_dir_moves import LogDirMoves
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.replica_manager import ReplicaManager
from headrace.cluster.configs import Brokers, Entry, Settings, describe_topic, topic_values
from headrace.cluster.image import Image, Node, Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.rpc.controller_client import ControllerClient, HasImage
from headrace.storage.config import LogConfig
from headrace.storage.log_dirs import LogDirs


@dataclass(slots=True)
class Broker:
    """The parts of a running broker, wired by `server`."""

    id: int
    config: Settings
    clock: Clock
    cluster: HasImage
    replicas: ReplicaManager
    log_dirs: LogDirs
    moves: LogDirMoves
    sessions: Sessions
    controller: ControllerClient
    producer_ids: ProducerIds
    authorizer: Authorizer

    @property
    def image(self) -> Image:
        return self.cluster.image

    def own_settings(self) -> Brokers:
        """This broker's part in every setting: what it was started with and what was changed since."""
        return Brokers.of(self.config, self.image.broker_configs, self.id)

    def topic_entries(self, topic: str, names: Iterable[str] | None = None) -> list[Entry]:
        """A topic's settings, each with where its value comes from."""
        return describe_topic(self.image.topic_config(topic), self.own_settings(), names)

    def topic_name(self, topic: str | uuid.UUID) -> str:
        """The name of a topic; empty for an id that nobody has."""
        return topic if isinstance(topic, str) else self.image.topic_names.get(topic, "")

    def leader_of(self, topic: str | uuid.UUID, index: int) -> tuple[Partition, Node | None] | None:
        """Who leads a partition, for a client that asked the wrong broker."""
        found = self.image.partition(self.topic_name(topic), index)
        return None if found is None else (found, self.image.brokers.get(found.leader))

    def count_read(self, topic: str | uuid.UUID, size: int) -> None:
        self.replicas.stats.topic(self.topic_name(topic)).bytes_out += size


class LogConfigs:
    """What the logs of each topic on this broker are run with, worked out once for as long as it holds."""

    def __init__(self, settings: Settings, broker_id: int) -> None:
        self._settings = settings
        self._broker_id = broker_id
        self._known: dict[str, tuple[Mapping[str, str], object, LogConfig]] = {}

    def of(self, image: Image, topic: str) -> LogConfig:
        given, brokers = image.topic_config(topic), image.broker_configs
        known = self._known.get(topic)
        if known is not None and known[0] == given and known[1] is brokers:
            return known[2]
        config = log_config(image, self._settings, self._broker_id, topic)
        self._known[topic] = (given, brokers, config)
        if len(self._known) > 2 * len(image.topics) + 64:
            self._known = {name: entry for name, entry in self._known.items() if name in image.topics}
        return config


def log_config(image: Image, settings: Settings, broker_id: int, topic: str) -> LogConfig:
    """What a topic's logs on this broker are run with."""
    own = Brokers.of(settings, image.broker_configs, broker_id)
    return LogConfig.of(topic_values(image.topic_config(topic), own))


def refused(error: KafkaError) -> dict[str, Any]:
    """The two fields with which most responses say that one thing was refused."""
    return {"error_code": error.code, "error_message": error.message or None}


ACCEPTED: dict[str, Any] = {"error_code": ErrorCode.NONE, "error_message": None}
