"""What Prometheus scrapes from each service, by the names of Kafka's dashboards, after known traffic."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.cluster import Cluster, wait_until
from tests.integration.group_members import Member, members, produce_values
from tests.integration.kafka_clients import Confluent, Rec, Send, Want

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(cluster: Cluster, role: str = "broker") -> Samples:
    with urllib.request.urlopen(f"http://{cluster.process(role, 0)['metrics']}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_traffic_is_counted_by_topic_and_request(own_cluster: Cluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic("counted", partitions=2)
    records = [Rec(b"x" * 100) for _ in range(50)]
    Confluent().produce(own_cluster.bootstrap, [Send(topic, 0, records), Send(topic, 1, records[:10])])
    Confluent().consume(own_cluster.bootstrap, [Want(topic, 0, 50)])
    found = scrape(own_cluster)
    assert value(found, "kafka_server_brokertopicmetrics_messagesin_total", topic=topic) == 60
    assert value(found, "kafka_server_brokertopicmetrics_bytesin_total", topic=topic) >= 6000
    assert value(found, "kafka_server_brokertopicmetrics_bytesout_total", topic=topic) >= 5000
    assert value(found, "kafka_log_log_logendoffset", topic=topic, partition="0") == 50
    assert value(found, "kafka_log_log_logendoffset", topic=topic, partition="1") == 10
    assert value(found, "kafka_log_log_size", topic=topic, partition="0") >= 5000
    for request in ("Produce", "Fetch", "Metadata", "ApiVersions"):
        answered = value(found, "kafka_network_requestmetrics_requests_total", request=request)
        assert answered >= 1
        assert value(found, "kafka_network_requestmetrics_totaltime_seconds_count", request=request) == answered


def test_the_state_of_the_broker_is_told(own_cluster: Cluster, new_topic: Callable[..., str]) -> None:
    before = scrape(own_cluster)
    new_topic("more", partitions=5)

    def grown() -> bool:
        now = scrape(own_cluster)
        return all(
            value(now, f"kafka_server_replicamanager_{name}")
            >= value(before, f"kafka_server_replicamanager_{name}") + 5
            for name in ("partitioncount", "leadercount")
        )

    wait_until(grown, "five more partitions, all led here")
    found = scrape(own_cluster)
    for name in (
        "kafka_server_replicamanager_underreplicatedpartitions",
        "kafka_server_replicamanager_underminisrpartitioncount",
        "kafka_server_replicamanager_offlinereplicacount",
        "kafka_server_replicamanager_isrshrinks_total",
        "kafka_server_replicamanager_isrexpands_total",
    ):
        assert value(found, name) == 0, name
    assert 0 <= value(found, "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent") <= 1
    assert value(found, "kafka_server_socketservermetrics_connection_count") >= 1
    for operation in ("Produce", "Fetch"):
        waiting = value(found, "kafka_server_delayedoperationpurgatory_purgatorysize", delayedOperation=operation)
        assert waiting >= 0


def test_the_state_of_the_cluster_is_told_by_its_controller(
    own_cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    before = scrape(own_cluster, "controller")
    new_topic("controlled", partitions=4)

    def gained(name: str) -> float:
        found = f"kafka_controller_kafkacontroller_{name}"
        return value(scrape(own_cluster, "controller"), found) - value(before, found)

    wait_until(lambda: gained("globalpartitioncount") == 4, "four more partitions")
    assert gained("globaltopiccount") == 1
    found = scrape(own_cluster, "controller")
    for name, wanted in (
        ("kafka_controller_kafkacontroller_activecontrollercount", 1),
        ("kafka_controller_kafkacontroller_activebrokercount", 1),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", 0),
        ("kafka_controller_controllereventmanager_eventqueuesize", 0),
        ("kafka_controller_controllerstats_uncleanleaderelections_total", 0),
        ("headrace_controller_terms_total", 1),
    ):
        assert value(found, name) == wanted, name
    written = "headrace_controller_change_seconds_count"
    assert value(found, written) > value(before, written)


def test_a_metadata_replica_tells_whom_it_serves(own_cluster: Cluster, new_topic: Callable[..., str]) -> None:
    before = scrape(own_cluster, "metadata")
    new_topic("told")
    sent, revision = "headrace_metadata_deltas_sent_total", "headrace_metadata_revision"
    wait_until(lambda: value(scrape(own_cluster, "metadata"), sent) > value(before, sent), "its watchers are told")
    found = scrape(own_cluster, "metadata")
    assert value(found, revision) > value(before, revision)
    # The broker and the coordinator at least.
    assert value(found, "headrace_metadata_watchers") >= 2
    assert value(found, "headrace_metadata_snapshots_sent_total") >= 2


def test_lag_and_groups_are_told_by_the_coordinator(own_cluster: Cluster, new_topic: Callable[..., str]) -> None:
    topic, groups = new_topic("lag", partitions=2), [f"lag-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    before = scrape(own_cluster, "coordinator")
    produce_values(own_cluster.bootstrap, topic, 2, [b"x"] * 30)
    for group, offsets in zip(groups, ((15, 4), (0, 10)), strict=True):
        consumer = Consumer({"bootstrap.servers": own_cluster.bootstrap, "group.id": group})
        places = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
    expected = {(groups[0], "0"): 0, (groups[0], "1"): 11, (groups[1], "0"): 15, (groups[1], "1"): 5}

    def lags() -> dict[tuple[str, str], float]:
        found = [
            (dict(labels), lag)
            for (name, labels), lag in scrape(own_cluster, "coordinator").items()
            if name == "kafka_consumergroup_lag"
        ]
        return {(at["consumergroup"], at["partition"]): lag for at, lag in found if at["topic"] == topic}

    wait_until(lambda: lags() == expected, "the lag of each group in each partition")
    produce_values(own_cluster.bootstrap, topic, 2, [b"x"] * 2)
    wait_until(lambda: lags() == {at: lag + 1 for at, lag in expected.items()}, "one record more in each")
    found = scrape(own_cluster, "coordinator")
    counted = "kafka_server_group_coordinator_metrics_offset_commit_total"
    assert value(found, counted) >= value(before, counted) + 4
    assert value(found, "kafka_consumergroup_current_offset", consumergroup=groups[0], topic=topic, partition="1") == 4
    by_state = "kafka_server_group_coordinator_metrics_group_count"
    assert value(found, by_state, protocol="classic", state="Empty") >= 2
    rebalances = "kafka_server_group_coordinator_metrics_group_completed_rebalance_total"
    with members(Member(own_cluster.bootstrap, groups[0], [topic])) as (member,):
        wait_until(lambda: len(member.assigned) == 2, "its share")
        now = scrape(own_cluster, "coordinator")
        assert value(now, by_state, protocol="classic", state="Stable") >= 1
        assert value(now, rebalances) > value(found, rebalances)
        took = "kafka_server_group_coordinator_metrics_group_completed_rebalance_milliseconds_total"
        assert value(now, took) >= value(found, took)
