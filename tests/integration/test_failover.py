"""Three brokers lose a leader, a follower or a controller again and again, and no acknowledged record is lost.
With `-s` it says how long nothing was acknowledged: the lease after a kill -9, almost nothing after a farewell.

`HEADRACE_BOUNCES=5 HEADRACE_PAUSE=20` is the long run (`make bounce`); by default every case comes once, briefly.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.bouncing import Bouncer, Load, check_records, in_sync, leader_of, log_bytes, say
from tests.integration.cluster import Cluster, wait_until

BOUNCES = int(os.environ.get("HEADRACE_BOUNCES", "1"))
PAUSE = float(os.environ.get("HEADRACE_PAUSE", "3"))
SESSION_SECONDS = 2.0
RECOVERY_SECONDS = 30.0
"""A deadline for any machine; how fast it is on a quiet one is for bench/ to say."""
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "4000",
    "auto.leader.rebalance.enable": "false",
}

pytestmark = pytest.mark.timeout(120 + 200 * BOUNCES)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Bouncer, AdminClient]]:
    cluster = Cluster(tmp_path_factory.mktemp("three") / "data", brokers=3, settings=SETTINGS).start()
    bouncer = Bouncer(cluster)
    try:
        yield cluster, bouncer, AdminClient({"bootstrap.servers": cluster.bootstrap})
    finally:
        bouncer.close()
        cluster.stop()


def make_topic(admin: AdminClient, name: str, partitions: int = 3) -> str:
    admin.create_topics([NewTopic(name, partitions, 3)], operation_timeout=30)[name].result(60)
    wait_until(lambda: in_sync(admin, name), "all replicas of the new topic in sync")
    return name


def bounce(
    bouncer: Bouncer, role: str, number: int, how: signal.Signals, load: Load, settled: Callable[[], bool]
) -> float:
    """Takes one process away until every partition is written to again, and brings it back.

    Returns the longest time in which a partition had no acknowledgement.
    """
    began = time.monotonic()
    bouncer.signal(role, number, how)
    if how is not signal.SIGSTOP:
        wait_until(lambda: load.acked_since(began), f"writes after {how.name} of {role} {number}", 30)
        bouncer.wait_gone(role, number)
        bouncer.start(role, number)
    else:
        wait_until(lambda: time.monotonic() > began + PAUSE, "the pause to be over", PAUSE + 10)
        wait_until(lambda: load.acked_since(began), f"writes while {role} {number} is paused", 30)
        bouncer.signal(role, number, signal.SIGCONT)
    wait_until(settled, f"everyone in sync after {how.name} of {role} {number}", 60)
    back = time.monotonic()
    wait_until(lambda: load.acked_since(back), f"writes with {role} {number} back", 30)
    return load.longest_gap(began)


def test_every_acknowledged_record_survives_bounces(three: tuple[Cluster, Bouncer, AdminClient]) -> None:
    cluster, bouncer, admin = three
    topic = make_topic(admin, "bounced")
    load = Load(cluster.bootstrap, topic, 3)
    try:
        wait_until(lambda: load.acked_since(0), "first acknowledgements")
        for _ in range(BOUNCES):
            for role in ("leader", "follower", "controller"):
                for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
                    leader = leader_of(admin, topic)
                    if role == "controller":
                        target = ("controller", bouncer.active_controller())
                    else:
                        target = ("broker", leader if role == "leader" else (leader + 1) % 3)
                    seconds = bounce(bouncer, *target, how, load, lambda: in_sync(admin, topic))
                    say(f"{role:10} {how.name:8} {seconds * 1000:6.0f} ms without an acknowledgement at the longest")
                    assert seconds < RECOVERY_SECONDS, "the cluster did not come back"
    finally:
        load.stop()
    assert not load.failures, load.failures[:3]
    count = check_records(load, cluster.bootstrap)
    say(f"{count} acknowledged records are there")
    for partition in range(3):
        first, second, third = (log_bytes(cluster, broker, topic, partition) for broker in range(3))
        assert first == second == third, f"the replicas of {topic}-{partition} differ"
    for i in range(3):
        assert "Traceback" not in bouncer.log("broker", i), bouncer.log("broker", i)[-4000:]
