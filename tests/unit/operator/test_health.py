"""What the liveness probe of the operator sees, over HTTP."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import pytest

from headrace_operator.main import STALE_SECONDS, Health, _serve_health


class Working:
    """Workers as the probe sees them."""

    failure: BaseException | None = None


async def probed(health: Health) -> tuple[int, str]:
    runner = await _serve_health(health, 0)
    try:
        port: Any = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status, await answer.text()
    finally:
        await runner.cleanup()


@pytest.fixture
def health() -> Health:
    found = Health()
    found.workers = Working()  # type: ignore[assignment]
    return found


async def test_an_operator_that_waits_for_its_turn_or_works_is_alive(health: Health) -> None:
    assert await probed(health) == (200, "ok")
    assert await probed(Health()) == (200, "ok")


async def test_a_worker_that_ended_fails_the_probe(health: Health) -> None:
    health.workers.failure = RuntimeError("a mistake")  # type: ignore[misc, union-attr]
    status, text = await probed(health)
    assert (status, "a mistake" in text) == (500, True)


async def test_a_watch_that_is_silent_fails_the_probe(health: Health) -> None:
    health.freshness.listed({("Topic", "shop", "orders"): 5}, time.monotonic() - STALE_SECONDS - 1)
    status, text = await probed(health)
    assert (status, "Topic shop orders" in text) == (500, True)
