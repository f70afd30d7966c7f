"""One broker at a time, never under min.insync.replicas, leaders back at the end."""

from __future__ import annotations

from tests.unit.operator.pictures import image, partition, topic

from headrace_operator.rollout import Done, ElectPreferred, Pod, Restart, Wait, next_step, unsafe


def pods(*states: str) -> list[Pod]:
    """`old` and `new` serve; a `!` behind them: they do not; `-`: they are stopping."""
    return [
        Pod(f"demo-broker-{n}", n, s in ("old", "new"), s.startswith("new"), s.endswith("-"))
        for n, s in enumerate(states)
    ]


HEALTHY = image([0, 1, 2], topic("a", partition([0, 1, 2]), partition([1, 2, 0])), min_isr=2)


def test_nothing_outdated_is_nothing_to_do() -> None:
    assert next_step(pods("new", "new", "new"), HEALTHY, rolling=False) == Done()


def test_the_last_outdated_broker_goes_first() -> None:
    step = next_step(pods("old", "old", "new"), HEALTHY, rolling=True)
    assert isinstance(step, Restart)
    assert (step.pod.ordinal, step.left) == (1, 2)


def test_the_next_one_waits_until_the_one_before_is_back() -> None:
    assert next_step(pods("old", "old", "new!"), HEALTHY, True) == Wait("demo-broker-2 is starting")
    assert next_step(pods("old", "old", "old-"), HEALTHY, True) == Wait("demo-broker-2 is stopping")
    away = image([0, 1], topic("a", partition([0, 1, 2], isr=[0, 1])), min_isr=1)
    assert next_step(pods("old", "old", "new"), away, True) == Wait("demo-broker-2 is starting")


def test_the_next_one_waits_for_full_isr() -> None:
    lagging = image([0, 1, 2], topic("a", partition([0, 1, 2], isr=[0, 1])), min_isr=1)
    step = next_step(pods("old", "old", "new"), lagging, True)
    assert step == Wait("1 partitions are not in sync yet (a-0)")


def test_a_replica_that_is_only_being_added_is_not_missed() -> None:
    moving = image([0, 1, 2], topic("a", partition([0, 1, 2], isr=[0, 1], adding=[2])), min_isr=1)
    assert isinstance(next_step(pods("old", "new", "new"), moving, True), Restart)


def test_what_waiting_cannot_help_does_not_stand_in_the_way() -> None:
    single = image([0, 1], topic("one", partition([0])), topic("both", partition([0, 1])), min_isr=2)
    assert unsafe(single, 0) is None


def test_a_partition_in_a_move_may_not_fall_under_min_isr() -> None:
    # It will have three replicas, so two of them in sync can be waited for; now only two are.
    moving = image([0, 1, 2], topic("a", partition([0, 1, 2], isr=[0, 1], adding=[2])), min_isr=2)
    assert unsafe(moving, 0) == "without broker 0 1 partitions fall under min.insync.replicas (a-0)"
    assert unsafe(moving, 2) is None


def test_a_broker_that_cannot_start_is_replaced_at_once() -> None:
    away = image([0, 1], topic("a", partition([0, 1, 2], isr=[0, 1])), min_isr=2)
    step = next_step(pods("new", "new", "old!"), away, True)
    assert isinstance(step, Restart)
    assert step.pod.ordinal == 2
    assert isinstance(next_step(pods("old!", "old!", "old!"), None, True), Restart)


def test_a_cluster_that_does_not_answer_spares_nobody() -> None:
    assert isinstance(next_step(pods("old", "old", "old"), None, True), Wait)


def test_brokers_wait_for_what_they_lean_on() -> None:
    step = next_step(pods("old", "old", "old"), HEALTHY, True, ["controller"])
    assert step == Wait("brokers restart once controller are ready")


def test_leaders_go_back_once_all_are_new_and_in_sync() -> None:
    new = pods("new", "new", "new")
    misplaced = image([0, 1, 2], topic("a", partition([0, 1, 2], leader=1)))
    assert next_step(new, misplaced, rolling=True) == ElectPreferred()
    assert next_step(new, misplaced, rolling=False) == Done()
    assert next_step(new, HEALTHY, rolling=True) == Done()
    lagging = image([0, 1, 2], topic("a", partition([0, 1, 2], isr=[1, 2])))
    assert isinstance(next_step(new, lagging, rolling=True), Wait)
