"""Kafka's errors over gRPC: a status whose detail starts with the code's name, and back again.

A whole request that is refused becomes a status; a part of one that is refused becomes an `Error` message inside an
ordinary response. Both carry the same names.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import common_pb2

log = logging.getLogger(__name__)

_STATUS = {
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.REQUEST_TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.OFFSET_OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNKNOWN_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def status_of(code: ErrorCode) -> grpc.StatusCode:
    """UNAVAILABLE invites a retry, FAILED_PRECONDITION does not."""
    return _STATUS.get(code) or (grpc.StatusCode.UNAVAILABLE if code.retriable else grpc.StatusCode.FAILED_PRECONDITION)


def error_message(error: KafkaError) -> common_pb2.Error:
    """The part of a response that says one partition, topic or group was refused."""
    return common_pb2.Error(code=common_pb2.ErrorCode.ValueType(error.code), message=error.message)


def kafka_error_of(error: grpc.aio.AioRpcError) -> KafkaError:
    """What the server meant; a failure of the connection itself is NETWORK_EXCEPTION or REQUEST_TIMED_OUT."""
    name, _, message = (error.details() or "").partition(": ")
    if name in ErrorCode.__members__:
        return KafkaError(ErrorCode[name], message)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the server did not answer in time")
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{error.code().name}: {error.details()}")


def response_header(request: Any) -> common_pb2.ResponseHeader:
    """The header of the answer to `request`."""
    return common_pb2.ResponseHeader(correlation_id=request.header.correlation_id)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns a `KafkaError` of any unary handler into its status, and anything unforeseen into UNKNOWN_SERVER_ERROR."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler
        inner: Any = handler.unary_unary

        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await inner(request, context)
            except KafkaError as error:
                await context.abort(status_of(error.code), str(error))
            except grpc.aio.AbortError:
                raise
            except Exception:
                header = getattr(request, "header", None)
                log.exception(
                    "%s failed: correlation id %s, client %r",
                    details.method,
                    getattr(header, "correlation_id", None),
                    getattr(header, "client_id", None),
                )
                await context.abort(grpc.StatusCode.INTERNAL, "UNKNOWN_SERVER_ERROR: see the server's log")

        return grpc.unary_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)
