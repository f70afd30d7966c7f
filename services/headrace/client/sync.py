"""The same client for scripts and notebooks, without asyncio: same names, same settings, calls that wait.

Each client runs a loop on a thread of its own, so it also works where another loop already runs (a notebook). Methods
are those of the async classes, wrapped by `_waits` and `_calls`: parameters, types and words are written once, there.

>>> from headrace.client.sync import Consumer, Producer
>>> with Producer() as producer:  # doctest: +SKIP
...     producer.send("orders", b"hello")
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from headrace import client
from headrace.client.types import ConsumerRecord, Headers, RecordMetadata
from headrace.cluster.image import Image

__all__ = ["Admin", "Consumer", "Producer"]

T = TypeVar("T")
P = ParamSpec("P")
SETTLE_SECONDS = 1.0


class LoopThread:
    """A loop on a daemon thread, and ways to run things on it from any other."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """A plain method of an async client, on its own thread."""

        async def work() -> T:
            return function(*args, **named)

        return self.run(work())

    def stop(self) -> None:
        self.run(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _settle(self) -> None:
        """Calls that have ended still get a last event from gRPC, and another client's thread may pass it on. If the
        loop is closed by then, that thread is told of an error."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, late = await asyncio.wait(left, timeout=SETTLE_SECONDS)
            for task in late:
                task.cancel()


