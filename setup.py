"""Generates the gRPC stubs (package `headrace.v1`) from protos/ whenever the package is built or installed.

They are not committed. mypy-protobuf writes the type stubs beside them, so mypy sees every message and service.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PROTOS = ROOT / "protos"
OUT = ROOT / "services"


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


setup(cmdclass={"build_py": BuildWithStubs})
