"""`meta.properties` (whose log dir this is) and the clean-shutdown marker, both as Kafka 4 writes them.

`meta.properties` is a Java properties file of version 1: `version`, `cluster.id`, `node.id`, `directory.id`. The
marker is a line of JSON: version 0 and the broker's epoch.
"""

from __future__ import annotations

import json
import os
import uuid
from random import Random

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.checkpoint import replace_file
from headrace.storage.files import Files
from headrace.storage.partition_metadata import decode_uuid, encode_uuid

FILE_NAME = "meta.properties"


def claim(files: Files, folder: str, *, node_id: int, cluster_id: str, random: Random) -> uuid.UUID:
    """The directory's id, after checking that it belongs to this cluster and node; an unclaimed one is claimed."""
    path = os.path.join(folder, FILE_NAME)
    found = _parse(files.read(path)) if files.exists(path) else {}
    _check(path, "cluster.id", found, cluster_id, ErrorCode.INCONSISTENT_CLUSTER_ID)
    _check(path, "node.id", found, str(node_id), ErrorCode.INVALID_CONFIG)
    try:
        directory_id = decode_uuid(found["directory.id"])
    except (KeyError, ValueError):
        directory_id = uuid.UUID(int=random.getrandbits(128), version=4)
    fields = {
        "cluster.id": cluster_id,
        "directory.id": encode_uuid(directory_id),
        "node.id": str(node_id),
        "version": "1",
    }
    if fields != found:
        replace_file(files, path, "".join(f"{name}={value}\n" for name, value in fields.items()).encode())
    return directory_id


def _check(path: str, name: str, found: dict[str, str], wanted: str, code: ErrorCode) -> None:
    if name in found and found[name] != wanted:
        raise KafkaError(code, f"{path} says {name}={found[name]}, this process has {wanted}: give it its own log dir")


def _parse(data: bytes) -> dict[str, str]:
    lines = (line.strip() for line in data.decode("utf-8", "replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip().replace("\\", "") for name, _, value in pairs}


def render_marker(broker_epoch: int) -> bytes:
    """
    >>> render_marker(7)
    b'{"version":0,"brokerEpoch":7}'
    """
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def parse_marker(data: bytes) -> int:
    """The broker's epoch in a marker; -1 when it does not say (older Kafka left the file empty)."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1
