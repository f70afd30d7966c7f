"""The gRPC contract documents itself: every service, call, message, field and enum has a comment, every request the
standard header, and the error codes are Kafka's."""

import re
from pathlib import Path

from headrace.errors import ErrorCode
from headrace.v1 import broker_pb2, common_pb2, controller_pb2, coordinator_pb2, metadata_pb2

PROTOS = Path(__file__).parents[3] / "protos/headrace/v1"
DECLARES = re.compile(r"^\s*(service|message|enum|rpc|oneof|repeated|map<|[\w.]+\s+\w+\s*=\s*\d+;)")
CODE = re.compile(r"^  [A-Z_]+ = -?\d+;$")


def undocumented(text: str) -> list[str]:
    found, before = [], ""
    for line in text.splitlines():
        if DECLARES.match(line) and not CODE.match(line) and not before.strip().startswith("//"):
            found.append(line.strip())
        before = line
    return found


def test_every_declaration_has_a_comment() -> None:
    for path in sorted(PROTOS.glob("*.proto")):
        assert undocumented(path.read_text()) == [], path.name


def test_an_undocumented_field_would_be_found() -> None:
    assert undocumented("// A thing.\nmessage Thing {\n  int32 id = 1;\n}") == ["int32 id = 1;"]


def test_every_call_carries_the_standard_header() -> None:
    for module in (broker_pb2, controller_pb2, coordinator_pb2, metadata_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for call in service.methods:
                for message, header in ((call.input_type, "RequestHeader"), (call.output_type, "ResponseHeader")):
                    assert message.fields[0].name == "header", message.full_name
                    assert message.fields[0].message_type.name == header


def test_error_codes_are_kafkas_by_name_and_number() -> None:
    assert dict(common_pb2.ErrorCode.items()) == {code.name: code.value for code in ErrorCode}
