"""Options: what is refused before anything is planned, and in which words."""

from __future__ import annotations

import pytest

from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig
from headrace.spark.offsets import EARLIEST, LATEST, Offsets, OffsetsByTime
from headrace.spark.options import InvalidOption, column_names, read_options, write_options

SERVER = {"headrace.bootstrap.servers": "127.0.0.1:9094"}


def read(streaming: bool = False, **given: str):  # type: ignore[no-untyped-def]
    return read_options({**SERVER, "subscribe": "orders", **given}, streaming)


def test_a_batch_reads_everything_and_a_stream_what_is_new() -> None:
    batch, stream = read(), read(streaming=True)
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)
    assert stream.starting is LATEST
    assert batch.topics.names == ("orders",)
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def test_names_are_taken_in_any_case_as_spark_lowers_them() -> None:
    found = read(streaming=True, maxoffsetspertrigger="10", INCLUDEHEADERS="true", groupid="g")
    assert found.max_offsets_per_trigger == 10
    assert found.columns[-1] == "headers"
    assert found.group_id == "g"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingOffset": "earliest"}, "unknown option startingOffset: did you mean startingOffsets?"),
        ({"maxOffsetPerTriger": "1"}, "unknown option maxOffsetPerTriger: did you mean maxOffsetsPerTrigger?"),
        ({"kafka.bootstrap.servers": "x"}, "unknown option kafka.bootstrap.servers: write headrace.bootstrap.servers"),
        ({"headrace.fetch.max.byte": "1"}, "did you mean headrace.fetch.max.bytes?"),
        ({"headrace.group.id": "g"}, "unknown option headrace.group.id"),
        ({"minPartitions": "0"}, "minPartitions='0' is not allowed: give a whole number of at least 1"),
        ({"failOnDataLoss": "yes"}, "give true or false"),
        ({"columns": "key,valu"}, "give any of key, value, topic"),
        ({"startingOffsets": "latest"}, "latest leaves nothing to a batch read"),
        ({"endingOffsets": "earliest"}, "earliest leaves nothing to read"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ({"groupId": "g"}, "groupId is for streams"),
        ({"assign": '{"orders":[0]}'}, "not subscribe and assign together"),
        ({"startingOffsets": '{"orders":{"0":'}, "is no json"),
        ({"startingOffsets": '{"orders":[1]}'}, "orders has no numbers by partition"),
        ({"startingOffsets": '{"orders":{"0":"5"}}'}, 'write startingOffsets as earliest, latest or {"orders"'),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "offset -3 of orders-0 is not one"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "leaves nothing to read: give -1"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-5}}'}, "-5 of orders-0 is no time"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        read(**given)
    assert sentence in str(raised.value)


def test_what_ends_a_batch_has_no_place_in_a_stream() -> None:
    for name, text in (("endingOffsets", "latest"), ("endingTimestamp", "5"), ("filterPushdown", "true")):
        with pytest.raises(InvalidOption, match=name):
            read(streaming=True, **{name: text})


def test_servers_and_topics_must_be_given() -> None:
    with pytest.raises(InvalidOption, match=r"headrace\.bootstrap\.servers is missing"):
        read_options({"subscribe": "orders"}, False)
    with pytest.raises(InvalidOption, match="none is there"):
        read_options(SERVER, False)
    with pytest.raises(InvalidOption, match="is no expression"):
        read_options({**SERVER, "subscribePattern": "(orders"}, False)


def test_offsets_and_times_as_json() -> None:
    offsets = read(startingOffsets='{"orders":{"0":23,"1":-2}}').starting
    assert offsets == Offsets("startingOffsets", {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2})
    times = read(startingOffsetsByTimestamp='{"orders":{"0":1700000000000}}').starting
    assert times == OffsetsByTime({TopicPartition("orders", 0): 1700000000000}, None, "error")
    everywhere = read(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest", startingOffsets="earliest")
    assert everywhere.starting == OffsetsByTime({}, 5, "latest")


def test_assigned_partitions_are_sorted_and_checked() -> None:
    found = read_options({**SERVER, "assign": '{"orders":[2,0,2]}'}, False)
    assert found.topics.partitions == {"orders": (0, 2)}
    for wrong in ('{"orders":"0"}', '{"orders":[-1]}', "[]", '{"orders":[]}'):
        with pytest.raises(InvalidConfig, match="write assign as"):
            read_options({**SERVER, "assign": wrong}, False)


def test_columns_keep_the_order_of_the_schema() -> None:
    assert column_names({**SERVER, "columns": "value,key"}) == ("key", "value")


def test_client_settings_are_passed_on_and_checked() -> None:
    assert read(**{"headrace.request.timeout.ms": "500"}).client == {"request.timeout.ms": "500"}
    with pytest.raises(InvalidOption, match=r"request\.timeout\.ms='soon' is not allowed"):
        read(**{"headrace.request.timeout.ms": "soon"})


def test_a_write_knows_its_own_options() -> None:
    found = write_options({**SERVER, "topic": "orders", "compression": "zstd", "checkpointLocation": "/c"})
    assert (found.topic, found.codec) == ("orders", 4)
    with pytest.raises(InvalidOption, match=r"unknown option topics: did you mean topic\?"):
        write_options({**SERVER, "topics": "orders"})
