"""Fetch: reads record batches, for consumers and for followers.

Versions 4 to 18. Sessions (KIP-227), leader epochs (KIP-320), topic ids (KIP-516), diverging epochs for followers
(KIP-595) and the new leader with its address (KIP-951). Bytes go from the page cache to the socket as they are. At
least one batch comes, whatever its size. There are no transactions, so read_committed sees what everyone sees.
"""

from __future__ import annotations

from headrace.broker.authorizer import Operation
from headrace.broker.broker import Broker
from headrace.broker.fetch_session import NO_SESSION, Session
from headrace.broker.handlers.leaders import LeaderHints
from headrace.broker.reader import Key, Wanted
from headrace.broker.requests import Fetched, FetchLimits
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import LATER, Context, handles
from headrace.wire.fetch import TOPIC_IDS, FetchRequest, PartitionResult, parse_request, write_response
from headrace.wire.protocol import ApiKey
from headrace.wire.sending import Part

READ_COMMITTED = 1
_new_tuple = tuple.__new__


@handles(ApiKey.FETCH, versions=(4, 18), raw=True, borrows=True)
def fetch(broker: Broker, context: Context, body: memoryview) -> object:
    request = parse_request(context.version, body)
    try:
        session = _open_session(broker, context, request)
    except KafkaError as error:
        return write_response(context.version, [], error.code)
    limits = FetchLimits(
        request.max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, broker.config["fetch.max.bytes"]),
        request.replica_id,
        request.replica_epoch,
        request.rack_id,
        request.isolation_level == READ_COMMITTED,
    )

    def reply(found: list[Fetched]) -> None:
        if session.id == NO_SESSION:
            session.close()
        context.complete(_answer(broker, context, request, session, found))

    broker.replicas.fetch(limits, session, reply)
    return LATER


def _open_session(broker: Broker, context: Context, request: FetchRequest) -> Session:
    if not broker.authorizer.unrestricted:
        allows, principal = broker.authorizer.allows, context.principal
        for topic in {each.topic for each in request.partitions}:
            if not allows(principal, Operation.READ, broker.topic_name(topic)):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{principal} may not read {topic!r}")
    # One call instead of the two of Wanted(...): this is the hot path.
    wanted: list[tuple[Key, Wanted]] = [
        ((topic, index), _new_tuple(Wanted, (offset, max_bytes, current_epoch, fetched_epoch, log_start, mark)))
        for topic, index, offset, max_bytes, current_epoch, fetched_epoch, log_start, _, mark in request.partitions
    ]
    return broker.sessions.open(
        request.session_id,
        request.session_epoch,
        wanted,
        request.forgotten,
        by_id=context.version >= TOPIC_IDS,
        replica_id=request.replica_id,
        broker_epoch=request.replica_epoch,
        now=context.received,
    )


def _answer(
    broker: Broker, context: Context, request: FetchRequest, session: Session, found: list[Fetched]
) -> list[Part]:
    hints = LeaderHints(broker, context.connection.listener_name)
    committed = () if request.isolation_level == READ_COMMITTED else None
    consumer = request.replica_id < 0
    results = []
    for place, error, ranges, size, mark, log_start, diverging, preferred in found:
        noteworthy = error is not None or diverging is not None or preferred >= 0
        key = place.key
        if not session.is_news(place, size > 0, noteworthy, mark, log_start) and not session.full:
            continue
        result = PartitionResult(*key, 0, mark, mark, log_start, list(ranges), committed, preferred)
        if error is not None:
            result.error_code = error.code
            result.current_leader = hints.of(*key, error)
        elif diverging is not None:
            result.diverging_epoch = diverging
        elif size and consumer:
            broker.count_read(key[0], size)
        results.append(result)
    return write_response(context.version, results, 0, session.id, 0, hints.endpoints)
