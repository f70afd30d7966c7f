"""The port where Prometheus scrapes a process, in a thread of its own.

What there are thousands of (a gauge for every partition) is written as text directly: prometheus-client takes some
fifteen microseconds a sample, which a broker with many partitions would feel at every scrape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no news."""


class MetricsServer:
    """A running endpoint: /metrics (and every other path) answers with the registry and `more`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, more: Callable[[], str] = str) -> None:
        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            body = generate_latest(registry) + more().encode()
            start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
            return [body]

        self._server = make_server(host, port, answer, _Server, _Quiet)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def escaped(label: str) -> str:
    """A label's value as the text format wants it."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
