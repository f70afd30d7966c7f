"""What the commands read and print: formats, places, input lines, tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.formats import as_json, compile_format
from headrace.cli.options import Format, pairs
from headrace.cli.output import cell, show, yaml_lines
from headrace.cli.perf_runs import percentiles
from headrace.cli.places import Place, parse_place
from headrace.cli.producing import Wanted, lines, parse_line
from headrace.client import ConsumerRecord
from headrace.config import InvalidConfig

RECORD = ConsumerRecord("orders", 2, 41, 1_700_000_000_000, 0, b"key", b"a value", (("h", b"1"), ("n", None)), 5)
EMPTY = ConsumerRecord("orders", 0, 0, 0, 0, None, None, (), 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t/%p@%o", b"orders/2@41"),
        ("%k=%v %s", b"key=a value a value"),
        ("%K %S %T", b"3 7 1700000000000"),
        ("%h", b"h=1,n=NULL"),
        (r"%%\t%v\n", b"%\ta value\n"),
        (r"\x41\\ü", "A\\ü".encode()),
        ("", b""),
    ],
)
def test_format_strings_are_kcats(text: str, expected: bytes) -> None:
    assert compile_format(text)(RECORD) == expected


def test_nothing_is_empty_and_minus_one_long() -> None:
    assert compile_format("[%k] %K [%v] %S [%h]")(EMPTY) == b"[] -1 [] -1 []"


@pytest.mark.parametrize(("text", "said"), [("%q", "%q is not known"), ("100%", "%%"), (r"\q", r"\\q is not known")])
def test_a_wrong_format_says_what_there_is(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        compile_format(text)


def test_json_keeps_every_byte() -> None:
    assert json.loads(as_json(RECORD)) == {
        "topic": "orders", "partition": 2, "offset": 41, "timestamp": 1_700_000_000_000, "key": "key",
        "value": "a value", "headers": {"h": "1", "n": None},
    }  # fmt: skip
    line = as_json(RECORD._replace(value=b"\xff\x00", key=None))
    back = parse_line(line, Wanted("orders", json=True))
    assert (back.key, back.value, back.headers) == (None, b"\xff\x00", [("h", b"1"), ("n", None)])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", Place(time=-2)),
        ("end", Place(time=-1)),
        ("0", Place(offset=0)),
        ("-5", Place(last=5)),
        ("@17", Place(time=17)),
        ("-2h", Place(time=10_000_000 - 7_200_000)),
        ("1970-01-01T00:01:00+00:00", Place(time=60_000)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text, 10_000_000) == place


@pytest.mark.parametrize("text", ["", "later", "5x", "--3", "@", "2026-99-01"])
def test_what_is_no_place_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(InvalidConfig, match="beginning, end, an offset"):
        parse_place(text, 0)


def test_lines_become_records() -> None:
    assert parse_line(b"a:b:c", Wanted("t", key_separator=":")).key == b"a"
    assert parse_line(b"a:b:c", Wanted("t", key_separator=":")).value == b"b:c"
    assert parse_line(b"plain", Wanted("t", key_separator=":", key="k")).key == b"k"
    assert parse_line(b"gone:", Wanted("t", key_separator=":", null=True)).value is None
    assert parse_line(b"gone:", Wanted("t", key_separator=":")).value == b""
    found = parse_line(b'{"value": {"a": [1]}, "key": 7, "partition": 2, "timestamp": 9}', Wanted("t", json=True))
    assert (found.value, found.key, found.partition, found.timestamp) == (b'{"a":[1]}', b"7", 2, 9)


@pytest.mark.parametrize("line", [b"not json", b"[1]", b'{"key": "k"}'])
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidConfig, match=r"JSON|\"value\""):
        parse_line(line, Wanted("t", json=True))


async def test_lines_of_a_file_whatever_their_end(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"one\r\n\n" + b"x" * 200_000 + b"\nlast")
    assert [len(line) async for line in lines(file)] == [3, 0, 200_000, 4]


def test_settings_are_key_and_value() -> None:
    import typer

    assert pairs(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}
    with pytest.raises(typer.BadParameter, match="KEY=VALUE"):
        pairs(["novalue"])


def test_tables_line_up_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "a", "isr": [1, 2]}, {"name": "longer", "isr": []}], Format.TABLE)
    assert capsys.readouterr().out == "NAME    ISR\na       1,2\nlonger  -\n"


def test_nothing_to_show_is_said_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    show([], Format.TABLE, empty="nothing")
    assert capsys.readouterr() == ("", "nothing\n")
    show([], Format.JSON, empty="nothing")
    assert capsys.readouterr().out == "[]\n"


def test_yaml_is_read_back_as_what_it_was() -> None:
    yaml = pytest.importorskip("yaml", reason="only the operator's dependencies bring a YAML reader")
    data = [{"name": "orders", "on": "yes", "isr": [1, 2], "configs": {"retention.ms": "1000", "x": None}, "e": []}]
    assert yaml.safe_load("\n".join(yaml_lines(data))) == data


def test_yaml() -> None:
    data = {"name": "orders", "word": "yes", "number": "12", "rows": [{"a": 1, "b": [True, None]}], "none": []}
    assert list(yaml_lines(data)) == [
        "name: orders", 'word: "yes"', 'number: "12"', "rows:", "  - a: 1", "    b: [true, null]", "none: []",
    ]  # fmt: skip


def test_cells() -> None:
    assert [cell(v) for v in (0, "", False, {"a": 1}, ())] == ["0", "-", "no", "a=1", "-"]


def test_percentiles_of_nothing() -> None:
    assert percentiles([]) == "no latencies"
