import pytest

from headrace.cluster.topics import check_count, check_growth, check_name, check_new_name
from headrace.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("name", ["a", "orders.eu-1_x", "__consumer_offsets", "A" * 249, "...", "-"])
def test_legal_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "empty"),
        (".", "directory"),
        ("..", "directory"),
        ("a" * 250, "250"),
        ("a b", "ASCII"),
        ("ä", "ASCII"),
        ("a\n", "ASCII"),
    ],
)
def test_illegal_names_say_why(name: str, word: str) -> None:
    with pytest.raises(KafkaError, match=word) as caught:
        check_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_metrics_cannot_tell_apart_are_refused() -> None:
    check_new_name("a.b", ["a-b", "a.b", "ab"])
    with pytest.raises(KafkaError, match=r"topic a\.b collides with topic a_b"):
        check_new_name("a.b", ["x", "a_b"])


def test_partition_counts() -> None:
    check_count("orders", 1)
    check_growth("orders", 3, 4)
    for check, text in (
        (lambda: check_count("orders", 0), "needs at least 1 partition, not 0"),
        (lambda: check_count("orders", 10_001), "ask for at most 10000"),
        (lambda: check_growth("orders", 6, 3), "has 6 partitions and cannot have fewer, 3 were asked for"),
        (lambda: check_growth("orders", 6, 6), "already has 6 partitions"),
        (lambda: check_growth("orders", 6, 20_000), "ask for at most 10000"),
    ):
        with pytest.raises(KafkaError, match=text) as caught:
            check()
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS
