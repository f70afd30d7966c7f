"""Blocks of producer ids: each is handed out once, ever, because the counter only moves in a compare-and-swap."""

from __future__ import annotations

from headrace.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1000
LAST_ID = (1 << 63) - 1


def next_block(counter: int) -> tuple[int, int]:
    """The first id of a new block and the counter after it; `counter` is the first id that nobody has."""
    if counter > LAST_ID - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    return counter, counter + BLOCK_SIZE
