"""etcd3 0.12's protocol modules, rebuilt so that they import on today's protobuf.

What protoc generated for etcd3 does not run on protobuf 4 or newer, but the serialized descriptors in those files are
intact. They are read from the source text, put into a pool of their own (names like `rpc.proto` are anybody's), and
the modules made from them take the generated ones' place before `etcd3` is imported.

The descriptors are etcd 3.3's. Three fields of 3.4 that a watch needs are added: `WatchCreateRequest.fragment`,
`WatchResponse.fragment` and `WatchRequest.progress_request`; servers that do not know them ignore them.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

_SERIALIZED = re.compile(r"serialized_pb=_b\(('(?:[^'\\]|\\.)*')\)")
_Field = descriptor_pb2.FieldDescriptorProto


def _add_watch_fields(file: descriptor_pb2.FileDescriptorProto) -> None:
    messages = {message.name: message for message in file.message_type}
    if "progress_request" in {field.name for field in messages["WatchRequest"].field}:
        return
    optional = _Field.LABEL_OPTIONAL
    file.message_type.add(name="WatchProgressRequest")
    messages["WatchCreateRequest"].field.add(name="fragment", number=8, type=_Field.TYPE_BOOL, label=optional)
    messages["WatchResponse"].field.add(name="fragment", number=7, type=_Field.TYPE_BOOL, label=optional)
    messages["WatchRequest"].field.add(
        name="progress_request",
        number=3,
        type=_Field.TYPE_MESSAGE,
        type_name=".etcdserverpb.WatchProgressRequest",
        label=optional,
        oneof_index=0,
    )


def _rebuild() -> Any:
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("etcd3 is not installed: pip install etcd3")
    folder = Path(spec.submodule_search_locations[0]) / "etcdrpc"
    pool = descriptor_pool.DescriptorPool()
    for name in ("kv_pb2", "auth_pb2", "rpc_pb2"):
        literal = _SERIALIZED.search((folder / f"{name}.py").read_text(encoding="utf-8"))
        if literal is None:
            raise ImportError(f"etcd3/etcdrpc/{name}.py holds no serialized descriptor: is it another etcd3 than 0.12?")
        file = descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(literal[1]).encode("latin1"))
        if name == "rpc_pb2":
            _add_watch_fields(file)
        descriptor = pool.AddSerializedFile(file.SerializeToString())
        module = types.ModuleType(f"etcd3.etcdrpc.{name}")
        builder.BuildMessageAndEnumDescriptors(descriptor, module.__dict__)
        builder.BuildTopDescriptorsAndMessages(descriptor, module.__name__, module.__dict__)
        sys.modules[module.__name__] = module
    return importlib.import_module("etcd3.etcdrpc")


etcdrpc: Any = sys.modules.get("etcd3.etcdrpc") or _rebuild()
