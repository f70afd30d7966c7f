"""Builds what is not committed: the gRPC stubs, always, and the compiled hot path, when HEADRACE_COMPILE=1 asks for it.

The stubs (package `headrace.v1`) come from protos/; mypy-protobuf writes the type stubs beside them, so mypy sees every
message and service.

The hot path is compiled by mypyc from the same typed source: the modules in HOT become extensions that Python imports
instead of the files beside them. It needs mypy and a C compiler. Without it everything runs as plain Python, the same
way and slower. In a checkout an edit of a compiled module does nothing until it is compiled again (`make compile`), so
this is for images and measurements (`make pure` undoes it).
"""

import os
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PROTOS = ROOT / "protos"
OUT = ROOT / "services"
COMPILE = os.environ.get("HEADRACE_COMPILE") == "1"
MYPY = "mypy==2.4.1"
HOT = {
    "records": ("batch",),
    "storage": ("failure", "files", "index", "log", "positions", "results", "segment", "segments", "time_index"),
    "wire": (
        "api",
        "connection",
        "fetch",
        "frames",
        "metrics",
        "primitives",
        "produce",
        "protocol",
        "sending",
        "topics",
    ),
    "broker": ("fetch_session", "isr", "partition", "reader", "replica_manager", "requests", "stats"),
}


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


def extensions() -> list[Any]:
    # "egg_info" is the build asking what it needs: the compiler is installed after that.
    if not COMPILE or sys.argv[1:2] == ["egg_info"]:
        return []
    from mypyc.build import mypycify

    paths = [f"services/headrace/{package}/{name}.py" for package, names in HOT.items() for name in names]
    # Types are checked by `make lint`, with all that is installed there; here they only guide the compiler.
    flags = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    found: list[Any] = mypycify(
        [*flags, *paths], opt_level="2", debug_level="0", multi_file=True, group_name="headrace.hot"
    )
    for extension in found:
        # The group is named inside the package, so that what its modules share is found where they are.
        extension.include_dirs.append("build/headrace")
    return found


setup(
    cmdclass={"build_py": BuildWithStubs},
    ext_modules=extensions(),
    setup_requires=[MYPY] if COMPILE else [],
)
