"""Agents that know each other by tokens of the administration server: those are renewed before they expire."""

from pathlib import Path

import pytest

from integration.console_kit import SECRETS, administration
from integration.tree_kit import AgentHere, agent_config, agent_here, root_config
from penstock.net.secret import write_private
from penstock.security.access import AdminAccess
from waiting import wait_until

TOKEN_S = 5


def expiry_of(root: AgentHere, child: str) -> int:
    """Until when the root lets the child stay."""
    parties = dict(root.agent._desk._parties)
    return max((rights.expires_ns for login, rights in parties.values() if login.name == child), default=0)


@pytest.mark.spec("TREE-3")
def test_an_agent_renews_its_token_on_its_link(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    write_private(path, f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with administration(tmp_path, token_s=TOKEN_S) as server:
        admin = AdminAccess(url=server.url, credentials=str(path))
        known = {"admin": admin, "agents": ("nodes", "leaf")}
        with (
            agent_here(root_config(tmp_path / "root", **known)) as root,
            agent_here(agent_config("leaf", root.place, **known)) as leaf,
        ):
            leaf.wait_rooted()
            first = expiry_of(root, "leaf")
            wait_until(lambda: expiry_of(root, "leaf") > first, "a newer token on the same link")
            assert leaf.agent._core.board.counters["upstream_lost"] == 0
