"""Checks of the trees in a document: each has one root, and no agent is above itself."""

from collections.abc import Sequence

from penstock.base.errors import ConfigurationError
from penstock.tree.config import AgentConfig


def check_trees(agents: Sequence[AgentConfig], where: str) -> None:
    """Check the agents together. Parents that are not in the document run elsewhere."""
    at = {_place(each): each for each in agents}
    roots: dict[str, str] = {}
    for agent in agents:
        if agent.role == "root" and (other := roots.setdefault(agent.tree, agent.name)) != agent.name:
            raise ConfigurationError(
                f"{other} and {agent.name} are both the root of {agent.tree}", where=where, hint='role = "standby"'
            )
    for agent in agents:
        _check_parents(agent, at, where)
        _check_path(agent, at, where)


def _check_parents(agent: AgentConfig, at: dict[str, AgentConfig], where: str) -> None:
    for place in (agent.parent, *agent.alternates, *agent.peers):
        other = at.get(place)
        if other is not None and other.tree != agent.tree:
            raise ConfigurationError(
                f"{agent.name} is in the tree {agent.tree}, {other.name} in {other.tree}", where=where
            )
        if other is agent:
            raise ConfigurationError(f"{agent.name} is its own parent or peer", where=where)
    above = at.get(agent.parent)
    if agent.role == "standby" and above is not None and above.role != "root":
        raise ConfigurationError(
            f"the standby {agent.name} has the parent {above.name}, which is not a root", where=where
        )


def _check_path(agent: AgentConfig, at: dict[str, AgentConfig], where: str) -> None:
    path = [agent]
    while (above := at.get(path[-1].parent)) is not None:
        if above in path:
            names = " - ".join(each.name for each in (*path, above))
            raise ConfigurationError(f"these agents form a cycle: {names}", where=where)
        path.append(above)


def _place(agent: AgentConfig) -> str:
    return agent.control.advertised or f"{agent.control.host}:{agent.control.port}"
