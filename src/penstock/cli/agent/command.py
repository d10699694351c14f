"""`penstock agent`: run an agent of a distribution tree; give one orders; show the tree."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.cli.agent.tree_view import print_tree
from penstock.cli.common.nodes import control_facts, described_node, run_node
from penstock.net.guard import Guard
from penstock.net.secret import read_secret
from penstock.node.agents import live_agent, load_again, reload
from penstock.security.live.client import AdminClient
from penstock.tree.client.operator import give_order
from penstock.tree.config import PORT_DEFAULT, AgentAccess, AgentConfig, StreamConfig
from penstock.tree.core.control import Action

app = typer.Typer(
    help="Run an agent of a distribution tree (with --config, or for trials with a parent), or give one orders.",
    invoke_without_command=True,
)

log = logger("agent")

AgentArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The agent.")]
ChildArgument = Annotated[str, typer.Argument(metavar="CHILD", help="The name of an agent or subscriber below it.")]
ReasonOption = Annotated[str, typer.Option(help="The reason, which is sent to the child.")]
ConnectOption = Annotated[str | None, typer.Option(metavar="URL", help="The administration server, for a token.")]
CredentialsOption = Annotated[Path | None, typer.Option(help="Of --connect: the file that says who you are.")]
SecretOption = Annotated[Path | None, typer.Option(help="The file with the secret that the agent shares.")]


@app.callback()
def agent(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The agent's own configuration, or a plant's: a TOML document.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which agent, when the document is a plant's; or its name.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="For trials: the agent above it.")] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="For trials: be a root that keeps here.")
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TOPICS", help="Of --root: a stream, like md=md.>; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(help="For trials: the TCP port where children connect.")] = PORT_DEFAULT,
) -> None:
    """Run one agent in the foreground. When it runs, one line of JSON on standard output says where children connect.
    SIGHUP has its table and streams read again; Ctrl-C or SIGTERM ends it in order."""
    if context.invoked_subcommand is not None:
        return
    if config is not None and (parent or root or stream):
        raise ConfigurationError("both a document and a place in the tree are given", hint="say it in the document")
    path = None if config is None else config.absolute()  # before the document's directory becomes the current one
    pages = None
    if config is None:
        chosen = _trial(name, parent, root, stream or [], port)
    else:
        chosen, pages = described_node(config, name, AgentConfig, "agent")
    run_node(
        chosen.name,
        lambda: live_agent(chosen),
        control_facts("agent", chosen.name),
        pages,
        on_hangup=None if path is None else lambda live: reload(live, lambda: load_again(path, name)),
    )


def _trial(name: str | None, parent: str | None, root: Path | None, streams: list[str], port: int) -> AgentConfig:
    if (parent is None) == (root is None):
        raise ConfigurationError("an agent has a parent, or is a root", hint="use --config, --parent or --root")
    access = AgentAccess(port=port)
    if parent is not None:
        return AgentConfig(name=name or f"agent-{port}", parent=parent, control=access)
    return AgentConfig(
        name=name or "root",
        role="root",
        state_directory=str(root),
        control=access,
        streams=tuple(_stream(each) for each in streams),
        create_on_use=not streams,
    )


def _stream(text: str) -> StreamConfig:
    name, _, topics = text.partition("=")
    if not name or not topics:
        raise ConfigurationError(f"{text!r} is no stream", hint="write NAME=TOPIC,TOPIC")
    return StreamConfig(name=name, topics=tuple(topics.split(",")))


@app.command("move")
def move(
    agent: AgentArgument,
    child: ChildArgument,
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where; unless told the agent chooses.")] = "",
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Have a child of an agent go to another agent for the time being; nothing is lost or repeated by it."""
    _order("move", agent, connect, credentials, secret, party=child, place=to, reason=reason)


@app.command("return")
def send_back(
    agent: AgentArgument,
    child: ChildArgument,
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Have a child that was moved to an agent go back."""
    _order("return", agent, connect, credentials, secret, party=child, reason=reason)


@app.command("promote")
def promote(
    agent: AgentArgument,
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Make a standby the root, with the next term; the root before it serves nobody any more."""
    _order("promote", agent, connect, credentials, secret, reason=reason)


@app.command("revoke")
def revoke(
    agent: AgentArgument,
    child: ChildArgument,
    topics: Annotated[
        list[str] | None, typer.Argument(help="What it may no longer have; unless told: anything.")
    ] = None,
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Take topics away from one child of an agent; its neighbours notice nothing."""
    _order("revoke", agent, connect, credentials, secret, party=child, topics=tuple(topics or ()), reason=reason)


@app.command("restore")
def restore(
    agent: AgentArgument,
    child: ChildArgument,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Give back what was revoked."""
    _order("restore", agent, connect, credentials, secret, party=child)


@app.command("tree")
def tree(
    plant: Annotated[
        Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The plant whose agents are shown.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="The page of an agent; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per agent.")] = False,
) -> None:
    """Show who is below whom, by what the agents say on their pages."""
    print_tree(plant, node or [], is_json=json)


def _order(
    action: Action,
    agent: str,
    url: str | None,
    credentials: Path | None,
    secret: Path | None,
    *,
    party: str = "",
    place: str = "",
    topics: tuple[str, ...] = (),
    reason: str = "",
) -> None:
    if (url is None) != (credentials is None):
        raise ConfigurationError("--connect and --credentials belong together")
    guard = Guard(None if secret is None else read_secret(secret))
    with contextlib.ExitStack() as stack:
        token = ""
        if url is not None and credentials is not None:
            token = stack.enter_context(stack.enter_context(AdminClient.connect(url, credentials)).identified())
        try:
            give_order(agent, action, token=token, guard=guard, party=party, place=place, topics=topics, reason=reason)
        except PenstockError as error:
            error.where = error.where or agent
            raise
    typer.echo(f"{agent}: {action} is under way")
