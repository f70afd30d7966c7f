"""A TCP proxy that changes no byte but cuts connections in the middle of what they carry."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading


class CuttingProxy:
    """Forwards to `upstream`; while `cutting`, each connection is reset after a random number of bytes either way."""

    def __init__(self, seed: int = 1, least: int = 2_000, most: int = 60_000) -> None:
        self.cutting = False
        self.cuts = 0
        self.upstream: tuple[str, int] | None = None
        self._random = random.Random(seed)
        self._between = (least, most)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.upstream is None:
                client.close()
                continue
            try:
                server = socket.create_connection(self.upstream, 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = _Pair(client, server)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(pair, source, sink), daemon=True).start()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        with self._lock:
            left = self._random.randint(*self._between)
        while True:
            try:
                data = source.recv(16_384)
                if self.cutting:
                    left -= len(data)
                if left <= 0:
                    # a part of what came goes through, so that the other side is left with half a frame
                    sink.sendall(data[: len(data) // 2])
                    with self._lock:
                        self.cuts += 1
                    pair.reset()
                    return
                if not data:
                    pair.close()
                    return
                sink.sendall(data)
            except OSError:
                pair.close()
                return


class _Pair:
    """The two sockets of one forwarded connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._both = (client, server)

    def reset(self) -> None:
        for each in self._both:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        for each in self._both:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
