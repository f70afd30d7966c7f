"""How a Spark job does, read from its Kubernetes Job and its driver pods: pure, from objects to words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli.spark_manifests import CLUSTER_LABEL

Found = Mapping[str, Any]

SUCCEEDED, FAILED, RUNNING, STARTING = "Succeeded", "Failed", "Running", "Starting"
ENDED = (SUCCEEDED, FAILED)


def state(job: Found) -> str:
    """One word for a Job."""
    status = job.get("status", {})
    done = {each["type"] for each in status.get("conditions", []) if each.get("status") == "True"}
    if "Complete" in done:
        return SUCCEEDED
    if "Failed" in done:
        return FAILED
    return RUNNING if status.get("ready") else STARTING


def rows(jobs: Sequence[Found]) -> list[dict[str, Any]]:
    """What `headrace spark list` shows of Jobs, as `kubectl get jobs -o json` lists them."""
    found = [
        {
            "name": job["metadata"]["name"],
            "cluster": job["metadata"]["labels"].get(CLUSTER_LABEL, ""),
            "state": state(job),
            "failed_starts": job.get("status", {}).get("failed", 0),
            "created": job["metadata"]["creationTimestamp"],
        }
        for job in jobs
    ]
    return sorted(found, key=lambda row: str(row["name"]))


def newest(pods: Sequence[Found]) -> Found | None:
    """The driver that counts: earlier ones have ended."""
    return max(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]), default=None)


def has_started(pod: Found) -> bool:
    """Whether there is a log to read."""
    return pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")


def has_ended(pod: Found) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def waiting_for(pod: Found | None) -> str:
    """Why no driver runs, in Kubernetes' own words where it has some."""
    if pod is None:
        return "waiting for a driver"
    status = pod.get("status", {})
    for each in status.get("containerStatuses", []):
        now = each.get("state", {})
        if "waiting" in now:
            return _sentence(pod, now["waiting"])
        if "terminated" in now:
            ended = now["terminated"]
            code = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
            return f"driver {pod['metadata']['name']} ended ({code}): waiting for another"
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            return _sentence(pod, condition)
    return f"driver {pod['metadata']['name']}: {status.get('phase', 'Pending')}"


def why_it_failed(job: Found) -> str:
    """What a failed Job says about it."""
    for each in job.get("status", {}).get("conditions", []):
        if each["type"] == "Failed" and each.get("status") == "True":
            return ": ".join(part for part in (each.get("reason"), each.get("message")) if part) or FAILED
    return FAILED


def _sentence(pod: Found, given: Found) -> str:
    said = ": ".join(part for part in (given.get("reason"), given.get("message")) if part)
    return f"driver {pod['metadata']['name']}: {said}"
