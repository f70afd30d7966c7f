"""Produce: appends record batches and answers once the acknowledgements asked for are there.

Versions 3 to 13; 0 to 2 are advertised because librdkafka looks for them (KAFKA-18659), and refused. acks must be 0, 1
or -1 (all): INVALID_REQUIRED_ACKS. With acks=0 there is no answer. Batches are appended as the bytes they came in.
Transactions are not served: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from headrace.broker.authorizer import Operation
from headrace.broker.broker import Broker
from headrace.broker.handlers.leaders import LeaderHints
from headrace.broker.requests import Produced
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import LATER, Context, handles
from headrace.wire.produce import (
    RECORD_ERRORS,
    PartitionResult,
    ProduceRequest,
    parse_request,
    write_accepted,
    write_response,
)
from headrace.wire.protocol import ApiKey

_ACKS = (-1, 0, 1)


@handles(ApiKey.PRODUCE, versions=(3, 13), advertise_from=0, raw=True, borrows=True)
def produce(broker: Broker, context: Context, body: memoryview) -> object:
    version = context.version
    request = parse_request(version, body)
    if request.acks not in _ACKS or request.transactional_id is not None or not broker.authorizer.unrestricted:
        refusal = _refusal(broker, context, request)
    else:
        refusal = None
    if refusal is not None:
        return _answer(broker, context, request, [Produced(t, i, refusal) for t, i, _ in request.partitions])

    def reply(results: list[Produced]) -> None:
        context.connection.complete(context, _answer(broker, context, request, results))

    broker.replicas.produce(request.partitions, request.acks, request.timeout_ms, reply)
    request.partitions = []  # who waits for acknowledgements does not keep the frame
    return LATER


def _refusal(broker: Broker, context: Context, request: ProduceRequest) -> KafkaError | None:
    """Why the whole request is refused, if it is."""
    if request.acks not in _ACKS:
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}: give 0, 1 or -1 (all)")
    if request.transactional_id is not None:
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served")
    allows, principal = broker.authorizer.allows, context.principal
    for topic, _, _ in request.partitions:
        name = broker.topic_name(topic)
        if not allows(principal, Operation.WRITE, name):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{principal} may not write to {name}")
    return None


def _answer(broker: Broker, context: Context, request: ProduceRequest, results: list[Produced]) -> bytearray | None:
    if request.acks == 0:
        return None
    if request.only_topic and context.version >= RECORD_ERRORS:
        accepted = write_accepted(context.version, request.only_topic, results)
        if accepted is not None:
            return accepted
    hints = LeaderHints(broker, context.connection.listener_name)
    written = [
        PartitionResult(topic, partition, 0, base_offset, append_time, log_start)
        if error is None
        else PartitionResult(
            topic,
            partition,
            error.code,
            error_message=error.message,
            current_leader=hints.of(topic, partition, error),
        )
        for topic, partition, error, base_offset, append_time, log_start in results
    ]
    return write_response(context.version, written, 0, hints.endpoints)
