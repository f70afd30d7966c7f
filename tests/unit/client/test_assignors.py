"""Shares: complete, disjoint, even, and (where promised) moving little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.assignors import (
    ASSIGNORS,
    Subscription,
    cooperative_sticky_assignor,
    range_assignor,
    round_robin_assignor,
    sticky_assignor,
)
from headrace.client.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.types import TopicPartition
from headrace.errors import KafkaError

TOPICS = ("a", "b", "c")
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), min_size=1)
MEMBERS = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(6)]),
    st.lists(st.sampled_from(TOPICS), min_size=1, unique=True).map(lambda topics: Subscription(tuple(topics))),
    min_size=1,
)


def tp(text: str) -> TopicPartition:
    return TopicPartition(text[0], int(text[1:]))


def flat(shares: dict[str, list[TopicPartition]]) -> dict[str, str]:
    return {member: " ".join(f"{p.topic}{p.partition}" for p in share) for member, share in shares.items()}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=COUNTS, members=MEMBERS)
@settings(max_examples=60)
def test_every_partition_somebody_wants_goes_to_exactly_one_who_wants_it(
    name: str, counts: dict[str, int], members: dict[str, Subscription]
) -> None:
    shares = ASSIGNORS[name](counts, members)
    given_out = [p for share in shares.values() for p in share]
    wanted = {t for m in members.values() for t in m.topics}
    assert sorted(given_out) == [TopicPartition(t, i) for t in sorted(counts) if t in wanted for i in range(counts[t])]
    assert all(p.topic in members[m].topics for m, share in shares.items() for p in share)
    assert ASSIGNORS[name](counts, dict(reversed(members.items()))) == shares


def test_range_is_kafkas() -> None:
    members = {"c0": Subscription(("a", "b")), "c1": Subscription(("a", "b"))}
    assert flat(range_assignor({"a": 3, "b": 3}, members)) == {"c0": "a0 a1 b0 b1", "c1": "a2 b2"}


def test_round_robin_is_kafkas() -> None:
    members = {"c0": Subscription(("a",)), "c1": Subscription(("a", "b")), "c2": Subscription(("a", "b", "c"))}
    assert flat(round_robin_assignor({"a": 1, "b": 2, "c": 3}, members)) == {
        "c0": "a0", "c1": "b0", "c2": "b1 c0 c1 c2",
    }  # fmt: skip


@given(counts=COUNTS, size=st.integers(1, 6), leaver=st.integers(0, 5))
@settings(max_examples=60)
def test_sticky_is_even_and_moves_only_what_a_leaver_had(counts: dict[str, int], size: int, leaver: int) -> None:
    members = {f"m{i}": Subscription(TOPICS) for i in range(size + 1)}
    before = sticky_assignor(counts, members)
    loads = [len(share) for share in before.values()]
    assert max(loads) - min(loads) <= 1
    gone = f"m{leaver % (size + 1)}"
    stay = {m: Subscription(TOPICS, tuple(before[m]), 1) for m in members if m != gone}
    after = sticky_assignor(counts, stay)
    loads = [len(share) for share in after.values()]
    assert max(loads) - min(loads) <= 1
    assert all(set(before[m]) <= set(after[m]) for m in stay)


def test_a_newcomer_takes_no_more_than_its_part() -> None:
    old = {"m0": Subscription(("a",), tuple(TopicPartition("a", i) for i in range(6)), 1)}
    after = sticky_assignor({"a": 6}, {**old, "m1": Subscription(("a",))})
    assert {m: len(share) for m, share in after.items()} == {"m0": 3, "m1": 3}


def test_of_two_claims_the_later_generation_counts() -> None:
    members = {
        "m0": Subscription(("a",), (tp("a0"),), 3),
        "m1": Subscription(("a",), (tp("a0"), tp("a1")), 4),
    }
    assert flat(sticky_assignor({"a": 2}, members))["m1"] in ("a0", "a1")
    same = {m: Subscription(("a",), (tp("a0"),), 4) for m in ("m0", "m1")}
    assert sorted(map(len, sticky_assignor({"a": 2}, same).values())) == [1, 1]


def test_cooperative_hands_over_in_two_steps() -> None:
    first = {"m0": Subscription(("a",), (tp("a0"), tp("a1")), 1), "m1": Subscription(("a",))}
    shares = cooperative_sticky_assignor({"a": 2}, first)
    assert flat(shares) == {"m0": "a0", "m1": ""}
    second = {m: Subscription(("a",), tuple(share), 2) for m, share in shares.items()}
    assert flat(cooperative_sticky_assignor({"a": 2}, second)) == {"m0": "a0", "m1": "a1"}


def test_the_protocol_is_what_kafka_clients_read() -> None:
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

    wish = Subscription(("orders", "b"), (tp("b1"),), 7, user_data=b"x")
    encoded = encode_subscription(wish)
    assert decode_subscription(encoded) == wish
    assert ConsumerProtocolMemberMetadata.decode(encoded).subscription == ["orders", "b"]
    share = [tp("a1"), tp("a4"), tp("b0")]
    theirs = ConsumerProtocolMemberAssignment.decode(encode_assignment(share))
    assert theirs.assignment == [("a", [1, 4]), ("b", [0])]
    assert decode_assignment(theirs.encode()) == share
    assert decode_assignment(b"") == []


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0\0\0\5", b"\0\0\x7f\xff\xff\xff\0"])
def test_a_subscription_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
        decode_subscription(data)
