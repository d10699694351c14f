"""`penstock agent tree`."""

import pytest

from penstock.base.errors import UnreachableError
from penstock.cli.agent.tree_view import print_tree
from penstock.net.udp import free_ports


def test_a_url_that_is_not_a_page_of_an_agent_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match="not control ports"):
        print_tree(None, [f"127.0.0.1:{port}"], is_json=False)
    assert f"127.0.0.1:{port}: " in capsys.readouterr().out
