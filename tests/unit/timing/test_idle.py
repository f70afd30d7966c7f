"""The idle share of a thread."""

import threading
import time

from headrace.timing.idle import LoopIdle


def work(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def test_a_thread_that_works_is_not_idle() -> None:
    idle = LoopIdle(lambda: 0.0)
    work(0.05)
    assert idle.take_share() < 1.0


def test_time_spent_waiting_in_handlers_is_not_idle() -> None:
    busy = [0.0]
    idle = LoopIdle(lambda: busy[0])
    busy[0] += 1000.0
    assert idle.take_share() == 0.0


def test_it_is_about_the_thread_that_made_it() -> None:
    idle = LoopIdle(lambda: 0.0)
    used = time.thread_time()
    shares: list[float] = []
    done = threading.Event()

    def ask() -> None:
        work(0.05)
        shares.append(idle.take_share())
        done.set()

    threading.Thread(target=ask).start()
    assert done.wait(30)
    # This thread only waited: what the other one worked is not counted.
    assert time.thread_time() - used < 0.05
    assert shares[0] > 0.0