class _Client(Protocol):
    """What every async client has."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class _Facade(Generic[C_co]):
    """An async client and the thread it lives on while it is connected."""

    def __init__(self, inner: C_co, life: _Client) -> None:
        self._client = inner
        self._life = life
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def _on(self) -> LoopThread:
        if self._thread is None:
            self.start()
        assert self._thread is not None
        return self._thread

    def start(self) -> None:
        """Connects; the first call does it as well."""
        thread = LoopThread(f"headrace {type(self).__name__.lower()}")
        try:
            thread.run(self._life.start())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def close(self) -> None:
        """Does what the async client does at its end, and lets go."""
        self._end(self._life.close)

    def _end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(close())
            thread.stop()


def _waits(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Facade[C], P], T]:
    """A coroutine method of an async client, as one that waits."""

    @functools.wraps(method)
    def waiting(self: _Facade[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._on.run(method(self._client, *args, **named))

    return _said_for_sync(waiting)


def _calls(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Facade[C], P], T]:
    """A plain method of an async client; callbacks it is given run on the client's thread."""

    @functools.wraps(method)
    def calling(self: _Facade[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._on.call(method, self._client, *args, **named)

    return _said_for_sync(calling)


F = TypeVar("F", bound=Callable[..., Any])


def _said_for_sync(function: F) -> F:
    function.__doc__ = (function.__doc__ or "").replace("await ", "").replace("async ", "")
    return function


class Producer(_Facade[client.Producer]):
    """`headrace.client.Producer` with calls that wait. Closed by `with` or `close`.

    >>> with Producer(bootstrap_servers="127.0.0.1:9094") as producer:  # doctest: +SKIP
    ...     producer.send("orders", b"hello", key=b"k")
    """

    def __init__(self, **config: Any) -> None:
        inner = client.Producer(**config)
        super().__init__(inner, inner)

    def close(self, timeout: float | None = None) -> None:
        """Sends what waits, and lets go."""
        self._end(lambda: self._client.close(timeout))

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> concurrent.futures.Future[RecordMetadata]:
        """Sends a record; the future says what became of it. Order is that of the calls."""
        return self._on.submit(
            self._client.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        )

    send = _waits(client.Producer.send)
    flush = _waits(client.Producer.flush)
    partitions_for = _waits(client.Producer.partitions_for)


class Consumer(_Facade[client.Consumer]):
    """`headrace.client.Consumer` with calls that wait; iterate over it for records.

    >>> with Consumer(group_id="billing") as consumer:  # doctest: +SKIP
    ...     consumer.subscribe(["orders"])
    ...     for record in consumer: print(record.value)
    """

    def __init__(self, **config: Any) -> None:
        inner = client.Consumer(**config)
        super().__init__(inner, inner)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record after record, for ever. A record counts as read when the next one is asked for."""
        records = self._client.__aiter__()

        async def following() -> ConsumerRecord:
            return await anext(records)

        while self._thread is not None:
            try:
                yield self._on.run(following())
            except StopAsyncIteration:
                return

    partitions_for = _waits(client.Consumer.partitions_for)
    assign = _waits(client.Consumer.assign)
    subscribe = _waits(client.Consumer.subscribe)
    unsubscribe = _waits(client.Consumer.unsubscribe)
    assignment = _calls(client.Consumer.assignment)
    subscription = _calls(client.Consumer.subscription)
    pause = _calls(client.Consumer.pause)
    resume = _calls(client.Consumer.resume)
    paused = _calls(client.Consumer.paused)
    seek = _calls(client.Consumer.seek)
    seek_to_beginning = _waits(client.Consumer.seek_to_beginning)
    seek_to_end = _waits(client.Consumer.seek_to_end)
    seek_to_timestamp = _waits(client.Consumer.seek_to_timestamp)
    position = _waits(client.Consumer.position)
    beginning_offsets = _waits(client.Consumer.beginning_offsets)
    end_offsets = _waits(client.Consumer.end_offsets)
    offsets_for_times = _waits(client.Consumer.offsets_for_times)
    lag = _waits(client.Consumer.lag)
    poll = _waits(client.Consumer.poll)
    commit = _waits(client.Consumer.commit)
    commit_nowait = _calls(client.Consumer.commit_nowait)
    committed = _waits(client.Consumer.committed)


class Admin(_Facade[client.Admin]):
    """`headrace.client.Admin` with calls that wait.

    >>> with Admin() as admin:  # doctest: +SKIP
    ...     admin.create_topic("orders", partitions=3)
    """

    def __init__(self, **config: Any) -> None:
        inner = client.Admin(**config)
        super().__init__(inner, inner)

    @property
    def image(self) -> Image:
        """The newest picture of the cluster."""
        return self._on.call(lambda: self._client.image)

    @property
    def connected(self) -> bool:
        """Whether `image` is being kept up to date."""
        return self._on.call(lambda: self._client.connected)

    on_change = _calls(client.Admin.on_change)
    create_topic = _waits(client.Admin.create_topic)
    create_topics = _waits(client.Admin.create_topics)
    delete_topics = _waits(client.Admin.delete_topics)
    create_partitions = _waits(client.Admin.create_partitions)
    increase_partitions = _waits(client.Admin.increase_partitions)
    list_topics = _waits(client.Admin.list_topics)
    describe_topics = _waits(client.Admin.describe_topics)
    describe_configs = _waits(client.Admin.describe_configs)
    alter_configs = _waits(client.Admin.alter_configs)
    alter_topic_configs = _waits(client.Admin.alter_topic_configs)
    elect_leaders = _waits(client.Admin.elect_leaders)
    alter_partition_reassignments = _waits(client.Admin.alter_partition_reassignments)
    list_partition_reassignments = _waits(client.Admin.list_partition_reassignments)
    drain_broker = _waits(client.Admin.drain_broker)
    list_offsets = _waits(client.Admin.list_offsets)
    delete_records = _waits(client.Admin.delete_records)
    list_groups = _waits(client.Admin.list_groups)
    describe_group = _waits(client.Admin.describe_group)
    list_group_offsets = _waits(client.Admin.list_group_offsets)
    alter_group_offsets = _waits(client.Admin.alter_group_offsets)
    delete_group_offsets = _waits(client.Admin.delete_group_offsets)
    delete_groups = _waits(client.Admin.delete_groups)
    remove_group_members = _waits(client.Admin.remove_group_members)
    describe_log_dirs = _waits(client.Admin.describe_log_dirs)
    alter_replica_log_dirs = _waits(client.Admin.alter_replica_log_dirs)
