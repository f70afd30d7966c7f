"""`headrace cluster`: who is there, and whether all is well."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Bootstrap, Format, Output

if TYPE_CHECKING:
    from headrace.cluster.image import Image

DRAIN_POLL_SECONDS = 0.5

app = typer.Typer(no_args_is_help=True, help="Show who is in the cluster, and whether it is well.")


@app.command()
def info(output: Output = Format.TABLE, bootstrap: Bootstrap = None) -> None:
    """Show the cluster in a few lines.

    Example: headrace cluster info
    """
    from headrace.cli import session
    from headrace.cli.output import cell, print_data, table

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            found = summary(admin.image)
        if output is Format.TABLE:
            table(["what", "value"], [[name.replace("_", " "), cell(value)] for name, value in found.items()])
        else:
            print_data(found, output)

    session.run(work())


def summary(image: Image) -> dict[str, Any]:
    """The cluster's numbers."""
    partitions = [p for topic in image.topics.values() for p in topic.partitions]
    return {
        "cluster_id": image.cluster_id,
        "controller": image.controller.id if image.controller else None,
        "controller_epoch": image.controller_epoch,
        "brokers": sorted(image.brokers),
        "coordinators": sorted(image.coordinators),
        "topics": len(image.topics),
        "partitions": len(partitions),
        "under_replicated": sum(len(p.isr) < len(p.replicas) for p in partitions),
        "offline": sum(p.leader < 0 or p.leader not in image.brokers for p in partitions),
        "moving": sum(bool(p.adding or p.removing) for p in partitions),
    }


def problems(image: Image) -> list[str]:
    """What keeps the cluster from being healthy, in sentences.

    A replica on a broker that is away counts: it is not in sync.
    """
    found = [] if image.controller else ["no controller is active"]
    if not image.brokers:
        found.append("no broker is alive")
    numbers = summary(image)
    if numbers["offline"]:
        found.append(f"{numbers['offline']} partitions have no leader")
    if numbers["under_replicated"]:
        found.append(f"{numbers['under_replicated']} partitions miss in-sync replicas")
    return found


@app.command()
def health(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print a line whenever it changes.")] = False,
    exit_when_healthy: Annotated[bool, typer.Option("--exit-when-healthy", help="Wait until all is well.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Give up after this many seconds.", min=0)] = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Say what is wrong; ends with 0 when nothing is, else with 1.

    Example: headrace cluster health --watch --exit-when-healthy --timeout 60
    """
    from headrace.cli import session

    async def work() -> bool:
        async with session.admin(bootstrap) as admin:
            changed = asyncio.Event()
            admin.on_change(lambda: changed.set())
            said = None
            while True:
                changed.clear()
                found = problems(admin.image)
                if (watch or exit_when_healthy) and found != said:
                    print("; ".join(found) or "healthy", flush=True)
                    said = found
                if not (watch or exit_when_healthy):
                    print("\n".join(found) or "healthy", flush=True)
                if (exit_when_healthy and not found) or not (watch or exit_when_healthy):
                    return not found
                await changed.wait()

    async def limited() -> bool:
        try:
            async with asyncio.timeout(timeout):
                return await work()
        except TimeoutError:
            print(f"headrace: not healthy within {timeout:g} s", file=sys.stderr)
            return False

    if not session.run(limited()):
        raise SystemExit(session.FAILED)


@app.command()
def brokers(output: Output = Format.TABLE, bootstrap: Bootstrap = None) -> None:
    """List live brokers with what they lead and hold.

    Example: headrace cluster brokers
    """
    from headrace.cli import session
    from headrace.cli.output import show

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            image = admin.image
        partitions = [p for topic in image.topics.values() for p in topic.partitions]
        known = sorted({*image.brokers, *(replica for p in partitions for replica in p.replicas)})
        rows = []
        for broker in known:
            node = image.brokers.get(broker)
            rows.append(
                {
                    "id": broker,
                    "alive": node is not None,
                    "kafka": str(node.kafka) if node and node.kafka else None,
                    "grpc": str(node.grpc) if node else None,
                    "rack": node.rack if node else None,
                    "epoch": node.epoch if node else None,
                    "leads": sum(p.leader == broker for p in partitions),
                    "replicas": sum(broker in p.replicas for p in partitions),
                    "in_sync": sum(broker in p.isr for p in partitions),
                }
            )
        show(rows, output, empty="no broker is alive")

    session.run(work())


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(help="The broker that shall hold nothing any more.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is empty.")] = True,
    bootstrap: Bootstrap = None,
) -> None:
    """Move every replica away from a broker, so that it can be taken down for good.

    Example: headrace cluster drain 2
    """
    from headrace.cli import session

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            said = None
            while True:
                moving, stuck = await admin.drain_broker(broker)
                if len(moving) != said and (moving or not stuck):
                    said = len(moving)
                    print(f"{said} partitions are moving" if moving else f"broker {broker} is empty", flush=True)
                if not (moving and wait):
                    session.complain(dict(stuck))
                    return
                await asyncio.sleep(DRAIN_POLL_SECONDS)

    session.run(work())
