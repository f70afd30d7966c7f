"""A served port answers health and reflection, and Kafka's errors cross it by name."""

from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import Channels, RpcServer, kafka_error_of, request_header, response_header, serve
from headrace.v1 import metadata_pb2, metadata_pb2_grpc


class Servicer(metadata_pb2_grpc.MetadataServicer):
    async def GetMetadata(self, request, context):
        if request.topics == ["missing"]:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic named missing")
        if request.topics == ["broken"]:
            raise ZeroDivisionError
        return metadata_pb2.GetMetadataResponse(header=response_header(request))


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    running = await serve(
        "127.0.0.1",
        0,
        [("headrace.v1.Metadata", lambda s: metadata_pb2_grpc.add_MetadataServicer_to_server(Servicer(), s))],
    )
    yield running
    await running.stop(0)


@pytest.fixture
async def channel(server: RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    channels = Channels()
    yield channels.get(f"127.0.0.1:{server.port}")
    await channels.close()


async def test_correlation_id_comes_back(channel: grpc.aio.Channel) -> None:
    stub = metadata_pb2_grpc.MetadataStub(channel)
    first, second = request_header("test"), request_header("test")
    assert first.correlation_id != second.correlation_id
    answer = await stub.GetMetadata(metadata_pb2.GetMetadataRequest(header=second))
    assert answer.header.correlation_id == second.correlation_id


@pytest.mark.parametrize(
    ("topic", "status", "code", "words"),
    [
        ("missing", grpc.StatusCode.NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic named missing"),
        ("broken", grpc.StatusCode.INTERNAL, ErrorCode.UNKNOWN_SERVER_ERROR, "see the server's log"),
    ],
)
async def test_errors_cross_by_name(
    channel: grpc.aio.Channel, topic: str, status: grpc.StatusCode, code: ErrorCode, words: str
) -> None:
    stub = metadata_pb2_grpc.MetadataStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetMetadata(metadata_pb2.GetMetadataRequest(header=request_header("test"), topics=[topic]))
    assert caught.value.code() is status
    error = kafka_error_of(caught.value)
    assert (error.code, error.message) == (code, words)


async def test_a_dead_address_is_a_network_exception() -> None:
    channels = Channels()
    stub = metadata_pb2_grpc.MetadataStub(channels.get("127.0.0.1:1"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetMetadata(metadata_pb2.GetMetadataRequest(), timeout=5)
    assert kafka_error_of(caught.value).code is ErrorCode.NETWORK_EXCEPTION
    await channels.close()


async def test_liveness_does_not_wait_for_serving(server: RpcServer, channel: grpc.aio.Channel) -> None:
    await server.set_serving(False)
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_follows_set_serving(server: RpcServer, channel: grpc.aio.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for serving, expected in ((True, "SERVING"), (False, "NOT_SERVING")):
        await server.set_serving(serving)
        for service in ("", "headrace.v1.Metadata"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == expected


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    async for answer in call:
        names = {service.name for service in answer.list_services_response.service}
        assert {"headrace.v1.Metadata", "grpc.health.v1.Health"} <= names
        break


async def test_a_taken_port_is_said_plainly(server: RpcServer) -> None:
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}: the port is taken"):
        await serve("127.0.0.1", server.port, [])
