"""What is said of a Spark job, from the objects that Kubernetes has of it."""

from __future__ import annotations

from typing import Any

from headrace.cli.spark_status import has_ended, has_started, newest, rows, waiting_for, why_it_failed


def pod(name: str, created: str = "2026-01-31T12:00:00Z", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": status}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"state": state}]


def test_states_of_jobs() -> None:
    def job(name: str, status: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {}, "creationTimestamp": "then"}, "status": status}

    done, broken = ({"conditions": [{"type": kind, "status": "True"}]} for kind in ("Complete", "Failed"))
    listed = [job("d", {}), job("c", {"ready": 1, "failed": 2}), job("b", broken), job("a", done)]
    found = [(row["name"], row["state"], row["failed_starts"]) for row in rows(listed)]
    assert found == [("a", "Succeeded", 0), ("b", "Failed", 0), ("c", "Running", 2), ("d", "Starting", 0)]


def test_the_newest_driver_counts() -> None:
    assert newest([]) is None
    found = newest([pod("b", "2026-01-31T12:00:00Z"), pod("a", "2026-01-31T12:05:00Z")])
    assert found is not None
    assert found["metadata"]["name"] == "a"


def test_a_driver_that_waits_says_what_for() -> None:
    pulling = {"reason": "ErrImagePull", "message": "not found"}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    ended = {"reason": "OOMKilled", "exitCode": 137}
    assert waiting_for(None) == "waiting for a driver"
    assert waiting_for(pod("a", containerStatuses=container(waiting=pulling))) == "driver a: ErrImagePull: not found"
    assert waiting_for(pod("a", conditions=[unschedulable])) == "driver a: Unschedulable: no node"
    assert waiting_for(pod("a", phase="Pending")) == "driver a: Pending"
    said = waiting_for(pod("a", phase="Failed", containerStatuses=container(terminated=ended)))
    assert said == "driver a ended (OOMKilled, exit code 137): waiting for another"


def test_a_log_is_there_once_a_driver_ran() -> None:
    assert [has_started(pod("a", phase=phase)) for phase in ("Pending", "Running", "Failed")] == [False, True, True]
    assert [has_ended(pod("a", phase=phase)) for phase in ("Pending", "Running", "Failed")] == [False, False, True]


def test_a_failed_job_says_why() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "6 times"}
    assert why_it_failed({"status": {"conditions": [failed]}}) == "BackoffLimitExceeded: 6 times"
    assert why_it_failed({}) == "Failed"
