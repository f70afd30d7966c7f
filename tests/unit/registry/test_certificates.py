"""Certificates that are renewed while a process runs, against an etcd that wants TLS and a client's own."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import certificates
from tests.unit.registry.conftest import eventually

from headrace.registry.api import Put, RegistryUnavailable
from headrace.registry.etcd import EtcdRegistry
from headrace.registry.etcd_endpoint import Certificates, Pems
from headrace.registry.local_etcd import LocalEtcd, free_port


def point(link: Path, target: Path) -> None:
    """As the kubelet does with a volume of a Secret: all files change at once."""
    new = link.with_suffix(".new")
    new.symlink_to(target)
    os.replace(new, link)


class TlsEtcd:
    """An etcd that two authorities can vouch for, `a` at first. A `trusting` client has its certificate from `a`, and
    trusts both."""

    def __init__(self, path: Path) -> None:
        self.path, self.servers, self.clients = path, path / "servers", path / "clients"
        for authority in ("a", "b"):
            (path / authority).mkdir()
            certificates(path / authority, "localhost")
        shutil.copytree(path / "a", path / "trusting")
        with (path / "trusting" / "ca.crt").open("a") as both:
            both.write((path / "b" / "ca.crt").read_text())
        self.serve_with("a")
        self.connect_with("a")
        plain, tls = free_port(), free_port()
        self.endpoint = f"https://localhost:{tls}"
        self.etcd = LocalEtcd(
            path / "data",
            client_port=plain,
            fsync=False,
            options=(
                # The plain port is for the question whether it is up.
                f"--listen-client-urls=http://127.0.0.1:{plain},https://127.0.0.1:{tls}",
                "--client-cert-auth",
                f"--trusted-ca-file={self.servers}/ca.crt",
                f"--cert-file={self.servers}/server.crt",
                f"--key-file={self.servers}/server.key",
            ),
        )

    def serve_with(self, authority: str) -> None:
        point(self.servers, self.path / authority)

    def connect_with(self, authority: str) -> None:
        point(self.clients, self.path / authority)

    def restart_with(self, authority: str) -> None:
        self.etcd.stop()
        self.serve_with(authority)
        self.etcd.start()

    def certificates(self) -> Certificates:
        return Certificates(self.clients / "ca.crt", self.clients / "client.crt", self.clients / "client.key")


@pytest.fixture
def tls_etcd(tmp_path: Path) -> Iterator[TlsEtcd]:
    server = TlsEtcd(tmp_path)
    server.etcd.start()
    yield server
    server.etcd.stop()


async def renewed(registry: EtcdRegistry, lease: int) -> bool:
    try:
        return await registry.keep_alive(lease, 2) > 0
    except RegistryUnavailable:
        return False


@pytest.mark.parametrize(("client", "endpoints"), [("a", 1), ("trusting", 1), ("trusting", 2)])
async def test_sessions_and_watches_go_on_when_every_certificate_is_replaced(
    tls_etcd: TlsEtcd, client: str, endpoints: int
) -> None:
    """It is the client that refuses etcd, or etcd that refuses the client, as when its certificate has expired."""
    tls_etcd.connect_with(client)
    registry = EtcdRegistry(
        [tls_etcd.endpoint] * endpoints, request_timeout=2, watch_idle=0.3, certificates=tls_etcd.certificates()
    )
    session = await registry.session(30)
    await registry.txn([], [Put("/w/e", b"", session.lease)])
    assert await registry.keep_alive(session.lease, 10) > 0
    async with registry.watch("/w/") as items:
        await anext(items)
        await asyncio.to_thread(tls_etcd.restart_with, "b")
        with pytest.raises(RegistryUnavailable):
            await registry.get("/w/e")
        tls_etcd.connect_with("b")
        await eventually(lambda: renewed(registry, session.lease))
        revision = (await registry.txn([], [Put("/w/a", b"")])).revision
        assert (await asyncio.wait_for(anext(items), 10)).revision == revision
    assert session.valid
    assert await registry.get("/w/e") is not None
    await registry.close()


async def test_keep_alives_get_new_certificates_although_calls_have_a_connection(tls_etcd: TlsEtcd) -> None:
    """They have a connection of their own, which may be the only one that has to be made again."""
    registry = EtcdRegistry([tls_etcd.endpoint], request_timeout=2, certificates=tls_etcd.certificates())
    session = await registry.session(30)
    # etcd reads its own certificate for every new connection, and whom it trusts at its start only.
    tls_etcd.serve_with("b")
    with pytest.raises(RegistryUnavailable):
        await registry.keep_alive(session.lease, 2)
    await registry.get("/w/e")
    tls_etcd.connect_with("trusting")
    await eventually(lambda: renewed(registry, session.lease))
    await registry.get("/w/e")
    await registry.close()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("ca.crt", "tls.crt", "tls.key")]
    for path in paths:
        path.write_text(path.name)
    return paths


def test_a_client_certificate_counts_only_with_its_key(files: list[Path]) -> None:
    """gRPC ends the process otherwise, and a change of the files may be seen half."""
    _ca, certificate, key = files
    found = Certificates(*files)
    assert found.now() == Pems(b"ca.crt", b"tls.key", b"tls.crt")
    key.write_text("")
    assert found.now() == Pems(b"ca.crt")
    key.unlink()
    assert found.now() == Pems(b"ca.crt")
    key.write_text("new")
    certificate.unlink()
    assert found.now() == Pems(b"ca.crt")


def test_an_authority_must_be_there_at_the_start_and_may_be_away_for_a_moment_later(files: list[Path]) -> None:
    found = Certificates(*files)
    files[0].unlink()
    assert found.now() == Pems(b"ca.crt", b"tls.key", b"tls.crt")
    with pytest.raises(FileNotFoundError):
        Certificates(*files)
