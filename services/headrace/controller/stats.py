"""What a controller counts, and how Prometheus sees it: under Kafka's names where Kafka has the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from headrace.cluster.image import NO_LEADER, Image
from headrace.controller.plan import Plan

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Stats:
    """Everything one controller counts, over all its terms."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.terms = Counter(
            "headrace_controller_terms", "Times this controller was elected the active one", registry=self.registry
        )
        self.elections = Counter(
            "kafka_controller_controllerstats_leaderelections",
            "Partitions that got another leader",
            registry=self.registry,
        )
        self.unclean = Counter(
            "kafka_controller_controllerstats_uncleanleaderelections",
            "Partitions whose new leader may lack records that were acknowledged",
            registry=self.registry,
        )
        self.retries = Counter(
            "headrace_controller_write_retries",
            "Changes that had to be decided anew because the registry did not take them",
            registry=self.registry,
        )
        self.plans = Histogram(
            "headrace_controller_plan_seconds", "Time to decide a change", registry=self.registry, buckets=_SECONDS
        )
        self.changes = Histogram(
            "headrace_controller_change_seconds",
            "A change from the beginning of its turn until it is written",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def carried_out(self, plan: Plan, before: Image) -> None:
        """A plan is written; `before` is the picture it was made from."""
        changed = [(before.partition(*name), state) for name, state in plan.partitions.items()]
        elected = [(old, new) for old, new in changed if old and new.leader not in (NO_LEADER, old.leader)]
        self.elections.inc(len(elected))
        self.unclean.inc(sum(new.leader not in (*old.isr, *old.elr) for old, new in elected))


class Collector:
    """The state of the cluster as the active controller has it; a standby says 0 of everything.

    Called in the scraper's thread: pictures never change, so nothing has to be copied.
    """

    def __init__(self, image: Callable[[], Image | None], waiting: Callable[[], int]) -> None:
        self._image = image
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        image = self._image()
        yield _gauge("activecontrollercount", "1 on the active controller, 0 on the others", image is not None)
        image = image or Image()
        partitions = [p for topic in image.topics.values() for p in topic.partitions]
        offline = sum(p.leader == NO_LEADER for p in partitions)
        misplaced = sum(p.leader not in (NO_LEADER, p.preferred_leader) for p in partitions if p.replicas)
        yield _gauge("activebrokercount", "Brokers that are registered", len(image.brokers))
        yield _gauge("globaltopiccount", "Topics of the cluster", len(image.topics))
        yield _gauge("globalpartitioncount", "Partitions of the cluster", len(partitions))
        yield _gauge("offlinepartitionscount", "Partitions of the cluster that nobody leads", offline)
        yield _gauge(
            "preferredreplicaimbalancecount", "Partitions that their preferred replica does not lead", misplaced
        )
        yield GaugeMetricFamily(
            "kafka_controller_controllereventmanager_eventqueuesize",
            "Changes that wait for their turn",
            value=self._waiting(),
        )
        yield GaugeMetricFamily(
            "headrace_controller_moving_partitions",
            "Partitions that move between brokers",
            value=sum(bool(p.adding or p.removing) for p in partitions),
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kafka_controller_kafkacontroller_{name}", text, value=value)
