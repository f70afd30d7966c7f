"""`partition.metadata`: the topic's id beside a partition's data, so that a topic deleted and made again under the same
name never inherits the old one's records. Kafka's format: two lines, `version: 0` and `topic_id: <url-safe base64>`."""

from __future__ import annotations

import base64
import binascii
import uuid

from headrace.storage.files import File, Files

FILE_NAME = "partition.metadata"
_HEAD = "version: 0\ntopic_id: "
_ID_LENGTH = 22


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's text of an id: base64, url-safe, without padding.

    >>> encode_uuid(uuid.UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """The id of Kafka's text; ValueError when it is none."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a base64 id: {error}") from None


def write_topic_id(files: Files, path: str, topic_id: uuid.UUID) -> File:
    """Writes the id; it is durable once the file that is returned, which is closed, and its folder are synced."""
    file = files.open(path)
    file.truncate(0)
    file.append(f"{_HEAD}{encode_uuid(topic_id)}\n".encode())
    file.close()
    return file


def read_topic_id(files: Files, path: str) -> uuid.UUID | None:
    """The id; None when there is no file, or only the beginning of one, as a power cut or a sync that failed leaves it
    (with zeros for what was not written, on some file systems); ValueError when it is damaged."""
    try:
        text = files.read(path).rstrip(b"\0").decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    if text[: len(_HEAD)] != _HEAD[: len(text)]:
        raise ValueError(f"{path}: not 'version: 0' and a topic_id")
    encoded = text[len(_HEAD) :].strip()
    return decode_uuid(encoded) if len(encoded) >= _ID_LENGTH else None
