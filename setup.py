"""Generates the gRPC stubs (package `headrace.v1`) from protos/ whenever the package is built or installed.

They are not committed. mypy-protobuf writes the type stubs beside them, so mypy sees every message and service.

With HEADRACE_COMPILE=1 a wheel also has the way of a request compiled by mypyc, from the same source, which lies beside
it: that is what images ship, and `make compiled` tests. It takes a C compiler, Python's headers and a minute. Installed
in place nothing is compiled: what is edited is what runs.
"""

import os
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PROTOS = ROOT / "protos"
OUT = ROOT / "services"

# The way of a request through a broker. Left out on purpose:
# - `storage.files`: compiled code gives up an attribute's old value before it sets the new one. While that closes its
#   descriptor, other threads would still find it there, and sync a closed one or another file.
# - `wire.frame_memory`, which counts references; `wire.page_cache`, which tests stand in for; handlers, which are
#   functions with attributes.
# - What interpreted classes inherit from: mypyc refuses when such a class is used.
# - What waits while it handles an exception (tests/unit/test_compiled.py): all others on the loop would be handling it.
COMPILED = (
    *("records/errors", "records/batch"),
    *("storage/log", "storage/segment", "storage/segments", "storage/index", "storage/time_index", "storage/positions"),
    *("storage/producer_state", "storage/leader_epoch", "storage/results", "storage/failure"),
    *("wire/primitives", "wire/topics", "wire/protocol", "wire/produce", "wire/fetch", "wire/frames", "wire/sending"),
    *("wire/api", "wire/connection", "wire/listener", "wire/metrics"),
    *("broker/isr", "broker/partition", "broker/replica_manager", "broker/reader", "broker/fetch_session"),
    "broker/requests",
)


def generate() -> None:
    from grpc_tools import protoc

    sources = sorted(str(p) for p in PROTOS.rglob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    args = [f"-I{PROTOS}", f"-I{well_known}"]
    args += [f"--{kind}_out={OUT}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", *args, *sources]):
        raise SystemExit("protoc failed: see the lines above")
    (OUT / "headrace/v1/__init__.py").write_text('"""Generated from protos/headrace/v1. Do not edit."""\n')
    (OUT / "headrace/v1/py.typed").touch()


class BuildWithStubs(build_py):
    def run(self) -> None:
        generate()
        # Packages were listed before the stubs were there: a wheel from a fresh checkout would lack them.
        if "headrace.v1" not in self.packages:
            self.packages.append("headrace.v1")
        super().run()


class BuildForWheels(build_ext):
    def run(self) -> None:
        if self.inplace or self.editable_mode:
            raise SystemExit("HEADRACE_COMPILE is for wheels: beside sources that change, compiled ones would stay old")
        super().run()


def compiled() -> list:
    from mypyc.build import mypycify

    # What the build does not need is not installed, and types were checked by `make lint`.
    options = [
        "--python-version=3.11",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--config-file=",
        "--cache-dir=build/mypy",
    ]
    modules = [f"services/headrace/{name}.py" for name in COMPILED]
    return mypycify([*options, *modules], opt_level="3", debug_level="0", group_name="headrace")


wanted = os.environ.get("HEADRACE_COMPILE", "0") != "0"
setup(
    cmdclass={"build_py": BuildWithStubs, "build_ext": BuildForWheels},
    ext_modules=compiled() if wanted else [],
)
