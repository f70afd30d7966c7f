"""A cluster of pure decisions: brokers come and go, requests are decided, and plans take effect at once.

`run` understands one command a line and says what it did, so that scenarios are text (scenarios/*.txt) and the
random walk of test_invariants.py uses the same commands' functions.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from headrace.cluster.configs import Settings
from headrace.cluster.image import Endpoint, Image, Node, Partition
from headrace.controller import configs, isr, leaders, reassignment, topics
from headrace.controller.plan import Incarnation, Plan, View
from headrace.errors import KafkaError
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb

UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
SETTINGS = Settings({"cluster.id": "model", "node.id": "0"})


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def shown(state: Partition) -> str:
    leader = "nobody" if state.leader == -1 else state.leader
    text = f"leader {leader} in epoch {state.leader_epoch}, isr {listed(state.isr)} of {listed(state.replicas)}"
    if state.adding or state.removing:
        text += f", adding {listed(state.adding)}, removing {listed(state.removing)}"
    if state.elr:
        text += f", eligible {listed(state.elr)}"
    if state.last_known_leader != -1:
        text += f", last led by {state.last_known_leader}"
    return text


def listed(members: tuple[int, ...]) -> str:
    return ",".join(map(str, members)) or "none"


class Model:
    def __init__(self, seed: int = 1, rules: topics.TopicRules | None = None) -> None:
        self.image = Image(cluster_id="model")
        self.incarnations: dict[int, Incarnation] = {}
        self.stopping: dict[int, int] = {}
        self.random = random.Random(seed)
        self.rules = rules or topics.TopicRules(num_partitions=1, replication_factor=1)
        self.disks: dict[int, uuid.UUID] = {}
        self.lineages: dict[int, str] = {}
        self.revision = 0

    # Brokers

    def register(self, broker: int, rack: str = "") -> Plan:
        self.revision += 1
        disk = self.disks.setdefault(broker, uuid.UUID(int=self.random.getrandbits(128)))
        lineage = self.lineages.setdefault(broker, f"{broker}@{self.revision}")
        node = Node(broker, self.revision, Endpoint("b", broker), rack=rack, directory_id=disk, lineage_id=lineage)
        return self.with_brokers({**self.image.brokers, broker: node})

    def lose_records(self, broker: int) -> Plan:
        """Its power went: it comes back without what it had not synced."""
        self.lineages.pop(broker, None)
        return self.register(broker)

    def lose_disk(self, broker: int) -> Plan:
        self.disks.pop(broker, None)
        return self.lose_records(broker)

    def down(self, *gone: int) -> Plan:
        return self.with_brokers({b: node for b, node in self.image.brokers.items() if b not in gone})

    def with_brokers(self, brokers: dict[int, Node]) -> Plan:
        self.image = replace(self.image, brokers=brokers)
        return self.reconcile()

    def reconcile(self) -> Plan:
        return self.take(leaders.reconcile(self.view, self.unclean_allowed))

    def unclean_allowed(self, topic: str) -> bool:
        return self.image.topic_config(topic).get(UNCLEAN) == "true"

    def min_isr(self, topic: str) -> int:
        return int(self.image.topic_config(topic).get(MIN_ISR, "1"))

    @property
    def view(self) -> View:
        stopping = {b for b, e in self.stopping.items() if b in self.image.brokers and self.image.brokers[b].epoch == e}
        return View(self.image, self.incarnations, frozenset(stopping), min_isr=self.min_isr)

    def take(self, plan: Plan) -> Plan:
        self.image = plan.over(self.image)
        self.incarnations |= plan.incarnations
        return plan

    def shut_down(self, broker: int) -> tuple[Plan, list[tuple[str, int]]]:
        self.stopping[broker] = self.image.brokers[broker].epoch
        plan, remaining = leaders.shut_down(self.view, broker)
        return self.take(plan), remaining

    # Requests

    def alter_isr(
        self,
        name: str,
        index: int,
        members: list[int],
        by: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        epochs: list[int] | None = None,
    ) -> tuple[Plan, cpb.AlterPartitionResponse]:
        topic = self.image.topics[name]
        state = topic.partitions[index]
        broker = state.leader if by is None else by
        known = {b: node.epoch for b, node in self.image.brokers.items()}
        asked = cpb.AlterPartitionRequest.Partition(
            partition=pb.TopicPartition(topic_id=topic.id.bytes, partition=index),
            leader_epoch=state.leader_epoch if leader_epoch is None else leader_epoch,
            partition_epoch=state.partition_epoch if partition_epoch is None else partition_epoch,
            isr=members,
            isr_epochs=[known.get(m, -1) for m in members] if epochs is None else epochs,
        )
        request = cpb.AlterPartitionRequest(broker_id=broker, broker_epoch=known.get(broker, -1), partitions=[asked])
        plan, response = isr.alter(self.view, request)
        return self.take(plan), response

    # Text

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        before = self.image
        try:
            lines = getattr(self, f"do_{command.replace('-', '_')}")(*plain, **options) or []
        except KafkaError as refused:
            return [str(refused)]
        return lines + self._differences(before)

    def _differences(self, before: Image) -> list[str]:
        lines = []
        for name, topic in self.image.topics.items():
            known = before.topic_by_id(topic.id)
            for index, state in enumerate(topic.partitions):
                old = known.partitions[index] if known and index < len(known.partitions) else None
                if old != state:
                    lines.append(f"{name}-{index}: {shown(state)}")
                if old and old != state:
                    assert state.partition_epoch > old.partition_epoch
        return lines

    def do_brokers(self, *named: str) -> None:
        for word in named:
            broker, _, rack = word.partition("@")
            self.register(int(broker), rack)

    def do_down(self, *named: str) -> None:
        self.down(*map(int, named))

    def do_up(self, *named: str) -> None:
        self.do_brokers(*named)

    def do_restart(self, broker: str) -> None:
        self.register(int(broker))

    def do_empty(self, broker: str) -> None:
        self.lose_disk(int(broker))

    def do_unclean(self, broker: str) -> None:
        self.lose_records(int(broker))

    def do_shutdown(self, broker: str) -> list[str]:
        _, remaining = self.shut_down(int(broker))
        return ["still leads " + ", ".join(f"{name}-{index}" for name, index in remaining)] if remaining else []

    def do_create(self, name: str, **options: str) -> list[str]:
        new = cpb.CreateTopicsRequest.NewTopic(
            name=name,
            partitions=int(options.pop("partitions", "-1")),
            replication_factor=int(options.pop("rf", "-1")),
        )
        for index, replicas in enumerate(filter(None, options.pop("replicas", "").split("/"))):
            new.assignments.add(partition=index, replicas=numbers(replicas))
        new.configs.update(options)
        plan, response = topics.create(self.view, cpb.CreateTopicsRequest(topics=[new]), self.rules, self.random)
        self.take(plan)
        return self._errors(response.topics)

    def do_grow(self, name: str, count: str, replicas: str = "") -> list[str]:
        growth = cpb.CreatePartitionsRequest.Growth(name=name, count=int(count))
        for text in filter(None, replicas.split("/")):
            growth.assignments.add(replicas=numbers(text))
        plan, response = topics.grow(self.view, cpb.CreatePartitionsRequest(topics=[growth]), self.random)
        self.take(plan)
        return self._errors(response.topics)

    def do_delete(self, name: str) -> list[str]:
        request = cpb.DeleteTopicsRequest(topics=[pb.TopicPartition(topic=name)])
        plan, response = topics.delete(self.view, request, self.rules)
        touched = plan.touched(self.image)
        self.take(plan)
        return self._errors(response.topics) or [f"tell {listed(tuple(sorted(touched)))} to let go of {name}"]

    def do_isr(
        self,
        partition: str,
        members: str,
        by: str = "",
        leader_epoch: str = "",
        partition_epoch: str = "",
        epochs: str = "",
    ) -> list[str]:
        name, index = partition.rsplit("-", 1)
        _, response = self.alter_isr(
            name,
            int(index),
            numbers(members),
            int(by) if by else None,
            int(leader_epoch) if leader_epoch else None,
            int(partition_epoch) if partition_epoch else None,
            numbers(epochs) if epochs else None,
        )
        return self._errors([response]) or self._errors(response.results)

    def do_elect(self, kind: str, *named: str) -> list[str]:
        request = cpb.ElectLeadersRequest(unclean=kind == "unclean")
        for word in named:
            name, index = word.rsplit("-", 1)
            request.partitions.add(topic=name, partition=int(index))
        plan, response = leaders.elect(self.view, request)
        self.take(plan)
        return self._errors(response.results)

    def do_rebalance(self, percentage: str) -> None:
        self.take(leaders.rebalance(self.view, int(percentage)))

    def do_reassign(self, partition: str, replicas: str = "") -> list[str]:
        name, index = partition.rsplit("-", 1)
        named = pb.TopicPartition(topic=name, partition=int(index))
        request = cpb.AlterPartitionReassignmentsRequest()
        request.partitions.add(partition=named, replicas=numbers(replicas))
        plan, response = reassignment.alter(self.view, request)
        touched = plan.touched(self.image)
        self.take(plan)
        told = [f"tell {listed(tuple(sorted(touched)))}"] if touched else []
        return self._errors(response.results) or told

    def do_cancel(self, partition: str) -> list[str]:
        return self.do_reassign(partition)

    def do_config(self, name: str, **values: str) -> None:
        self.take(Plan(topic_configs={name: values}))
        self.reconcile()

    def do_alter(self, name: str, **values: str) -> list[str]:
        request = cpb.AlterConfigsRequest()
        asked = request.alterations.add(resource=pb.ConfigResource(type=pb.CONFIG_RESOURCE_TOPIC, name=name))
        for key, value in values.items():
            asked.operations.add(name=key, kind=cpb.AlterConfigsRequest.SET, value=value)
        plan, response = configs.alter(self.view, request, SETTINGS)
        self.take(plan)
        return self._errors(response.results)

    def do_show(self, name: str) -> list[str]:
        topic = self.image.topics[name]
        return [f"{name}-{index}: {shown(state)}" for index, state in enumerate(topic.partitions)]

    @staticmethod
    def _errors(results: object) -> list[str]:
        return [
            f"{pb.ErrorCode.Name(result.error.code)}: {result.error.message}"
            for result in results  # type: ignore[attr-defined]
            if result.error.code
        ]
