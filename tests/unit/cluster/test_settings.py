from pathlib import Path

import pytest

from headrace.cluster.image import Endpoint
from headrace.cluster.settings import Listener, Settings, load, parse_properties
from headrace.config import InvalidConfig


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "server.properties"
    file.write_text(text)
    return file


def test_later_sources_win(tmp_path: Path) -> None:
    file = write(tmp_path, "node.id=1\nnum.partitions=2\nlog.retention.ms=3\n")
    environ = {"HEADRACE_NUM_PARTITIONS": "5", "HEADRACE_LOG_RETENTION_MS": "6", "PATH": "x"}
    settings, warnings = load(file, environ, ["log.retention.ms=7"])
    assert warnings == []
    assert (settings.node_id, settings["num.partitions"], settings["log.retention.ms"]) == (1, 5, 7)
    assert settings.given == {"node.id": "1", "num.partitions": "5", "log.retention.ms": "7"}
    assert settings["default.replication.factor"] == 1


def test_an_unknown_name_warns_with_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, "# mine\n\nlog.retenton.ms=3\n")
    settings, warnings = load(file, {"HEADRACE_NUM_PARTITION": "1"})
    assert warnings == [
        "server.properties line 3: unknown config log.retenton.ms: did you mean log.retention.ms?",
        "environment HEADRACE_NUM_PARTITION: unknown config num.partition: did you mean num.partitions?",
    ]
    assert settings.given == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "num.partitions=0",
            "server.properties line 1: num.partitions='0' is not allowed: give a whole number of at least 1",
        ),
        ("node.id=1\nbroker.id=2", "node.id=1 and broker.id=2 differ: give one of them"),
        ("listeners=9092", "listeners='9092' is not allowed: give NAME://host:port"),
        ("listeners=A://:1,A://:2", "none twice"),
        ("advertised.listeners=B://h:1", "advertised.listeners names B, listeners does not: give one of PLAINTEXT"),
        ("grpc.listener=9094", "grpc.listener='9094' is not allowed: give host:port"),
        ("replica.lag.time.max.ms=100", "replica.fetch.wait.max.ms=500 is more than replica.lag.time.max.ms=100"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(write(tmp_path, text), {})
    assert expected in caught.value.message


def test_a_missing_file_and_a_nameless_override_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load(tmp_path / "none.properties", {})
    with pytest.raises(InvalidConfig, match="give name=value"):
        load(None, {}, ["num.partitions"])


def test_variables_that_kubernetes_makes_of_services_are_not_settings() -> None:
    environ = {
        "HEADRACE_METRICS_PORT": "tcp://10.0.0.1:9404",
        "HEADRACE_METRICS_PORT_9404_TCP_ADDR": "10.0.0.1",
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_KAFKA_SERVICE_PORT_KAFKA": "9092",
    }
    settings, warnings = load(None, environ)
    assert warnings == []
    assert settings["metrics.port"] == 9404
    assert load(None, {"HEADRACE_METRICS_PORT": "1"})[0]["metrics.port"] == 1


def test_listeners_and_addresses() -> None:
    settings = Settings({"listeners": "IN://0.0.0.0:9092, OUT://[::]:9093", "advertised.listeners": "IN://a.example:1"})
    assert settings.listeners == (
        Listener("IN", Endpoint("0.0.0.0", 9092)),
        Listener("OUT", Endpoint("::", 9093)),
    )
    assert settings.advertised_listeners == (Listener("IN", Endpoint("a.example", 1)),)
    plain = Settings()
    assert plain.advertised_listeners == plain.listeners == (Listener("PLAINTEXT", Endpoint("", 9092)),)
    assert plain.advertised_grpc == plain.grpc
    assert plain.node_id == -1
    assert plain.log_dirs == ("headrace-data",)
    assert Settings({"log.dirs": "/a,/b", "broker.id": "4"}).log_dirs == ("/a", "/b")
    assert Settings({"broker.id": "4"}).node_id == 4
    with pytest.raises(InvalidConfig, match=r"did you mean num\.partitions"):
        plain["num.partition"]


def test_properties_are_read_as_java_reads_them() -> None:
    text = "a=1\n b : 2 \n! no\nc 3\nd=x\\\n    y\ne\\:f=\\u0041\\tB\ng\nh==\ni=end\\\\\nj=k"
    assert list(parse_properties(text)) == [
        (1, "a", "1"),
        (2, "b", "2"),
        (4, "c", "3"),
        (5, "d", "xy"),
        (7, "e:f", "A\tB"),
        (8, "g", ""),
        (9, "h", "="),
        (10, "i", "end\\"),
        (11, "j", "k"),
    ]
