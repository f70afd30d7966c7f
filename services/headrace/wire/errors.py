"""What goes wrong on a connection, by name."""

from __future__ import annotations

from headrace.errors import ErrorCode, KafkaError


class MalformedRequest(KafkaError):
    """The bytes of a request (or of a response, in our own client) are not what their API and version say."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class UnsupportedVersion(KafkaError):
    """The API is known, this version of it is not."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)


class ConnectionClosed(KafkaError):
    """The connection ended before the answer came."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class RequestTimedOut(KafkaError):
    """The answer did not come within the request's timeout."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class FileEndedEarly(OSError):
    """A file is shorter than the range of it that was promised: the response cannot be completed."""
