"""Three replicas under a random script of fetches, crashes and elections: what a reader saw stays, logs stay prefixes.

The controller here is the real decision (`controller.leaders.settle`) on a state of its own; a leader's wishes for
another in-sync set are granted by the same compare-and-swap as in the cluster. Words reach brokers late or never, so
that deposed leaders go on for a while.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.broker.replica_set import Replica, ReplicaSet

from headrace.controller.leaders import settle

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["produce", "produce", "fetch", "fetch", "fetch", "tell", "tell", "crash", "start", "gone"],
                *["shrink", "grow", "grow", "grant", "answer", "answer", "checkpoint", "flush", "prefer"],
            ]
        ),
        st.integers(0, 2),
    ),
    max_size=120,
)

# 2 leaves, catches up and is let in again; the leader does not hear of it, is told the old state once more by another
# controller, and dies together with 1 after a write that 2 has not got.
GRANTED_UNHEARD: list[Step] = [
    *[("produce", 0), ("fetch", 1), ("fetch", 1), ("shrink", 0), ("answer", 0), ("fetch", 2), ("fetch", 2)],
    *[("grow", 0), ("produce", 0), ("fetch", 1), ("fetch", 1), ("grant", 0)],
    *[("fetch", 1), ("crash", 0), ("crash", 1), ("gone", 0), ("gone", 1), ("tell", 2)],
]


class History:
    """A run, and everything a reader was ever shown in it."""

    def __init__(self) -> None:
        self.set = ReplicaSet(3)
        self.registered = {0, 1, 2}
        self.shown: dict[int, bytes] = {}
        self.written = 0

    def take(self, step: Step) -> None:
        name, broker = step
        getattr(self, name)(self.set[broker])
        for replica in self.set.replicas:
            if replica.up and replica.partition.is_leader:
                self.look(replica)

    def look(self, leader: Replica) -> None:
        """A consumer reads all it may: what it saw before must still be so."""
        for offset, _, data in leader.values:
            if offset < leader.partition.high_watermark:
                assert self.shown.setdefault(offset, data) == data, f"{offset} changed on broker {leader.id}"

    def produce(self, replica: Replica) -> None:
        if replica.up and replica.partition.is_leader:
            self.written += 1
            replica.append(b"%d by %d" % (self.written, replica.id))

    def fetch(self, replica: Replica) -> None:
        self.set.fetch(replica.id)

    def tell(self, replica: Replica) -> None:
        if replica.id in self.registered:
            self.set.tell(replica.id)

    def crash(self, replica: Replica) -> None:
        if replica.up:
            replica.crash()

    def gone(self, replica: Replica) -> None:
        """The lease of a broker runs out, dead or cut off."""
        self.registered.discard(replica.id)
        self.settle()

    def start(self, replica: Replica) -> None:
        """It (re)starts, or gets through to the registry again."""
        back = replica.id not in self.registered or not replica.up
        if not replica.up:
            replica.start()
        if back:
            self.registered.add(replica.id)
            self.settle(restarted={replica.id})

    def settle(self, restarted: frozenset[int] | set[int] = frozenset()) -> None:
        self.set.state = settle(self.set.state, lambda b: b in self.registered, restarted=restarted)

    def shrink(self, replica: Replica) -> None:
        """A leader wishes everyone out who is not at its end."""
        progress = replica.partition.progress
        if replica.up and progress is not None and progress.pending is None:
            end = replica.end
            progress.pending = tuple(
                r for r in progress.isr if r == replica.id or progress.followers[r].log_end_offset == end
            )

    def grow(self, replica: Replica) -> None:
        """A leader wishes everyone in who has caught up."""
        partition, progress = replica.partition, replica.partition.progress
        if replica.up and progress is not None and progress.pending is None:
            joining = tuple(r for r in progress.followers if partition.may_join(r))
            if joining:
                progress.pending = progress.isr + joining

    def grant(self, replica: Replica) -> None:
        """AlterPartition reaches the controller, and its answer is lost."""
        state, partition, progress = self.set.state, replica.partition, replica.partition.progress
        if not replica.up or progress is None or progress.pending is None:
            return
        wanted = progress.pending
        current = (state.leader, state.leader_epoch, state.partition_epoch)
        if current == (replica.id, partition.leader_epoch, partition.partition_epoch) and all(
            r == replica.id or (r in self.registered and progress.followers[r].broker_epoch == self.set[r].registration)
            for r in wanted
        ):
            self.set.state = replace(state, isr=wanted, partition_epoch=state.partition_epoch + 1)

    def answer(self, replica: Replica) -> None:
        """AlterPartition, with an answer."""
        self.grant(replica)
        state, partition = self.set.state, replica.partition
        if replica.up and partition.is_leader and state.leader_epoch == partition.leader_epoch:
            partition.lead(state, self.set.clock.now, answers_wish=True)
            replica.wake()

    def checkpoint(self, replica: Replica) -> None:
        if replica.up:
            replica.checkpoint()

    def flush(self, replica: Replica) -> None:
        if replica.up:
            replica.partition.log.flush()

    def prefer(self, replica: Replica) -> None:
        if replica.id in self.set.state.isr and replica.id in self.registered:
            self.set.elect(replica.id, self.set.state.isr)

    def end(self) -> None:
        """Everybody is back and hears everything: one log, with all that was shown in it."""
        for replica in self.set.replicas:
            self.start(replica)
        self.set.tell()
        leader = self.set[self.set.state.leader]
        for _ in range(12):
            self.set.fetch(0, 1, 2)
            self.grow(leader)
            self.answer(leader)
        self.look(leader)
        assert leader.partition.high_watermark == leader.end
        assert self.set[0].values == self.set[1].values == self.set[2].values
        offsets = [offset for offset, _, _ in leader.values]
        assert offsets == list(range(leader.end)), "offsets without gaps"
        assert set(self.shown) <= set(offsets)


@settings(max_examples=300)
@given(STEPS)
@example(GRANTED_UNHEARD)
@example([*GRANTED_UNHEARD[:-6], ("tell", 0), *GRANTED_UNHEARD[-6:]])
def test_nothing_shown_is_ever_lost_or_changed(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
    history.end()
