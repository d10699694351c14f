"""Links of a tree beyond one host: TLS and a secret, and the refusal of peers without them."""

import socket
from pathlib import Path

import msgspec
import pytest

from certificates import make_certificate
from integration.tree_kit import Reader, agent_config, agent_here, publish, publisher, root_config
from penstock.base.errors import ConfigurationError
from penstock.net.config import TlsConfig
from penstock.net.guard import Guard
from penstock.net.secret import read_secret, write_private
from penstock.net.tls import client_context
from penstock.node.agents import own_address
from penstock.tree.client.operator import give_order
from penstock.tree.config import AgentAccess
from waiting import wait_until


@pytest.fixture(scope="module")
def address() -> str:
    """The address of this host on the network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this host has no address but its own")
        found = str(probe.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this host has only loopback addresses")
    return found


class Protected:
    """A certificate and a secret for this host, and those of another host."""

    def __init__(self, directory: Path, address: str) -> None:
        self.certificate, self._key = make_certificate(directory / "ours", address)
        self.stranger, _ = make_certificate(directory / "theirs", address)
        self.secret = directory / "secret"
        write_private(self.secret, b"the secret of this tree's agents")
        self._address = address

    def access(self) -> AgentAccess:
        tls = TlsConfig(certificate=str(self.certificate), private_key=str(self._key), ca_file=str(self.certificate))
        return AgentAccess(host=self._address, port=0, tls=tls, secret_file=str(self.secret))

    def guard(self) -> Guard:
        return Guard(
            read_secret(self.secret),
            client_context(TlsConfig(certificate="", private_key="", ca_file=str(self.certificate))),
        )

    def trusting(self, authority: Path) -> dict[str, str]:
        return {"ca_file": str(authority), "secret_file": str(self.secret)}


def test_agents_of_other_hosts_speak_tls_and_check_whom_they_speak_to(tmp_path: Path, address: str) -> None:
    ours = Protected(tmp_path, address)
    with (
        agent_here(root_config(tmp_path / "root", control=ours.access())) as root,
        agent_here(agent_config("good", root.place, control=ours.access(), **ours.trusting(ours.certificate))) as good,
        agent_here(agent_config("fooled", root.place, **ours.trusting(ours.stranger))) as fooled,
        agent_here(agent_config("plain", root.place)) as plain,
        Reader(good.wait_rooted().place, guard=ours.guard()) as reader,
        publisher(root.place, guard=ours.guard(), name="source") as source,
    ):
        assert root.place.startswith(address)
        reader.wait_live()
        publish(source, range(1, 101))
        assert reader.wait_for(100) == list(range(1, 101))
        publish(source, range(101, 201))
        with Reader(good.place, guard=ours.guard(), since="oldest") as late:
            assert late.wait_for(200) == list(range(1, 201))
        wait_until(lambda: fooled.why_alone() and plain.why_alone(), "their reasons")
        assert "certificate verify failed" in fooled.why_alone()
        assert "needs TLS and a secret" in plain.why_alone()
        assert root.children() == ["good", "source"]
        give_order(root.place, "revoke", guard=ours.guard(), party="nobody")
        with pytest.raises(ConfigurationError, match="needs TLS"):
            give_order(root.place, "revoke", party="nobody")


@pytest.mark.parametrize("host", ["", "127.0.0.1", "0.0.0.0"])
def test_whoever_is_in_a_protected_agent_s_process_is_let_in(tmp_path: Path, address: str, host: str) -> None:
    """As a root's own feeds do."""
    access = msgspec.structs.replace(Protected(tmp_path, address).access(), host=host or address)
    with agent_here(root_config(tmp_path / "root", control=access)) as root:
        place, guard = own_address(root.agent)
        with publisher(place, guard=guard) as source:
            publish(source, range(1, 11))
            assert source.flush(60)
            assert root.agent.status(0).streams[0].last == 10
