"""What a listener counts: plain numbers that a service's metrics endpoint reads when it is scraped.

Nothing here knows a metrics library, and counting a request costs about a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left

TIME_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds; the last bucket of a histogram is for what is slower than all of them."""


class ApiMetrics:
    """One API's requests."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "errors", "queue_seconds", "requests", "total_seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        """Requests refused as a whole: malformed, of another version, or failed in the handler."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.queue_seconds = 0.0
        """From the arrival of the bytes to the start of the handler."""
        self.total_seconds = 0.0
        """From the arrival of the bytes to the answer handed to the socket."""
        self.buckets = [0] * (len(TIME_BUCKETS) + 1)


class WireMetrics:
    """A listener's counters; give one to several listeners to add them up."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}
        self.connections = 0
        self.connections_opened = 0
        self.connections_refused = 0
        self.connections_expired = 0
        """Closed after connections.max.idle.ms."""
        self.connections_dropped = 0
        """Closed because of what they sent."""
        self.requests_waiting = 0
        """Connections not read from until fewer than queued.max.requests are handled."""
        self.busy_seconds = 0.0
        """Time the loop spent reading, handling and answering: what is left of a second is the idle ratio."""

    def of(self, api_key: int) -> ApiMetrics:
        """The counters of one API."""
        found = self.apis.get(api_key)
        if found is None:
            found = self.apis[api_key] = ApiMetrics()
        return found

    def answered(self, api_key: int, queue_seconds: float, total_seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count one answered request."""
        api = self.apis.get(api_key) or self.of(api_key)
        api.requests += 1
        api.bytes_in += bytes_in
        api.bytes_out += bytes_out
        api.queue_seconds += queue_seconds
        api.total_seconds += total_seconds
        api.buckets[bisect_left(TIME_BUCKETS, total_seconds)] += 1
