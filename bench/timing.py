"""A million operations in purgatory: what they cost in memory and in time, and what an idle second costs.

.venv/bin/python bench/timing.py [operations]
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

from headrace.errors import KafkaError
from headrace.timing.driver import TimerDriver
from headrace.timing.purgatory import DelayedOperation, Purgatory


class Pending(DelayedOperation):
    __slots__ = ("answer", "ready")

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.answer = None

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> None: ...

    def on_cancel(self, error: KafkaError) -> None: ...


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(count: int) -> None:
    driver = TimerDriver()
    purgatory = Purgatory("bench", driver, max_operations=count)
    keys = [("topic", n) for n in range(1000)]
    before = resident_mb()
    began = time.process_time()
    operations = []
    for n in range(count):
        operation = Pending()
        purgatory.add(operation, (keys[n % 1000], keys[(n + 1) % 1000]), 600_000 + n % 30_000)
        operations.append(operation)
    print(f"add       {(time.process_time() - began) / count * 1e6:6.2f} us an operation")
    print(f"memory    {resident_mb() - before:6.0f} MB for {count} operations under two keys each")

    cpu = cpu_seconds()
    await asyncio.sleep(2)
    print(f"idle      {(cpu_seconds() - cpu) / 2 * 100:6.3f} % CPU")

    began = time.process_time()
    for operation in operations[: count // 2]:
        purgatory.cancel(operation)
    print(f"cancel    {(time.process_time() - began) / (count // 2) * 1e6:6.2f} us an operation, purges included")
    for operation in operations:
        operation.ready = True
    began = time.process_time()
    purgatory.check_all(keys)
    print(f"complete  {(time.process_time() - began) / (count - count // 2) * 1e6:6.2f} us an operation")
    print(f"left      {purgatory.size} waiting, {purgatory.watched} listed, {len(driver)} timers")
    driver.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
