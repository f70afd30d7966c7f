"""`headrace profile`: names for clusters."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Format, Output

app = typer.Typer(no_args_is_help=True, help="Name clusters, and choose the one that commands talk to.")

Name = Annotated[str, typer.Argument(help="Name of the profile.")]


@app.command("set")
def set_profile(
    name: Name, bootstrap: Annotated[str, typer.Argument(help="Metadata servers, host:port by commas.")]
) -> None:
    """Name a cluster, and use it from now on.

    Example: headrace profile set staging 10.0.0.5:9094
    """
    from headrace.cli import profiles

    content = profiles.load()
    content["profiles"][name] = bootstrap
    content["current"] = name
    profiles.save(content)
    print(f"using {name} ({bootstrap})")


@app.command()
def use(name: Annotated[str, typer.Argument(help="Name of the profile; '-' for none.")]) -> None:
    """Choose the cluster that commands talk to without --bootstrap.

    Example: headrace profile use staging
    """
    from headrace.cli import profiles, session

    content = profiles.load()
    if name != "-" and name not in content["profiles"]:
        known = ", ".join(sorted(content["profiles"])) or "none yet"
        session.fail(f"there is no profile {name}: there are {known}. `headrace profile set` makes one", 4)
    content["current"] = "" if name == "-" else name
    profiles.save(content)
    print("using no profile" if name == "-" else f"using {name} ({content['profiles'][name]})")


@app.command("list")
def list_profiles(output: Output = Format.TABLE) -> None:
    """List profiles; the one in use is marked.

    Example: headrace profile list
    """
    from headrace.cli import profiles
    from headrace.cli.output import show

    content = profiles.load()
    rows = [
        {"name": name, "bootstrap": where, "current": name == content["current"]}
        for name, where in sorted(content["profiles"].items())
    ]
    show(rows, output, empty="no profiles yet: `headrace profile set NAME SERVERS` makes one")


@app.command()
def delete(name: Name) -> None:
    """Forget a name.

    Example: headrace profile delete staging
    """
    from headrace.cli import profiles, session

    content = profiles.load()
    if content["profiles"].pop(name, None) is None:
        session.fail(f"there is no profile {name}", 4)
    if content["current"] == name:
        content["current"] = ""
    profiles.save(content)
    print(f"deleted {name}")
