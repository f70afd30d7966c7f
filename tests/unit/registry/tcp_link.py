"""A TCP proxy on loopback that can be cut (connections closed, new ones refused) and paused (bytes held back)."""

from __future__ import annotations

import asyncio


class TcpLink:
    """One client's way to a server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._cut = False
        self.address = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._cut = True
        self.drop()

    def heal(self) -> None:
        self._cut = False
        self._flowing.set()

    def drop(self) -> None:
        """Closes what is open now; new connections are welcome."""
        for writer in list(self._writers):
            writer.transport.abort()

    def pause(self) -> None:
        self._flowing.clear()

    def stall(self) -> None:
        """Nothing flows any more over what is open now, and nobody is told; new connections are fine."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self._cut:
                return
            await self._flowing.wait()
            back_reader, back_writer = await asyncio.open_connection(*self._target)
            self._writers.add(back_writer)
            ways: list[asyncio.Task[None]] = []
            try:
                ways = [
                    asyncio.create_task(self._pump(reader, back_writer, self._flowing)),
                    asyncio.create_task(self._pump(back_reader, writer, self._flowing)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                self._writers.discard(back_writer)
                back_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        while data := await reader.read(65536):
            await flowing.wait()
            writer.write(data)
            await writer.drain()
