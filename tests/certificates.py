"""Certificates for a server and its clients, as a user's own authority would sign them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)


def certificates(directory: Path, host: str) -> None:
    """ca.crt, and server and client certificates that it signed."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(directory, "req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    for name, usage in (("server", f"subjectAltName=DNS:{host}"), ("client", "extendedKeyUsage=clientAuth")):
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", usage)
        openssl(
            directory, "req", "-x509", *key, *signed, "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.crt",
        )  # fmt: skip
