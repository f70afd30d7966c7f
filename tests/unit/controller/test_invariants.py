"""A random walk of brokers, topics, ISR changes and moves, with the rules that may never break checked at each step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.controller.model import MIN_ISR, UNCLEAN, Model

from headrace.cluster.image import NO_LEADER, Partition
from headrace.errors import ErrorCode

BROKERS = range(1, 6)


class ControllerWalk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.leader_of: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        self.before: dict[tuple[bytes, int], Partition] = {}
        self.asked_for_unclean = False
        self.reported: set[int] = set()
        """The in-sync replicas that a leader has just reported: any of them may take over from it."""
        self.lost: set[int] = set()
        """Who has just come back without records."""
        self.topics_made = 0

    @initialize(brokers=st.sets(st.sampled_from(BROKERS), min_size=1))
    def start(self, brokers: set[int]) -> None:
        for broker in sorted(brokers):
            self.model.register(broker)

    # Brokers

    @rule(broker=st.sampled_from(BROKERS))
    def comes_or_restarts(self, broker: int) -> None:
        self.model.register(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def comes_back_empty(self, broker: int) -> None:
        self.lost = {broker}
        self.model.lose_disk(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def comes_back_without_its_last_records(self, broker: int) -> None:
        self.lost = {broker}
        self.model.lose_records(broker)

    @rule(brokers=st.sets(st.sampled_from(BROKERS), min_size=1, max_size=3))
    def die(self, brokers: set[int]) -> None:
        self.model.down(*brokers)

    @precondition(lambda self: self.model.image.brokers)
    @rule(data=st.data())
    def shuts_down(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(sorted(self.model.image.brokers)))
        _, remaining = self.model.shut_down(broker)
        leads = {pid for pid, state in self.model.view.partitions() if state.leader == broker}
        assert leads == set(remaining)
        for name, index in remaining:
            state = self.model.image.topics[name].partitions[index]
            assert not any(self.model.view.usable(r) for r in state.isr), "somebody in sync could have taken over"

    # Topics

    @precondition(lambda self: self.topics_made < 4)
    @rule(partitions=st.integers(1, 4), factor=st.integers(1, 3), unclean=st.booleans(), min_isr=st.sampled_from("123"))
    def create(self, partitions: int, factor: int, unclean: bool, min_isr: str) -> None:
        self.topics_made += 1
        options = {"partitions": str(partitions), "rf": str(factor), MIN_ISR: min_isr}
        options |= {UNCLEAN: "true"} if unclean else {}
        refused = self.model.do_create(f"t{self.topics_made}", **options)
        usable = sum(map(self.model.view.usable, self.model.image.brokers))
        assert bool(refused) == (usable < factor)

    @precondition(lambda self: self.model.image.topics)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.image.topics)))
        have = len(self.model.image.topics[name].partitions)
        wanted = data.draw(st.integers(1, have + 2))
        self.model.do_grow(name, str(wanted))
        assert len(self.model.image.topics[name].partitions) in (have, max(have, wanted))

    @precondition(lambda self: self.model.image.topics)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.model.do_delete(data.draw(st.sampled_from(sorted(self.model.image.topics))))

    # Partitions

    @precondition(lambda self: self.model.image.topics)
    @rule(data=st.data())
    def leader_alters_isr(self, data: st.DataObject) -> None:
        (name, index), state = self._some_partition(data)
        members = data.draw(st.sets(st.sampled_from(state.replicas)))
        self.reported = members
        stale = data.draw(st.sampled_from([0, 0, 0, 1]))
        _, response = self.model.alter_isr(
            name, index, sorted(members), partition_epoch=max(0, state.partition_epoch - stale)
        )
        codes = [response.error.code, *(result.error.code for result in response.results)]
        if state.leader == NO_LEADER or (stale and state.partition_epoch):
            assert any(codes)
        accepted = self.model.image.topics[name].partitions[index]
        if accepted != state and ErrorCode.NEW_LEADER_ELECTED not in codes:
            assert set(accepted.isr) <= members

    @precondition(lambda self: self.model.image.topics)
    @rule(data=st.data(), unclean=st.booleans())
    def elect(self, data: st.DataObject, unclean: bool) -> None:
        (name, index), _ = self._some_partition(data)
        self.asked_for_unclean = unclean
        self.model.do_elect("unclean" if unclean else "preferred", f"{name}-{index}")

    @rule(percentage=st.sampled_from([0, 10, 50]))
    def rebalance(self, percentage: int) -> None:
        self.model.do_rebalance(str(percentage))

    @precondition(lambda self: self.model.image.topics)
    @rule(data=st.data(), replicas=st.lists(st.sampled_from(BROKERS), max_size=3))
    def reassign(self, data: st.DataObject, replicas: list[int]) -> None:
        (name, index), _ = self._some_partition(data)
        self.model.do_reassign(f"{name}-{index}", ",".join(map(str, replicas)))

    def _some_partition(self, data: st.DataObject) -> tuple[tuple[str, int], Partition]:
        return data.draw(st.sampled_from(list(self.model.view.partitions())))

    # Rules that may never break

    @invariant()
    def every_partition_is_sound(self) -> None:
        image, asked, self.asked_for_unclean = self.model.image, self.asked_for_unclean, False
        now: dict[tuple[bytes, int], Partition] = {}
        for (name, index), state in self.model.view.partitions():
            topic_id = image.topics[name].id.bytes
            now[topic_id, index] = state
            assert len(set(state.replicas)) == len(state.replicas) >= 1
            assert len(set(state.isr)) == len(state.isr)
            assert set(state.isr) <= set(state.replicas)
            assert set(state.elr) <= set(state.replicas) - set(state.isr)
            if len(state.isr) >= min(self.model.min_isr(name), len(state.replicas)):
                assert not state.elr
            assert set(state.adding) | set(state.removing) <= set(state.replicas)
            if state.leader != NO_LEADER:
                assert state.leader in state.isr
                assert state.leader in image.brokers
                assert all(member in image.brokers for member in state.isr)
                term = (state.leader, image.brokers[state.leader].epoch)
                # One leader, and one life of it, for each leader epoch.
                assert self.leader_of.setdefault((topic_id, index, state.leader_epoch), term) == term
            else:
                assert not any(self.model.view.usable(member) for member in (*state.isr, *state.elr))
            old = self.before.get((topic_id, index))
            if old is not None and old != state:
                self._check_step(name, old, state, asked)
        self.before, self.reported, self.lost = now, set(), set()

    def _check_step(self, name: str, old: Partition, new: Partition, asked_for_unclean: bool) -> None:
        assert new.partition_epoch > old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        if new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
        clean = new.leader in (*old.isr, *old.elr, NO_LEADER)
        # When everyone lost records, the last of them just now, the one that led last is the best guess.
        clean = clean or (new.leader == old.last_known_leader and not {*old.isr, *old.elr} - self.lost)
        handed_over = new.leader in self.reported
        allowed = self.model.unclean_allowed(name) or asked_for_unclean
        assert clean or handed_over or allowed, f"unclean leader: {old} -> {new}"

    @invariant()
    def reconciling_again_changes_nothing(self) -> None:
        assert not self.model.reconcile()


ControllerWalk.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestControllerWalk = ControllerWalk.TestCase
