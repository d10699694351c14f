"""A console, and the agents of a real tree behind it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from integration.console_kit import SECRETS, RunningConsole, Talk, running_console
from integration.tree_kit import AgentHere, agent_here
from penstock.net.secret import write_private
from penstock.net.udp import free_ports
from penstock.node.console_config import ConsoleLimits
from penstock.node.plant import Plant
from penstock.tree.config import AgentConfig

NOTE = "app.notes.desk"
BELOW = {"mid-1": ("root", ""), "mid-2": ("root", ""), "leaf-1": ("mid-1", "mid-2"), "leaf-2": ("mid-2", "mid-1")}
QUICK = "heartbeat_ms = 50\nsilence_ms = 2000\nhistory_bytes = 4194304\ntail_bytes = 4194304\n"


def tree_document(*, has_standby: bool = False) -> str:
    """A root, two agents below it, a leaf below each of these with the other one as its alternate, and optionally a
    standby of the root."""
    names = ("root", *(("standby",) if has_standby else ()), *BELOW)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    parts = []
    for name in names:
        lines = [f'[[agent]]\nname = "{name}"\ntree = "trial"\ncontrol.port = {ports[name]}']
        agents = ", ".join(f'{each} = "nodes"' for each in names)
        lines.append(f'admin = {{ credentials = "nodes.toml" }}\nagents = {{ {agents} }}\noperators = ["boss"]')
        lines.append(QUICK)
        if name == "root":
            lines.append('role = "root"\nstreams = [{ name = "notes", topics = ["app.notes.>"] }]')
            lines += [f'standby = "127.0.0.1:{ports["standby"]}"'] if has_standby else []
        elif name == "standby":
            lines.append(f'role = "standby"\nparent = "127.0.0.1:{ports["root"]}"')
        else:
            parent, alternate = BELOW[name]
            lines.append(f'parent = "127.0.0.1:{ports[parent]}"\nbackoff = {{ base_ms = 10, max_ms = 100 }}')
            if alternate:
                lines.append(f'alternates = ["127.0.0.1:{ports[alternate]}"]')
                lines.append('on = { parent_lost = ["alternate", "sibling", "wait"] }')
        parts.append("\n".join(lines))
    return "\n".join(parts) + "\n"


class Tree:
    def __init__(
        self, console: RunningConsole, agents: dict[str, AgentHere], stacks: dict[str, contextlib.ExitStack]
    ) -> None:
        self._stacks = stacks
        self.console = console
        self.agents = agents
        self.boss = console.browser("boss")

    def lose(self, name: str) -> None:
        """End one agent now."""
        self._stacks[name].close()

    def subscribed(self, name: str = "bob", **values: Any) -> Talk:
        talk = self.console.stream(name)
        wish = {"op": "subscribe", "id": 1, "topics": ["app.notes.>"], "class": "lossless", **values}
        answer = talk.ask(wish)
        assert answer["kind"] == "subscribed", answer
        return talk


@contextlib.contextmanager
def running_tree(directory: Path, *, has_standby: bool = False) -> Iterator[Tree]:
    write_private(directory / "nodes.toml", f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    limits = ConsoleLimits(client_sessions_max=100)
    document = tree_document(has_standby=has_standby)
    with running_console(directory, document, limits=limits) as console, contextlib.ExitStack() as stack:
        plant = Plant.load(directory / "plant.toml")
        agents: dict[str, AgentHere] = {}
        stacks: dict[str, contextlib.ExitStack] = {}
        for name, config in plant.nodes.items():
            if isinstance(config, AgentConfig):
                stacks[name] = stack.enter_context(contextlib.ExitStack())
                agents[name] = stacks[name].enter_context(agent_here(_beside(config, directory)))
                plant.pages.note(name, agents[name].agent.node.url)
                agents[name].wait_rooted()
        yield Tree(console, agents, stacks)


def _beside(config: AgentConfig, directory: Path) -> AgentConfig:
    """The configuration with the full paths of its files, because this process is not in the document's directory."""
    admin = msgspec.structs.replace(config.admin, credentials=str(directory / config.admin.credentials))
    return msgspec.structs.replace(config, admin=admin, state_directory=str(directory / config.state_directory))
