"""`penstock router`: run a message router, show its status, switch or degrade a pair."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.assured.core.status import RouterStatus
from penstock.assured.live.driver import LiveRouter
from penstock.assured.node_config import PORT_DEFAULT, RouterAccess, RouterNodeConfig
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError
from penstock.base.readable import printable
from penstock.base.words import counted
from penstock.cli.common.nodes import control_facts, described_node, run_node
from penstock.cli.common.routers import ConnectOption, CredentialsOption, OneRouterArgument, opened
from penstock.cli.common.secrets import SecretOption
from penstock.cli.common.statuses import show_statuses

app = typer.Typer(
    help="Run a message router (assured messages), show its status, or switch a pair.", no_args_is_help=True
)


@app.command("run")
def run(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIRECTORY]", help="For trials: the directory of its messages.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration of the router or of a plant (TOML).")] = None,
    name: Annotated[str | None, typer.Option(help="The router's name, also in a plant's document.")] = None,
    port: Annotated[int, typer.Option(help="For trials: the TCP port for clients.")] = PORT_DEFAULT,
) -> None:
    """Run one router in the foreground. When it runs, one line of JSON on standard output has its address for
    clients. Ctrl-C or SIGTERM shuts it down."""
    if (config is None) == (directory is None):
        raise ConfigurationError("give either a document or a directory", hint="penstock router run DIRECTORY")
    pages = None
    if config is None:
        access = RouterAccess(port=port)
        chosen = RouterNodeConfig(name=name or "router", state_directory=str(directory), control=access)
    else:
        chosen, pages = described_node(config, name, RouterNodeConfig, "router")
    run_node(chosen.name, lambda: LiveRouter(chosen), control_facts("router", chosen.name), pages)


@app.command("status")
def status(
    plant: Annotated[Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The plant.")] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="The page of a router; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per router.")] = False,
) -> None:
    """Show the status of routers, from their pages. The exit status is 1 if one does not answer."""
    show_statuses("router", RouterStatus, plant, node or [], _print, is_json=json)


def _print(router: RouterStatus) -> None:
    disk = "" if router.is_storing else ", the disk accepts no data"
    touch = "" if router.is_in_touch else ", the administration server does not answer"
    state = f"{router.role}, epoch {router.epoch}, {counted(router.clients, 'client')}{disk}{touch}"
    typer.echo(printable(f"{router.name}: {state}"))
    if (replication := router.replication) is not None:
        since = datetime.fromtimestamp(replication.since_ns / NS_PER_SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        order = ", by an operator's order" if replication.is_ordered else ""
        link = "" if replication.is_linked else ", no link"
        link += "" if replication.is_other_storing else ", its disk accepts no data"
        backlog = f", {replication.backlog:,} to be copied" if router.role == "active" else ""
        typer.echo(printable(f"  with {replication.other}: {replication.state} since {since}{order}{link}{backlog}"))
        if replication.differences:
            typer.echo(printable(f"  configured differently there: {', '.join(replication.differences)}"))
        if replication.lacking:
            where = "not at the other router" if router.role == "active" else "only at the other router"
            typer.echo(printable(f"  {where}: {', '.join(replication.lacking)}"))
        if replication.voting is not None:
            typer.echo(printable(f"  voters in touch: {', '.join(replication.voting.in_touch) or 'none'}"))
    for each in router.endpoints:
        queued = (
            f"{counted(each.messages, 'message')} ({each.unsettled:,} unsettled), {counted(each.flows, 'consumer')}"
        )
        typer.echo(printable(f"  {each.endpoint.name}: {queued}"))


@app.command("switch")
def switch(
    router: OneRouterArgument,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Switch even if the active router does not answer, or has messages that the standby lacks."
        ),
    ] = False,
    lose: Annotated[
        bool,
        typer.Option(
            "--lose", help="With --force: switch even if this router has no messages, and the peer does not answer."
        ),
    ] = False,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Make the standby router of a pair active. The active router stops first, when the standby has all messages;
    --force does not ask it, but with a witness the old lease must have ended. Omit --force while the active router
    runs."""
    if lose and not force:
        raise ConfigurationError("--lose requires --force", hint="add --force, or omit --lose")
    with opened(router, connect, credentials, secret, role="operator") as assured:
        left = assured.switch(force=force, lose=lose)
        typer.echo(f"{router}: is active")
        for name, count in left.items():
            stay = "stays" if count == 1 else "stay"
            typer.echo(printable(f"  {name}: {counted(count, 'message')} {stay} behind at the other router"))


@app.command("degrade")
def degrade(
    router: OneRouterArgument,
    end: Annotated[bool, typer.Option("--end", help="Undo the order.")] = False,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Make the active router of a pair acknowledge synchronous messages without waiting for the standby."""
    with opened(router, connect, credentials, secret, role="operator") as assured:
        assured.degrade(end=end)
        typer.echo(f"{router}: {'synchronous when the standby has all messages' if end else 'degraded'}")
