"""`penstock up`, `node`: run every node of a plant on this machine, run one of them."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.admin.config import AdminConfig
from penstock.base.files import share_with_group
from penstock.base.log import configure
from penstock.base.words import counted
from penstock.cli.common.interrupt import interruptible
from penstock.node.checking import check_files
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.node.roles import Ready, Told, noting, run
from penstock.node.running import NodeProcess, RunningPlant
from penstock.web.live.login_links import issue_link


def up(
    context: typer.Context,
    plant: Annotated[Path, typer.Argument(metavar="PLANT.TOML", help="The plant's document.")],
    check: Annotated[bool, typer.Option("--check", help="Check the document, list its nodes, and exit.")] = False,
) -> None:
    """Run every node of a plant on this machine, each in its own process; Ctrl-C stops all of them.

    A node that dies is restarted after a pause, which grows if it dies again; an adapter returns as a backup. Nodes log
    warnings; `penstock --log-level INFO up` shows all of their logs.
    """
    described = Plant.load(plant)
    if check:
        check_files(described)
        for name, config in described.nodes.items():
            typer.echo(f"{name}: {re.sub('(Module|Node)?Config$', '', type(config).__name__).lower()}")
        return
    level = context.find_root().params["log_level"] or "WARNING"
    configure(style=context.find_root().params["log_style"], level=level)
    console = Console(highlight=False)
    with interruptible() as interrupt, RunningPlant(described, log_level=level) as running:
        is_started = running.start(lambda: interrupt.is_wanted)
        for node in running.nodes.values():
            if node.is_ready:
                console.print(f"{node.name}: {node.where}")
        if is_started:
            _tell_where(console, described, running)
        elif not interrupt.is_wanted:
            console.print("[red]a node did not become ready, so all nodes were stopped; see its log above[/red]")
        shown: dict[str, str] = {}
        while is_started and not interrupt.is_wanted:
            running.poll(0.25)
            for node in running.nodes.values():
                if (state := _state(node)) != shown.get(node.name):
                    shown[node.name] = state
                    console.print(f"{node.name}: {state}")
        if interrupt.is_wanted:
            console.print("stopping the plant, node by node")
        running.stop(lambda name: console.print(f"{name}: ending"))
        faults = running.faults
    for fault in faults:
        Console(stderr=True, highlight=False).print(f"[red]{fault}[/red]")
    if faults:
        raise typer.Exit(1)


def _tell_where(console: Console, plant: Plant, running: RunningPlant) -> None:
    """Print the next commands, after all other output."""
    console.print("the plant runs; Ctrl-C ends it")
    for node in running.nodes.values():
        config = plant.nodes[node.name]
        if isinstance(config, AdminConfig):
            console.print(f"  subscribe: penstock sub --connect {node.where} --credentials FILE TOPIC", soft_wrap=True)
        elif isinstance(config, ConsoleConfig):
            console.print(f"  console:   {_console_place(plant, config, node.where)}", soft_wrap=True)
    console.print(f"  figures:   penstock top {plant.path}", soft_wrap=True)


def _console_place(plant: Plant, config: ConsoleConfig, url: str) -> str:
    """The console's URL: on a terminal a link that logs in once. Other output may be a log, which gets no secret."""
    if not config.login_credentials:
        return url
    if not sys.stdout.isatty():
        return f"{url}  (`penstock console --config {plant.path} --link` prints a login link)"
    return f"{issue_link(plant, config, url)}  (logs in once, within {config.limits.link_s / 60:.0f} min)"


def _state(node: NodeProcess) -> str:
    """The state of a node in one line, printed when it changes."""
    if node.restarts.is_failing:
        return f"failing: {node.restarts.describe()}; {node.fault}"
    if node.member is None:
        return node.fault or "ended"
    if node.filtering is not None:
        return f"applications served: {len(node.filtering.applications)}"
    if node.distributing is not None:
        return f"consumers served: {len(node.distributing.consumers)}"
    if node.agent is not None:
        state = node.agent.state if node.agent.is_rooted else f"{node.agent.state}, no way to the root"
        return f"{state}, {node.agent.child_count} below it"
    if node.router is not None:
        copies = f", {node.router.replication.state}" if node.router.replication is not None else ""
        return f"{node.router.role}, epoch {node.router.epoch}{copies}, {counted(node.router.clients, 'client')}"
    if node.witness is not None:
        return f"epoch {node.witness.epoch}, held by {node.witness.holder or 'nobody'}"
    if node.status is None:
        return "running"
    what = node.status.role
    if not node.status.is_online:
        what = "off-line"
    elif what != "active":
        what += ", synchronised" if node.status.is_synchronised else ", not synchronised"
    return what


def node(
    plant: Annotated[Path, typer.Argument(metavar="PLANT.TOML", help="The plant's document.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")],
) -> None:
    """Run one node of a plant on this machine. Ctrl-C or SIGTERM shuts it down."""
    described = Plant.load(plant)
    config = described.node(name)
    described.make_secrets()
    share_with_group(described.files_group)
    path = plant.absolute()
    os.chdir(plant.parent)  # relative paths in the document start there

    def tell(told: Told) -> None:
        if isinstance(told, Ready):
            typer.echo(f"{name}: {told.where}")

    if isinstance(config, ConsoleConfig):
        from penstock.web.live.process import run_console

        raise typer.Exit(run_console(described, config, noting(described, name, tell)))
    raise typer.Exit(run(config, noting(described, name, tell), path=path))
