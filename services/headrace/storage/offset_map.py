"""The cleaner's memory: for each key, the offset of its last record in the dirty part of a log.

Keys are held as 16-byte digests, because keys may be long and the map must have a known size: at about
`BYTES_PER_ENTRY` an entry it is filled up to the share of `log.cleaner.dedupe.buffer.size` that the load factor
allows, and then the cleaning stops there and takes the rest with the next run. Two keys with one digest would lose a
record; with 128 bits, and a BLAKE2b that nobody can steer, the chance for a billion keys is 10^-21. (Kafka does the
same with MD5 and an open-addressed byte array; a dict is what Python has, and its lookups are native.)
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

DEFAULT_BUFFER_BYTES: Final = 128 * 1024 * 1024
"""log.cleaner.dedupe.buffer.size"""
DEFAULT_LOAD_FACTOR: Final = 0.9
"""log.cleaner.io.buffer.load.factor"""
BYTES_PER_ENTRY: Final = 176
"""What one entry costs in CPython: a digest (49), an integer (32), and its share of the dict's table as that grows."""

_DIGEST_SIZE: Final = 16


class OffsetMap:
    """Key to last offset. `put` in offset order; `full` says when to stop."""

    __slots__ = ("_offsets", "capacity", "latest")

    def __init__(self, buffer_bytes: int = DEFAULT_BUFFER_BYTES, load_factor: float = DEFAULT_LOAD_FACTOR) -> None:
        self._offsets: dict[bytes, int] = {}
        self.capacity = max(1, int(buffer_bytes * load_factor) // BYTES_PER_ENTRY)
        self.latest = -1
        """The last offset that was looked at; records after it are not judged by this map."""

    def __len__(self) -> int:
        return len(self._offsets)

    def room_for(self, records: int) -> bool:
        """Whether `records` more fit, should all their keys be new."""
        return len(self._offsets) + records <= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[blake2b(key, digest_size=_DIGEST_SIZE).digest()] = offset

    def get(self, key: bytes) -> int:
        """The last offset of `key`, or -1."""
        return self._offsets.get(blake2b(key, digest_size=_DIGEST_SIZE).digest(), -1)
