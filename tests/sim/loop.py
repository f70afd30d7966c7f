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
from collections.abc import Callable
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
        self.alive = False
        self._held.clear()
        at_death, self.at_death = self.at_death, []
        for last in at_death:
            last()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        self.loop.ready.extend(held)

    def hold(self, handle: Handle) -> None:
        self._held.append(handle)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keeps the tasks of the dead: collecting one would run its `finally` blocks at some random moment."""
        self._tasks.append(task)
        if len(self._tasks) > 2_000 and self.alive:
            self._tasks = [each for each in self._tasks if not each.done()]


class Spinning(Exception):
    """Something runs again and again without ever waiting."""


class Handle:
    """A callback that is due at `when`; what `call_later` returns."""

    __slots__ = ("_args", "_callback", "_cancelled", "_when", "context", "process", "seq")

    def __init__(self, when: float, seq: int, callback: Any, args: Any, context: contextvars.Context | None) -> None:
        self._when = when
        self.seq = seq
        self._callback = callback
        self._args = args
        self._cancelled = False
        self.context = context if context is not None else contextvars.copy_context()
        self.process = self.context.get(PROCESS)

    def __repr__(self) -> str:
        task = getattr(self._callback, "__self__", None)
        return task.get_name() if isinstance(task, asyncio.Task) else repr(self._callback)

    def __lt__(self, other: Handle) -> bool:
        return (self._when, self.seq) < (other._when, other.seq)

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        self.context.run(self._callback, *self._args)


class SimLoop(asyncio.AbstractEventLoop):
    """See the module's docstring. It runs until `run` is told to stop or nothing is left to do."""

    def __init__(self, begin: float = 1_000.0) -> None:
        self.now = begin
        self.ready: deque[Handle] = deque()
        self.steps = 0
        self.processes: list[Process] = []
        """Everyone who ever lived here, see `Process.adopt`."""
        self.failures: list[dict[str, Any]] = []
        """What nobody handled, as `call_exception_handler` gets it."""
        self._timers: list[Handle] = []
        self._seq = 0
        self._closed = False

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

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
        handle = Handle(self.now, 0, callback, args, context)
        if not self._closed:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return self.call_at(self.now + max(delay, 0.0), callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        self._seq += 1
        handle = Handle(when, self._seq, callback, args, context)
        if not self._closed:
            heapq.heappush(self._timers, handle)
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

    def run(self, done: Callable[[], bool]) -> None:
        """Runs callbacks in order until `done()` or nothing is left; `done` is asked between turns."""
        asyncio._set_running_loop(self)
        since, turns = self.now, 0
        try:
            while not done():
                ready, timers = self.ready, self._timers
                turns += 1
                if self.now > since:
                    since, turns = self.now, 0
                elif turns > MAX_TURNS:
                    busy = [f"{h.process.name if h.process else 'world'}: {h}" for h in list(ready)[:5]]
                    raise Spinning(f"time stands still at {self.now:.3f} while {'; '.join(busy)} run")
                if not ready:
                    while timers and timers[0].cancelled():
                        heapq.heappop(timers)
                    if not timers:
                        return
                    self.now = max(self.now, timers[0].when())
                while timers and timers[0].when() <= self.now:
                    ready.append(heapq.heappop(timers))
                for _ in range(len(ready)):
                    self._run_one(ready.popleft())
        finally:
            asyncio._set_running_loop(None)

    def _run_one(self, handle: Handle) -> None:
        if handle.cancelled():
            return
        process = handle.process
        if process is not None:
            if not process.alive:
                return
            if process.paused:
                process.hold(handle)
                return
        self.steps += 1
        try:
            handle.run()
        except Crash:
            return  # the machine stopped in the middle of it
        except Exception as error:
            self.call_exception_handler({"message": "a callback failed", "exception": error})

    def close(self) -> None:
        self._closed = True
        self.ready.clear()
        self._timers.clear()
