from __future__ import annotations

import pytest

from headrace.registry.keys import (
    ConfigKey,
    ControllerEpochKey,
    ControllerKey,
    Keys,
    MemberKey,
    OffsetsOwnerKey,
    PartitionKey,
    ProducerIdsKey,
    TopicKey,
)

KEYS = Keys("main")


@pytest.mark.parametrize(
    ("key", "path", "meaning"),
    [
        (KEYS.broker(7), "brokers/7", MemberKey("brokers", "7")),
        (KEYS.coordinator(0), "coordinators/0", MemberKey("coordinators", "0")),
        (KEYS.metadata("pod-a/b"), "metadata/pod-a%2Fb", MemberKey("metadata", "pod-a/b")),
        (KEYS.standby_controller(2), "controllers/2", MemberKey("controllers", "2")),
        (KEYS.controller, "controller", ControllerKey()),
        (KEYS.controller_epoch, "controller_epoch", ControllerEpochKey()),
        (KEYS.producer_ids, "producer_ids", ProducerIdsKey()),
        (KEYS.topic("a.b_c-d"), "topics/a.b_c-d", TopicKey("a.b_c-d")),
        (KEYS.partition("tid", 12), "partitions/tid/12", PartitionKey("tid", 12)),
        (
            KEYS.config("broker", "<default>/é"),
            "configs/broker/%3Cdefault%3E%2F%C3%A9",
            ConfigKey("broker", "<default>/é"),
        ),
        (KEYS.offsets_owner(49), "offsets_owners/49", OffsetsOwnerKey(49)),
    ],
)
def test_a_key_says_what_it_was_built_from(key: str, path: str, meaning: object) -> None:
    assert key == f"/headrace/main/{path}"
    assert KEYS.parse(key) == meaning


@pytest.mark.parametrize(
    "key",
    [
        "/headrace/other/brokers/1",
        "/headrace/main/acls/x",
        "/headrace/main/partitions/t/x",
        "/headrace/main/brokers/",
        "",
    ],
)
def test_what_is_not_ours_or_not_known_is_none(key: str) -> None:
    assert KEYS.parse(key) is None


def test_prefixes_do_not_catch_neighbours() -> None:
    assert KEYS.partition("t1", 1).startswith(KEYS.partitions_of("t1"))
    assert not KEYS.partition("t10", 1).startswith(KEYS.partitions_of("t1"))
    assert not KEYS.controller_epoch.startswith(KEYS.controllers)


def test_a_cluster_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name"):
        Keys("")
