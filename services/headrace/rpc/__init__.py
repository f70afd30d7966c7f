"""gRPC between processes: how a server starts, how a channel is kept, and how Kafka's errors cross it."""

from headrace.rpc.channels import Channels, request_header
from headrace.rpc.errors import kafka_error_of, response_header
from headrace.rpc.server import RpcServer, Serve, serve

__all__ = ["Channels", "RpcServer", "Serve", "kafka_error_of", "request_header", "response_header", "serve"]
