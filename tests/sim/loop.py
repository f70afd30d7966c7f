"""An asyncio loop on virtual time, and the processes that live in it.

Nothing waits: when no callback is ready, time jumps to the next timer. Every callback runs in the context of the
process that scheduled it (a context variable says which), and that is all it takes to kill a process at any await (its
callbacks are never called again), or to stop it for seconds (they are called later).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from headrace.storage.memory_files import Crash

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""Whose code runs. None: the simulated world itself, which never dies."""


MAX_TURNS = 20_000
"""Turns of the loop without time going on, after which somebody is taken to spin."""


class Process:
    """A simulated operating system process on the machine `host`."""

    def __init__(self, loop: SimLoop, name: str, host: str) -> None:
        self.loop = loop
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.running = True
        """Alive and not paused: its callbacks are called."""
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)
        self.at_death: list[Callable[[], None]] = []
        """What the machine does when the process is gone: it closes its connections."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._held: list[Handle] = []
        loop.processes.append(self)

    def spawn(self, coroutine: Any, name: str | None = None) -> asyncio.Task[Any]:
        """A task of this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    def kill(self) -> None:
        """No callback of it is ever called again: no handler, no `finally`, nothing."""
        self.alive = self.running = False
        self._held.clear()
        at_death, self.at_death = self.at_death, []
        for last in at_death:
            last()

    def pause(self) -> None:
        self.paused = True
        self.running = False

    def resume(self) -> None:
        self.paused = False
        self.running = self.alive
        held, self._held = self._held, []
        self.loop.ready.extend(held)

    def hold(self, handle: Handle) -> None:
        self._held.append(handle)

    def failed_tasks(self) -> list[tuple[str, BaseException]]:
        """Tasks that ended with an exception, whether anybody asked for it or not."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [(task.get_name(), error) for task in done if (error := task.exception()) is not None]

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keeps the tasks of the dead: collecting one would run its `finally` blocks at some random moment."""
        self._tasks.append(task)
        if len(self._tasks) > 2_000 and self.alive:
            failed = (each for each in self._tasks if each.done() and not each.cancelled() and each.exception())
            self._tasks = [*failed, *(each for each in self._tasks if not each.done())]


class Spinning(Exception):
    """Something runs again and again without ever waiting."""


class Handle(list[Any]):
    """A callback that is due, and what `call_later` returns: [callback, arguments, context, process, when].

    A list, because millions of them are made: no code of ours runs to make one.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        task = getattr(self[0], "__self__", None)
        return task.get_name() if isinstance(task, asyncio.Task) else repr(self[0])

    def when(self) -> float:
        return float(self[4])

    def cancel(self) -> None:
        self[0] = self[1] = None

    def cancelled(self) -> bool:
        return self[0] is None


class SimLoop(asyncio.AbstractEventLoop):
    """See the module's docstring. It runs for as long as `run` is told to."""

    def __init__(self, begin: float = 1_000.0) -> None:
        self.now = begin
        self.ready: deque[Handle] = deque()
        self.steps = 0
        self.processes: list[Process] = []
        """Everyone who ever lived here, see `Process.adopt`."""
        self.failures: list[dict[str, Any]] = []
        """What nobody handled, as `call_exception_handler` gets it."""
        self._timers: list[tuple[float, int, Handle]] = []
        self._seq = 0
        self._closed = False
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self.now

    get_debug = bool  # type: ignore[assignment]
    """False, without a call into Python for every future and task."""

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        if context is None:
            context = contextvars.copy_context()
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = context.get(PROCESS)
        if process is not None:
            process.adopt(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        if context is None:
            context = contextvars.copy_context()
        handle = Handle((callback, args, context, context.get(PROCESS), self.now))
        if not self._closed:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        if context is None:
            context = contextvars.copy_context()
        when = self.now + delay if delay > 0 else self.now
        self._seq += 1
        handle = Handle((callback, args, context, context.get(PROCESS), when))
        if not self._closed:
            heapq.heappush(self._timers, (when, self._seq, handle))
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        if context is None:
            context = contextvars.copy_context()
        self._seq += 1
        handle = Handle((callback, args, context, context.get(PROCESS), when))
        if not self._closed:
            heapq.heappush(self._timers, (when, self._seq, handle))
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """There are no threads: the work is done in one go, a moment later."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(0.0005, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.failures.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # --- running

    def run(self, end: float, stop: Collection[Any] = ()) -> None:
        """Runs callbacks in order until the time is `end`, `stop` is not empty, or nothing is left to do."""
        asyncio._set_running_loop(self)
        ready, timers, pop = self.ready, self._timers, heapq.heappop
        turns = 0
        try:
            while self.now < end and not stop:
                turns += 1
                if turns > MAX_TURNS:
                    busy = [f"{h[3].name if h[3] else 'world'}: {h}" for h in list(ready)[:5]]
                    raise Spinning(f"time stands still at {self.now:.3f} while {'; '.join(busy)} run")
                if not ready:
                    while timers and timers[0][2][0] is None:
                        pop(timers)
                    if not timers:
                        return
                    if timers[0][0] > self.now:
                        self.now, turns = timers[0][0], 0
                now = self.now
                while timers and timers[0][0] <= now:
                    ready.append(pop(timers)[2])
                self._turn()
        finally:
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        """Calls what is ready now; what that makes ready has to wait for the next turn."""
        ready = self.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            callback, args, context, process, _when = handle
            if callback is None:
                continue
            if process is not None and not process.running:
                if process.alive:
                    process.hold(handle)
                continue
            self.steps += 1
            try:
                context.run(callback, *args)
            except Crash:
                continue  # the machine stopped in the middle of it
            except Exception as error:
                self.call_exception_handler({"message": "a callback failed", "exception": error})

    def close(self) -> None:
        self._closed = True
        self.ready.clear()
        self._timers.clear()
