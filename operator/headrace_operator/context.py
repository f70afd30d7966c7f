"""What every part of the running operator shares."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_operator.events import Events
from headrace_operator.kube import Kube
from headrace_operator.store import Store


@dataclass(frozen=True, slots=True)
class Options:
    """How the operator was started."""

    image: str
    """Of services, where a Cluster names none."""
    pull_secrets: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    """Empty: all."""
    metrics_port: int = 8080
    health_port: int = 8081
    identity: str = "headrace-operator"
    """Whose the Lease is while this one works."""
    lease: str = "headrace-operator"
    metadata_address: str = "{name}-metadata.{namespace}.svc:9094"
    """Where a Cluster's metadata servers answer; another one for an operator that runs outside."""


@dataclass(frozen=True, slots=True)
class Context:
    """The API server, the news and the resources known so far."""

    options: Options
    kube: Kube
    events: Events
    store: Store
