"""`penstock agent`: run an agent of a distribution tree, send orders to an agent, show the tree."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.cli.agent.tree_view import print_tree
from penstock.cli.common.nodes import control_facts, described_node, run_node
from penstock.cli.common.secrets import SecretOption, given_secret
from penstock.net.guard import Guard
from penstock.node.agents import live_agent, load_again, reload
from penstock.security.live.client import AdminClient
from penstock.tree.client.operator import give_order
from penstock.tree.config import PORT_DEFAULT, AgentAccess, AgentConfig, StreamConfig
from penstock.tree.core.control import Action

app = typer.Typer(
    help="Run an agent of a distribution tree, send orders to an agent, or show the tree.",
    invoke_without_command=True,
)

log = logger("agent")

AgentArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The agent.")]
ChildArgument = Annotated[str, typer.Argument(metavar="CHILD", help="The name of its child: an agent or subscriber.")]
ReasonOption = Annotated[str, typer.Option(help="The reason, which is sent to the child.")]
ConnectOption = Annotated[str | None, typer.Option(metavar="URL", help="The administration server, for a token.")]
CredentialsOption = Annotated[Path | None, typer.Option(help="Your credentials, for --connect.")]


@app.callback()
def agent(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The agent's own configuration, or a plant's: a TOML document.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The agent's name, also in a plant's document.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="For trials: the parent.")] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="For trials: run a root with its data in this directory.")
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TOPICS", help="With --root: a stream, like md=md.>; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(help="For trials: the TCP port for children.")] = PORT_DEFAULT,
) -> None:
    """Run one agent in the foreground. When it runs, one line of JSON on standard output has its address for
    children. SIGHUP makes it read its table and streams again; Ctrl-C or SIGTERM shuts it down."""
    if context.invoked_subcommand is not None:
        return
    if config is not None and (parent or root or stream):
        raise ConfigurationError("--config excludes options for trials", hint="put these settings in the document")
    path = None if config is None else config.absolute()  # made absolute, because the current directory changes below
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
        raise ConfigurationError("an agent needs a parent, or is a root", hint="use --config, --parent or --root")
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
        raise ConfigurationError(f"{text!r} is not a stream", hint="write NAME=TOPIC,TOPIC")
    return StreamConfig(name=name, topics=tuple(topics.split(",")))


@app.command("move")
def move(
    agent: AgentArgument,
    child: ChildArgument,
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="The new parent. Default: the agent chooses.")] = "",
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Move a child of an agent to another agent temporarily. No message is lost or delivered twice."""
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
    """Return a moved child to its own parent."""
    _order("return", agent, connect, credentials, secret, party=child, reason=reason)


@app.command("promote")
def promote(
    agent: AgentArgument,
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Make a standby the root, with the next term. The previous root is fenced."""
    _order("promote", agent, connect, credentials, secret, reason=reason)


@app.command("revoke")
def revoke(
    agent: AgentArgument,
    child: ChildArgument,
    topics: Annotated[list[str] | None, typer.Argument(help="The topics to revoke. Default: all of them.")] = None,
    reason: ReasonOption = "",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Revoke topics of one child of an agent. Other children are not affected."""
    _order("revoke", agent, connect, credentials, secret, party=child, topics=tuple(topics or ()), reason=reason)


@app.command("restore")
def restore(
    agent: AgentArgument,
    child: ChildArgument,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Undo the revocations of a child."""
    _order("restore", agent, connect, credentials, secret, party=child)


@app.command("tree")
def tree(
    plant: Annotated[Path | None, typer.Argument(metavar="[PLANT.TOML]", help="The plant.")] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="The page of an agent; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per agent.")] = False,
) -> None:
    """Show the tree, from the pages of its agents."""
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
        raise ConfigurationError("--connect and --credentials require each other")
    guard = Guard(given_secret(secret))
    with contextlib.ExitStack() as stack:
        token = ""
        if url is not None and credentials is not None:
            token = stack.enter_context(stack.enter_context(AdminClient.connect(url, credentials)).identified())
        try:
            give_order(agent, action, token=token, guard=guard, party=party, place=place, topics=topics, reason=reason)
        except PenstockError as error:
            error.where = error.where or agent
            raise
    typer.echo(f"{agent}: {action} was started")
